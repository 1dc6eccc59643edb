import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxlayers.modules.ssm import CHUNK, SSM, State, selective_scan

LENGTHS = [1, CHUNK - 1, CHUNK, 2 * CHUNK + 5]


def build(config, state=3, **fields):
    """A module none of whose parameters is 0 or 1; steps from 0.02 to 2: heads forget, heads remember."""
    module = SSM(config(mixers=("ssm",), state=state, **fields), nnx.Rngs(0))
    draw = np.random.default_rng(0)

    def perturb(leaf):
        return leaf + jnp.asarray(0.2 * draw.normal(size=leaf.shape), leaf.dtype)

    nnx.update(module, jax.tree.map(perturb, nnx.state(module)))
    module.step_bias[...] = jnp.linspace(-4.0, 2.0, 4, dtype=module.step_bias.dtype)
    return module


def draw(*shape, dtype=float, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def recurrence(module, x, recent, h):
    """One sequence, position by position and head by head, in NumPy. x [T D], recent [3 C], h [H N d]."""
    own = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(module)))
    inner, out, rate = own["inner"], own["out"], np.exp(own["log_rate"])
    D, N, H = module.config.width, module.state, module.config.heads
    written, h, seen = [], np.array(h, float), list(np.asarray(recent))
    for position in np.asarray(x, float):
        gate, ubc, step = np.split(position @ inner["kernel"] + inner["bias"], [D, 2 * D + 2 * N])
        seen.append(ubc)
        convolved = sum(tap * past for tap, past in zip(own["taps"], seen[-4:], strict=True))
        u, b, c = np.split(convolved / (1 + np.exp(-convolved)), [D, D + N])
        mixed = []
        for i, u_i in enumerate(np.split(u, H)):
            delta = np.log1p(np.exp(step[i] + own["step_bias"][i]))
            h[i] = np.exp(-delta * rate[i]) * h[i] + np.outer(delta * b, u_i)
            mixed.append(c @ h[i] + own["skip"][i] * u_i)
        gated = np.concatenate(mixed) * gate / (1 + np.exp(-gate))
        written.append(gated @ out["kernel"] + out["bias"])
    return np.stack(written), np.stack(seen[-3:]), h


