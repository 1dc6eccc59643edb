from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxlayers.decoder
from jaxlayers import Decoder
from jaxlayers.modules import Norm, SparseAttention, SparseMLP
from jaxlayers.reversible import reversible


def draw(*shape, dtype=float, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def recomputed(modules, parameters, keys, pair):
    """Modules (parameters, y, key) -> what is written, in pairs."""

    def step(i, own, keys, pair):
        x, y = pair
        return y, x + modules[i](own, y, None if keys is None else keys[i])

    return reversible(tuple(partial(step, i) for i in range(len(modules))), parameters, keys, pair)


def plain(modules, parameters, keys, pair):
    """As the paper writes it, left to autodiff, which stores what each block computes."""
    f, g = modules

    def block(pair, each):
        (own_f, own_g), keys = each
        x1 = pair[0] + f(own_f, pair[1], keys[0])
        return (x1, pair[1] + g(own_g, x1, keys[1])), None

    return jax.lax.scan(block, pair, (parameters, keys))[0]


def dropped(parameters, x, key):
    """A layer half of whose units are dropped: with another mask, another function."""
    hidden = jnp.tanh(x @ parameters["in"])
    return (hidden * jax.random.bernoulli(key, 0.5, hidden.shape)) @ parameters["out"]


def layers(depth, width=8, hidden=12, dtype=float, seed=1):
    return {
        "in": draw(depth, width, hidden, dtype=dtype, seed=seed) / width**0.5,
        "out": draw(depth, hidden, width, dtype=dtype, seed=seed + 1) / hidden**0.5,
    }


def loss(stack, modules, weights):
    """A number that both streams decide, unevenly."""
    return lambda parameters, keys, pair: sum(
        (weight * stream).sum()
        for weight, stream in zip(weights, stack(modules, parameters, keys, pair), strict=True)
    )


def assert_equal_gradients(modules, parameters, keys, pair):
    weights = draw(*pair[0].shape, seed=8), draw(*pair[0].shape, seed=9)
    found, expected = (
        jax.jit(jax.grad(loss(stack, modules, weights), argnums=(0, 2)))(parameters, keys, pair)
        for stack in (recomputed, plain)
    )
    for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12 * np.abs(wanted).max())


def test_two_blocks_by_hand(float64):
    """f = 2x, g = x²: from (1, 2), 1 + 2·2 = 5 and 2 + 5² = 27; then 5 + 2·27 = 59 and 27 + 59² = 3508."""
    modules = (lambda p, x, key: p * x, lambda p, x, key: p * x**2)
    parameters, pair = (jnp.full(2, 2.0), jnp.ones(2)), (jnp.asarray(1.0), jnp.asarray(2.0))
    assert [float(x) for x in recomputed(modules, parameters, None, pair)] == [59.0, 3508.0]

    # With f = a x, g = b x² and one block: x2 = 2 + b (1 + 2a)², so that at a = 2, b = 1
    # ∂x2/∂a = 2·5·2, ∂x2/∂b = 25, ∂x2/∂(1, 2) = (2·5, 1 + 2·5·2).
    one = tuple(leaf[:1] for leaf in parameters)
    (a, b), (x1, x2) = jax.grad(lambda p, pair: recomputed(modules, p, None, pair)[1], argnums=(0, 1))(
        one, pair
    )
    np.testing.assert_allclose([a[0], b[0], x1, x2], [20, 25, 10, 21], rtol=1e-14)


def test_gradients_with_masks_replayed(float64):
    """Those of plain autodiff, for parameters of both modules and both streams, through dropped units."""
    parameters = layers(6), layers(6, hidden=20, seed=3)
    keys = jax.random.split(jax.random.key(0), (6, 2))
    assert_equal_gradients((dropped, dropped), parameters, keys, (draw(3, 8, seed=5), draw(3, 8, seed=6)))


