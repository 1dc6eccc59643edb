import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxlayers import Decoder
from train import parallel, step
from train.config import Optimiser
from train.loop import stack
from train.step import State, Trainer


def batches(task, steps, seed=0):
    stream = task.training(seed)
    return stack([stream[i] for i in range(steps)])


def trainer_of(group, task, **architecture):
    architecture = group.architecture.model_copy(update=architecture)
    group = group.model_copy(update={"architecture": architecture})
    return Trainer(group, task)


def run(trainer, stacked) -> tuple[State, object]:
    """Through the devices there are, one seed."""
    state = parallel.over_devices(trainer.start)(parallel.replicate(np.asarray(0)))
    state, metrics = parallel.over_devices(trainer.steps)(state, parallel.shard(stacked, axis=1))
    return parallel.first(state), parallel.first(metrics)


@pytest.mark.parametrize(
    "architecture",
    [{}, dict(gated=True, core=1), dict(reversible=True, mlp="sparse")],
    ids=["pre-norm", "gated", "reversible"],
)
def test_two_devices_equal_one(group, task, float64, monkeypatch, architecture):
    """Weights differ between the halves of a batch, so that a mean of the devices' means would be wrong.
    A sequence's noise is its own, on whichever device it is."""
    trainer = trainer_of(group, task, dtype="float64", **architecture)
    stacked = batches(task, 3)
    stacked["weights"] = np.where(np.arange(8)[:, None] < 2, 0.0, stacked["weights"])
    assert parallel.count() == 2
    two = run(trainer, stacked)
    monkeypatch.setattr(parallel, "devices", lambda: jax.local_devices()[:1])
    one = run(trainer, stacked)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13), two, one)


def test_a_step_is_the_update_of_the_mean_loss(group, task, float64):
    """Written out once more: no devices, no seeds, no stacks; the plain call of the model."""
    trainer = trainer_of(group, task, dtype="float64")
    stacked = batches(task, 2)
    state, metrics = run(trainer, stacked)

    structure, parameters = nnx.split(Decoder(trainer.config, nnx.Rngs(jax.random.key(0))))
    schedule = optax.schedules.join_schedules(
        [optax.linear_schedule(0, 3e-3, 1), optax.cosine_decay_schedule(3e-3, 11, 0.1)], [1]
    )

    def matrix(path, _):
        return jax.tree_util.keystr(path[-2:]).find("scale") < 0

    mask = jax.tree_util.tree_map_with_path(matrix, parameters)
    optimiser = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, 0.9, 0.95, weight_decay=0.1, mask=mask)
    )
    carried, losses = optimiser.init(parameters), []
    for i in range(2):

        def mean_loss(parameters, i=i):
            logits = nnx.merge(structure, parameters)(jnp.array(stacked["tokens"][i]))
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), stacked["labels"][i][..., None], -1)
            return -picked.mean()

        loss, gradient = jax.value_and_grad(mean_loss)(parameters)
        updates, carried = optimiser.update(gradient, carried, parameters)
        parameters = optax.apply_updates(parameters, updates)
        losses.append(loss)
    np.testing.assert_allclose(metrics.loss, losses, rtol=1e-12)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12),
        state.parameters,
        nnx.to_pure_dict(parameters),
    )


def test_noise_is_of_training_alone(group, task):
    trainer = trainer_of(group, task, gated=True, core=1)
    parameters = jax.jit(trainer.start)(0).parameters
    (training,), (test, *_) = (jax.tree.map(lambda leaf: leaf[0], batches(task, 1)),), task.evaluation("test")
    losses = jax.jit(lambda batch: trainer.sums(parameters, batch).loss)
    other = {**training, "noise": training["noise"] + 1}
    assert losses(training) != losses(other)
    assert "noise" not in test