@pytest.mark.parametrize("length", LENGTHS)
def test_a_sequence_is_its_recurrence(config, float64, length):
    """From a state that is not empty, to the state that is left: through chunks, and through their rest."""
    module, x = build(config, bias=True, dtype="float64"), draw(2, length, 16)
    state = State(draw(2, 3, 22, seed=3), draw(2, 4, 3, 4, seed=2))
    written, left = jax.jit(module.advance)(x, state)
    for i in range(2):
        expected, recent, memory = recurrence(module, x[i], state.recent[i], state.memory[i])
        np.testing.assert_allclose(written[i], expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(left.recent[i], recent, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(left.memory[i], memory, rtol=1e-12, atol=1e-12)


def test_the_first_state_is_empty(config, float64):
    module, x = build(config, bias=True, dtype="float64"), draw(1, 6, 16)
    expected, _, _ = recurrence(module, x[0], np.zeros((3, 22)), np.zeros((4, 3, 4)))
    np.testing.assert_allclose(module(x)[0], expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(module.advance(x, module.empty(1))[0][0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
def test_decoding_is_training(config, float64, dtype, tolerance):
    """Token by token from a carried state, against the whole sequence at once."""
    module, x = build(config, dtype=dtype), draw(2, 2 * CHUNK + 5, 16, dtype=dtype)
    step = jax.jit(module.advance)
    state, written = module.empty(2), []
    for t in range(x.shape[1]):
        position, state = step(x[:, t : t + 1], state)
        written.append(position)
    np.testing.assert_allclose(np.concatenate(written, 1), module(x), rtol=tolerance, atol=tolerance)


def test_small_steps_after_large_ones_in_float32(config):
    """Steps of 5 and of 0.001 in turn: what decayed to nothing does not blur what hardly decays after it."""
    draw = np.random.default_rng(0)
    step = np.where(draw.random((1, CHUNK, 4)) < 0.5, 5.0, 0.001)
    step[:, CHUNK // 2 :] = 0.001
    log_decay = -step * np.array([1.0, 4.0, 8.0, 16.0])
    x, b, c = (
        draw.normal(size=(1, CHUNK, 4, 4)),
        draw.normal(size=(1, CHUNK, 3)),
        draw.normal(size=(1, CHUNK, 3)),
    )
    h, expected = np.zeros((4, 3, 4)), []
    for t in range(CHUNK):
        h = np.exp(log_decay[0, t])[:, None, None] * h + b[0, t][:, None] * x[0, t][:, None, :]
        expected.append(np.einsum("hnd,n->hd", h, c[0, t]))
    single = (jnp.asarray(array, jnp.float32) for array in (log_decay, x, b, c, np.zeros((1, 4, 3, 4))))
    y, state = selective_scan(*single)
    np.testing.assert_allclose(y[0], np.stack(expected), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(state[0], h, rtol=1e-5, atol=1e-5)


def test_no_position_sees_a_later_one(config, float64):
    """∂ written[t] / ∂ x[s] is 0 for s > t, and not for any s ≤ t, over chunks too."""
    module, x = build(config, dtype="float64"), draw(1, CHUNK + 8, 16)
    jacobian = jax.jacrev(lambda x: module(x)[0].sum(-1))(x)[:, 0]  # t, s, D
    sees = np.abs(jacobian).sum(-1) > 0
    np.testing.assert_array_equal(sees, np.tril(np.ones_like(sees)))


@pytest.mark.parametrize("step", [-10.0, 40.0])
def test_gradients_are_finite_at_the_extremes(config, step):
    """Steps of 4.5e-5 and of 40, where the decay over a chunk underflows."""
    module = build(config, length=64)
    module.step_bias[...] = jnp.full(4, step)
    graph, state = nnx.split(module)
    x = draw(1, CHUNK + 8, 16, dtype=jnp.float32)
    gradients = jax.grad(lambda state, x: nnx.merge(graph, state)(x).sum(), argnums=(0, 1))(state, x)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    assert all(np.abs(leaf).sum() > 0 for leaf in jax.tree.leaves(gradients[1]))


def test_memories_last_from_one_position_to_a_thousand(config):
    """Without an input, Δ is log-uniform in 0.001 to 0.1 and a uniform in 1 to 16."""
    module = SSM(config(width=4096, heads=2048, mixers=("ssm",), state=1), nnx.Rngs(0))
    step = np.asarray(jax.nn.softplus(module.step_bias[...]))
    rate = np.exp(np.asarray(module.log_rate[...]))
    np.testing.assert_allclose(
        [step.min(), step.max(), rate.min(), rate.max()], [0.001, 0.1, 1, 16], rtol=0.02
    )
    np.testing.assert_allclose(np.log10(step).mean(), -2, atol=0.05)
    np.testing.assert_allclose(rate.mean(), 8.5, atol=0.3)
    assert abs(np.corrcoef(np.log(step), rate)[0, 1]) < 0.1


def test_parts_are_what_each_head_writes(config, float64):
    """Head h alone: the output's rows of the other heads are 0; the bias is shared by all four."""
    module, x = build(config, bias=True, dtype="float64"), draw(2, 6, 16)
    parts, kernel, bias = module.parts(x), module.out.kernel[...], module.out.bias[...]
    np.testing.assert_allclose(parts.sum(0), module(x), rtol=1e-12, atol=1e-12)
    for h in range(4):
        module.out.kernel[...] = jnp.where((np.arange(16) // 4 == h)[:, None], kernel, 0)
        np.testing.assert_allclose(parts[h], module(x) - 0.75 * bias, rtol=1e-12, atol=1e-12)


def test_bfloat16_keeps_its_state_in_float32(config):
    """A sum of 512 small writes is lost in bfloat16: 256 + 1 = 256."""
    module = SSM(config(dtype="bfloat16"), nnx.Rngs(0))
    written, state = module.advance(jnp.ones((1, 4, 16), jnp.bfloat16), module.empty(1))
    assert written.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in state} == {jnp.dtype(jnp.float32)}
    ones, nothing = jnp.ones((1, 512, 1)), jnp.zeros((1, 512, 1))
    _, last = selective_scan(nothing, ones[..., None], ones, ones, jnp.zeros((1, 1, 1, 1)))
    np.testing.assert_allclose(last, 512)