def test_gradients_of_attention_and_a_sparse_mlp_in_training(config, float64):
    """Gumbel noise and hard or soft passes, as the keys decide, are replayed."""
    fields = config(dtype="float64", depth=4, mlp="sparse", sparse_block=4)

    class Half(nnx.Module):
        def __init__(self, module):
            self.norm = Norm(fields)
            self.module = module

    def stacked(build):
        def blocks():
            return nnx.vmap(lambda rngs: Half(build(rngs)))(nnx.Rngs(0).split(4))

        graph, shapes = nnx.split(nnx.eval_shape(blocks))
        return graph, jax.tree.map(lambda leaf: 0.3 * draw(*leaf.shape, seed=leaf.size), shapes)

    attention, attention_state = stacked(lambda rngs: SparseAttention(fields, rngs))
    mlp, mlp_state = stacked(lambda rngs: SparseMLP(fields, rngs))

    def f(state, x, key):
        half = nnx.merge(attention, state)
        return half.module(half.norm(x))

    def g(state, x, key):
        half = nnx.merge(mlp, state)
        return half.module(half.norm(x), jax.random.split(key, len(x)))

    keys = jax.random.split(jax.random.key(1), (4, 2))
    pair = draw(2, 6, 16, seed=5), draw(2, 6, 16, seed=6)
    assert_equal_gradients((f, g), (attention_state, mlp_state), keys, pair)


@pytest.mark.parametrize("stack", [recomputed, plain])
def test_activation_memory_is_flat_in_depth(stack):
    """From 4 blocks to 32 the gradient's scratch memory grows by less than one stream; stored, by 56."""

    def scratch(depth):
        parameters = layers(depth, dtype="float32"), layers(depth, dtype="float32", seed=3)
        keys = jax.random.split(jax.random.key(0), (depth, 2))
        pair = draw(512, 8, dtype="float32", seed=5), draw(512, 8, dtype="float32", seed=6)
        gradient = jax.jit(jax.grad(loss(stack, (dropped, dropped), pair), argnums=(0, 2)))
        return gradient.lower(parameters, keys, pair).compile().memory_analysis().temp_size_in_bytes

    grown = (scratch(32) - scratch(4)) / (512 * 8 * 4)  # streams
    assert grown < 1 if stack is recomputed else grown > 56


@pytest.fixture
def autodiff(monkeypatch):
    """autodiff(): from here on the decoder's loop over pairs has no gradient of its own."""

    def stored(writes, own, places, pair):
        def block(pair, each):
            for write, of_branch in zip(writes, each[0], strict=True):
                pair = write(of_branch, each[1], pair)
            return pair, None

        return jax.lax.scan(block, pair, (own, places))[0]

    return lambda: monkeypatch.setattr(jaxlayers.decoder, "recomputing", stored)


SPARSE = dict(mlp="sparse", sparse_block=4)


@pytest.mark.parametrize(
    "fields",
    [
        dict(depth=3, branch_exponent=0),
        dict(depth=9, norm="layer", bias=True, positions="learned", mlp="swiglu"),
        dict(depth=6, mixers=("ssm", "attention", "sparse"), residual="pre-norm-scaled", **SPARSE),
    ],
    ids=["attention", "deep", "hybrid"],
)
def test_gradients_of_a_decoder(random_model, tokens, float64, autodiff, fields):
    """Of its parameters and of how often its modules count, in training with noise: those of autodiff."""
    structure, parameters = nnx.split(random_model(reversible=True, dtype="float64", **fields))
    keep = draw(1 + 2 * fields["depth"]) ** 2
    noise, labels = jnp.array([3, 4], jnp.uint32), tokens[:, ::-1, None]

    def gradient():
        def loss(parameters, keep):
            model = nnx.merge(structure, parameters)
            logits = model.read_out(model.hidden(tokens, keep, noise))
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels, -1).mean()

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(parameters, keep)

    found = gradient()
    autodiff()
    for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(gradient()), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())


def test_activation_memory_of_a_decoder_is_flat_in_depth(config, autodiff):
    """From 4 blocks to 32 a gradient's scratch memory grows by less than one stream; stored, by 28 × 20."""
    tokens = jnp.zeros((32, 64), int)

    def scratch(depth):
        fields = config(depth=depth, length=64, width=32, reversible=True)
        structure, parameters = nnx.split(nnx.eval_shape(lambda: Decoder(fields, nnx.Rngs(0))))
        gradient = jax.jit(jax.grad(lambda parameters: nnx.merge(structure, parameters)(tokens).std()))
        return gradient.lower(parameters).compile().memory_analysis().temp_size_in_bytes

    def grown():
        return (scratch(32) - scratch(4)) / (32 * 64 * 32 * 4)  # streams

    assert grown() < 1
    autodiff()
    assert grown() > 28 * 20