@pytest.mark.parametrize("guesses", [0.5, 2.0])
def test_a_loss_far_beyond_a_guess_is_a_divergence(guesses, group, task, monkeypatch):
    """An untrained model's loss is about that of a uniform guess, ln(classes)."""
    monkeypatch.setattr(step, "DIVERGED", guesses)
    trainer = trainer_of(group, task)
    start = parallel.first(parallel.over_devices(trainer.start)(parallel.replicate(np.asarray(0))))
    state, metrics = run(trainer, batches(task, 2))
    assert state.sound == (guesses > 1)
    assert metrics.sound.tolist() == [guesses > 1] * 2
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), start.parameters, state.parameters)
    assert any(jax.tree.leaves(moved)) == (guesses > 1)
    assert (metrics.loss[0] == metrics.loss[1]) is np.False_  # the losses of both batches are told


def test_accumulated_gradients_are_those_of_the_whole_batch(group, task, float64):
    """Weights differ between the parts, so that a mean of the parts' means would be wrong."""
    stacked = batches(task, 3)
    stacked["weights"] = np.where(np.arange(8)[:, None] % 4 == 1, 0.0, stacked["weights"])
    whole, parts = (
        run(
            trainer_of(
                group.model_copy(update={"optimiser": Optimiser(accumulate=n)}), task, dtype="float64"
            ),
            stacked,
        )
        for n in (1, 4)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13), whole, parts)


def test_accumulation_needs_less_memory(group, task):
    """A batch of 64 in eight parts: a quarter of the temporaries at most, though the gradient stays."""

    def temporaries(n):
        trainer = trainer_of(group.model_copy(update={"optimiser": Optimiser(accumulate=n)}), task)
        state = jax.eval_shape(trainer.start, jnp.array(0))
        rows = jax.ShapeDtypeStruct((64, task.length), np.int32)
        batch = dict(tokens=rows, labels=rows, weights=jax.ShapeDtypeStruct(rows.shape, np.float32))
        weight = jax.ShapeDtypeStruct((), np.float32)
        compiled = jax.jit(trainer.gradient).lower(state.parameters, batch, weight).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(8) < temporaries(1) / 4


@pytest.mark.parametrize(
    ("fields", "matrices", "vectors"),
    [
        (dict(norm="layer", positions="learned"), {"positions"}, {"shift"}),
        (dict(mixers=("ssm",)), set(), {"log_rate", "step_bias", "skip", "taps"}),
        (dict(mixers=("sparse",), mlp="sparse"), {"by_head", "by_dimension", "inner"}, {"inner_bias"}),
    ],
    ids=["attention", "ssm", "sparse"],
)
def test_only_matrices_decay(group, task, fields, matrices, vectors):
    group = group.model_copy(update={"optimiser": Optimiser(warmup=0)})
    trainer = trainer_of(group, task, bias=True, **fields)
    parameters = nnx.to_pure_dict(nnx.state(Decoder(trainer.config, nnx.Rngs(0))))
    zero = jax.tree.map(jnp.zeros_like, parameters)
    optimiser = trainer.optimiser
    updates, _ = optimiser.update(zero, optimiser.init(parameters), parameters)
    flat = dict(nnx.traversals.flatten_mapping(updates))
    moved = {path for path, update in flat.items() if np.abs(update).max() > 0}
    assert {path[-1] for path in moved} == {"kernel", "tokens", "unembedding"} | matrices
    assert {path[-1] for path in flat.keys() - moved} == {"scale", "bias"} | vectors


def test_seeds_have_their_own_start_and_are_reproducible(group, task):
    trainer = trainer_of(group, task)
    start = jax.jit(parallel.over_seeds(trainer.start))
    kernels = start(jnp.array([0, 5, 0])).parameters["blocks"][0]["mlp"]["module"]["inner"]["kernel"]
    assert np.array_equal(kernels[0], kernels[2])
    assert np.abs(kernels[0] - kernels[1]).min() > 0


def test_the_label_is_the_largest_where_argmax_says_so():
    """Also of logits that tie, where the first counts, and of NaN, which nothing is larger than."""
    draw = np.random.default_rng(0)
    logits = jnp.asarray(draw.integers(3, size=(500, 4)), jnp.float32)
    labels = jnp.asarray(draw.integers(4, size=500))
    expected = logits.argmax(-1) == labels
    assert 50 < expected.sum() < 450
    np.testing.assert_array_equal(step.is_largest(logits, labels), expected)
    assert not step.is_largest(jnp.full((1, 4), jnp.nan), jnp.array([2])).any()
