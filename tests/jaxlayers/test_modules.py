import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxlayers.modules import MLP, Attention, Norm
from jaxlayers.modules.attention import rotate
from jaxlayers.modules.linear import linear
from jaxlayers.modules.mlp import gelu


@pytest.fixture
def x(float64):
    return jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 16)))


def draw(*shape, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def randomise(module):
    """All parameters drawn anew: none is 0 or 1."""
    state = jax.tree.map(lambda leaf: draw(*leaf.shape, seed=leaf.size), nnx.state(module))
    nnx.update(module, state)
    return module


@pytest.mark.parametrize(("inputs", "outputs"), [(16, 5), (16, 16), (16, 40)])
def test_derivatives_of_a_linear_layer(config, x, inputs, outputs):
    """dy kernelᵀ and xᵀ dy, whichever way the second is computed."""
    layer = randomise(linear(inputs, outputs, config(dtype="float64"), nnx.Rngs(0)))
    structure, state = nnx.split(layer)
    dy = draw(2, 6, outputs, seed=3)
    y, pull = jax.vjp(lambda state, x: nnx.merge(structure, state)(x), state, x)
    dstate, dx = pull(dy)
    kernel = layer.kernel[...]
    np.testing.assert_allclose(y, np.einsum("bti,io->bto", x, kernel), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(dx, np.einsum("bto,io->bti", dy, kernel), rtol=1e-12, atol=1e-13)
    expected = np.einsum("bti,bto->io", x, dy)
    np.testing.assert_allclose(dstate["kernel"][...], expected, rtol=1e-12, atol=1e-13)


class TestNorm:
    @pytest.mark.parametrize("epsilon", [1e-6, 0.5])
    def test_layer(self, config, x, epsilon):
        norm = randomise(Norm(config(norm="layer", bias=True, norm_epsilon=epsilon, dtype="float64")))
        mean, variance = np.mean(x, -1, keepdims=True), np.var(x, -1, keepdims=True)
        expected = (x - mean) / np.sqrt(variance + epsilon) * norm.scale[...] + norm.shift[...]
        np.testing.assert_allclose(norm(x), expected, rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize("epsilon", [1e-6, 0.5])
    def test_rms(self, config, x, epsilon):
        norm = randomise(Norm(config(norm="rms", bias=True, norm_epsilon=epsilon, dtype="float64")))
        expected = x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + epsilon) * norm.scale[...]
        assert norm.shift is None
        np.testing.assert_allclose(norm(x), expected, rtol=1e-12)

    @pytest.mark.parametrize("name", ["rms", "layer"])
    def test_frozen_is_affine(self, config, x, name):
        """Its derivative is the standardisation itself; live, the derivative along x itself vanishes."""
        norm = randomise(Norm(config(norm=name, bias=True, norm_epsilon=1e-30, dtype="float64")))
        _, frozen = jax.jvp(lambda x: norm(x, jax.lax.stop_gradient), (x,), (x,))
        _, live = jax.jvp(norm, (x,), (x,))
        shift = 0 if norm.shift is None else norm.shift[...]
        np.testing.assert_allclose(frozen, norm(x) - shift, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(live, 0, atol=1e-12)

    def test_the_statistic_of_bfloat16_is_float32(self, config):
        """Of 1000 and 1000 × (1 + 2⁻⁷), the variance is lost in bfloat16 arithmetic."""
        x = jnp.asarray([1000.0, 1008.0] * 8, jnp.bfloat16)
        statistic = Norm(config(norm="layer")).statistic(x)
        assert statistic.dtype == jnp.float32
        np.testing.assert_allclose(statistic, np.asarray(x, float).std(), rtol=1e-6)


class TestRotate:
    def test_scores_see_only_the_distance(self, float64):
        """The same query and key at every position: the score depends on t − s alone."""
        q, k = (jnp.broadcast_to(draw(8, seed=i), (1, 6, 1, 8)) for i in (1, 2))
        score = np.einsum("btd,bsd->ts", rotate(q, 100.0)[:, :, 0], rotate(k, 100.0)[:, :, 0])
        np.testing.assert_allclose(score[1:, 1:], score[:-1, :-1], rtol=1e-12)
        assert np.ptp(score[0]) > 0.1

    def test_each_pair_turns_at_its_own_rate(self, float64):
        """Pair i lies on dimensions i and i + d/2 and turns by base^(−2i/d) a position."""
        x = jnp.zeros((1, 4, 1, 4)).at[..., 1].set(1.0)
        angle = np.arange(4) * 100.0 ** (-2 * 1 / 4)
        expected = np.stack([0 * angle, np.cos(angle), 0 * angle, np.sin(angle)], -1)
        np.testing.assert_allclose(rotate(x, 100.0)[0, :, 0], expected, rtol=1e-12, atol=1e-15)


class TestAttention:
    def attention(self, config, **fields):
        fields = config(**dict(bias=True, dtype="float64") | fields)
        return randomise(Attention(fields, nnx.Rngs(0)))

    def test_equal_scores_average_the_past(self, config, x):
        """Without queries every position so far weighs the same: a running mean of the values."""
        attention = self.attention(config, bias=False)
        attention.qkv.kernel[...] = attention.qkv.kernel[...].at[:, :16].set(0.0)
        values = x @ attention.qkv.kernel[...][:, 32:]
        expected = np.cumsum(values, 1) / np.arange(1, 7)[:, None]
        np.testing.assert_allclose(attention.mix(x), expected, rtol=1e-12, atol=1e-13)

    def test_large_scores_pick_one_position(self, config, x):
        """Queries and keys × 10⁴: each head copies the value of the best key, and nothing overflows."""
        attention = self.attention(config, bias=False, positions="learned")
        q, k, v = (part.reshape(2, 6, 4, 4) for part in np.split(x @ attention.qkv.kernel[...], 3, axis=-1))
        attention.qkv.kernel[...] = attention.qkv.kernel[...].at[:, :32].multiply(1e4)
        scores = np.einsum("bthd,bshd->bhts", q, k)
        best = np.where(np.tril(np.ones((6, 6), bool)), scores, -np.inf).argmax(-1)
        expected = np.take_along_axis(v.transpose(0, 2, 1, 3), best[..., None], 2).transpose(0, 2, 1, 3)
        np.testing.assert_allclose(attention.mix(x), expected.reshape(2, 6, 16), rtol=1e-12)

    @pytest.mark.parametrize("positions", ["rotary", "learned"])
    @pytest.mark.parametrize("kv", [1, 2])
    def test_shared_keys_are_repeated_keys(self, config, x, positions, kv):
        """Fewer key heads than four query heads: as four that are equal in groups (Ainslie et al. 2023)."""
        grouped = self.attention(config, kv_heads=kv, positions=positions)
        full = self.attention(config, positions=positions)
        heads = [*range(4), *np.repeat(np.arange(4, 4 + 2 * kv), 4 // kv)]
        for name in ("kernel", "bias"):
            parameter = getattr(grouped.qkv, name)[...]
            columns = parameter.reshape(*parameter.shape[:-1], 4 + 2 * kv, 4)
            getattr(full.qkv, name)[...] = columns[..., heads, :].reshape(*parameter.shape[:-1], 48)
        np.testing.assert_allclose(grouped(x), full(x), rtol=1e-12, atol=1e-12)

    def test_parts_are_what_each_head_writes(self, config, x):
        """Head h alone: the output's rows of the other heads are 0; the bias is shared by all four."""
        attention = self.attention(config)
        parts = attention.parts(x)
        np.testing.assert_allclose(parts.sum(0), attention(x), rtol=1e-12, atol=1e-12)
        kernel, bias = attention.out.kernel[...], attention.out.bias[...]
        for h in range(4):
            attention.out.kernel[...] = jnp.where((np.arange(16) // 4 == h)[:, None], kernel, 0)
            np.testing.assert_allclose(parts[h], attention(x) - 0.75 * bias, rtol=1e-12, atol=1e-12)


class TestMLP:
    def test_gelu_and_silu_of_known_numbers(self, config, float64):
        """gelu(1) = 0.8411920 in its tanh form (0.8413447 in the exact one); silu(1)·2 = 1.4621172."""
        gelu = MLP(config(mlp="gelu", mlp_width=1, dtype="float64"), nnx.Rngs(0))
        gelu.inner.kernel[...] = jnp.zeros((16, 1)).at[0].set(1.0)
        gelu.out.kernel[...] = jnp.ones((1, 16))
        swiglu = MLP(config(mlp="swiglu", mlp_width=1, dtype="float64"), nnx.Rngs(0))
        swiglu.inner.kernel[...] = jnp.zeros((16, 2)).at[0].set(jnp.asarray([1.0, 2.0]))
        swiglu.out.kernel[...] = jnp.ones((1, 16))
        one = jnp.zeros((1, 1, 16)).at[..., 0].set(1.0)
        np.testing.assert_allclose(gelu(one), 0.8411919906082768, rtol=1e-12)
        np.testing.assert_allclose(swiglu(one), 1.4621171572600098, rtol=1e-12)

    @pytest.mark.parametrize("mlp", ["gelu", "swiglu"])
    def test_positions_do_not_mix(self, config, x, mlp):
        module = randomise(MLP(config(mlp=mlp, bias=True, dtype="float64"), nnx.Rngs(0)))
        order = np.asarray([3, 1, 5, 0, 2, 4])
        np.testing.assert_allclose(module(x[:, order]), module(x)[:, order], rtol=1e-12)
        np.testing.assert_array_equal(module.parts(x), module(x)[None])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_linear_layer_keeps_its_parameters_in_full(config, float64, dtype):
    layer = linear(16, 8, config(bias=True, dtype=dtype), nnx.Rngs(0))
    stored = jnp.float64 if dtype == "float64" else jnp.float32
    assert {layer.kernel[...].dtype, layer.bias[...].dtype} == {jnp.dtype(stored)}
    assert layer(jnp.ones((3, 16), dtype)).dtype == dtype


class TestGelu:
    def test_gradient_is_that_of_plain_autodiff(self, float64):
        x = jnp.linspace(-6.0, 6.0, 101)
        found = jax.grad(lambda x: gelu(x).sum())(x)

        def written_out(x):
            return (0.5 * x * (1 + jnp.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))).sum()

        np.testing.assert_allclose(found, jax.grad(written_out)(x), rtol=1e-12, atol=1e-14)

    def test_keeps_its_input_alone(self, float64):
        x = jnp.linspace(-6.0, 6.0, 101)
        _, pull = jax.vjp(gelu, x)
        (kept,) = (leaf for leaf in jax.tree.leaves(pull) if leaf.size == x.size)
        np.testing.assert_array_equal(kept, x)
