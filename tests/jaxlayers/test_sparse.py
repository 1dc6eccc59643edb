import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxlayers.modules import Attention, SparseAttention, SparseMLP
from jaxlayers.modules.sparse import MultiplicativeQKV, select

BLOCK = 4
KEYS = jax.random.split(jax.random.key(0), 2000)

# A training pass for each of the keys: [2000 G N].
passes = jax.jit(jax.vmap(select, in_axes=(None, 0)))


def is_hard(key):
    """Whether a training pass with this key takes one unit, whatever the logits."""
    return select(jnp.zeros((1, 2)), key).max() == 1


def draw(*shape, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def randomise(module):
    """All parameters drawn anew: none is 0 or 1."""
    nnx.update(module, jax.tree.map(lambda leaf: draw(*leaf.shape, seed=leaf.size), nnx.state(module)))
    return module


def numbers(parameter):
    return np.asarray(parameter[...])


class TestSelect:
    def test_evaluation_takes_the_largest_of_each_block(self):
        logits = jnp.asarray([[0.1, 0.3, 0.2], [5.0, -1.0, 4.9]])
        np.testing.assert_array_equal(select(logits, None), [[0, 1, 0], [1, 0, 0]])

    def test_three_passes_in_ten_are_hard_as_a_whole(self):
        """Of 2,000 passes over 50 blocks 600 ± 80 (4 standard errors); the others are mixtures throughout."""
        chosen = passes(jnp.zeros((50, 3)), KEYS)
        one = (chosen > 0.999).any(-1)
        assert set(one.mean(-1).tolist()) == {0.0, 1.0}
        assert abs(one.all(-1).sum() - 600) < 80
        np.testing.assert_allclose(chosen.sum(-1), 1, rtol=1e-6)

    def test_the_noise_is_a_tenth_of_a_gumbel_variable(self, float64):
        """The largest of logits + 0.1 Gumbel falls on unit n with probability softmax(10 logits)."""
        logits = jnp.asarray([[0.0, 0.05, 0.1, -0.1]])
        chosen = passes(jnp.tile(logits, (50, 1)), KEYS)
        share = jax.nn.one_hot(chosen.argmax(-1), 4).mean((0, 1))
        expected = np.exp(10 * logits[0]) / np.exp(10 * logits[0]).sum()
        np.testing.assert_allclose(share, expected, atol=0.01)  # 100,000 draws: 6 standard errors

    def test_a_soft_pass_is_a_softmax_at_temperature_one(self, float64):
        """ln(p_1/p_2) of two units is their distance plus 0.1 logistic noise: mean, and variance π²/300."""
        logits = jnp.tile(jnp.asarray([1.5, 0.0]), (50, 1))
        chosen = passes(logits, KEYS)
        soft = chosen[(chosen < 0.999).all((1, 2))]
        odds = np.log(soft[..., 0] / soft[..., 1])
        np.testing.assert_allclose(odds.mean(), 1.5, atol=0.005)
        np.testing.assert_allclose(odds.var(), np.pi**2 / 300, rtol=0.05)

    def test_a_hard_pass_has_the_gradient_of_a_soft_one(self, float64):
        """∂ Σ w p / ∂ logits = p (w − Σ w p), with the soft p that the same noise gives."""
        logits, weights = draw(1, 5), draw(1, 5, seed=2)
        hard = next(key for key in KEYS[:20] if is_hard(key))
        gradient = jax.grad(lambda logits: (weights * select(logits, hard)).sum())(logits)
        noise = jax.random.gumbel(jax.random.split(hard)[0], (1, 5), float)
        soft = np.exp(logits + 0.1 * noise) / np.exp(logits + 0.1 * noise).sum()
        np.testing.assert_allclose(gradient, soft * (weights - (weights * soft).sum()), rtol=1e-12)


class TestSparseMLP:
    @pytest.fixture(params=[False, True], ids=["plain", "bias"])
    def mlp(self, config, float64, request):
        return randomise(
            SparseMLP(
                config(mlp="sparse", mlp_width=24, sparse_block=BLOCK, bias=request.param, dtype="float64"),
                nnx.Rngs(0),
            )
        )

    def by_hand(self, mlp, x):
        """Position by position, block by block. x [D]."""

        def bias(parameter):
            return 0 if parameter is None else numbers(parameter)

        scores = (x @ numbers(mlp.reduce.kernel) + bias(mlp.reduce.bias)) @ numbers(mlp.score.kernel)
        scores, hidden = scores + bias(mlp.score.bias), numbers(mlp.inner) @ x + bias(mlp.inner_bias)
        written = np.zeros(16) + bias(mlp.out.bias)
        for first in range(0, 24, BLOCK):
            unit = first + np.argmax(scores[first : first + BLOCK])
            written += max(0, hidden[unit]) * numbers(mlp.out.kernel)[unit]
        return written

    def test_one_unit_of_each_block_writes(self, mlp):
        x = draw(2, 5, 16)
        expected = [[self.by_hand(mlp, position) for position in sequence] for sequence in np.asarray(x)]
        np.testing.assert_allclose(mlp(x), expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(mlp.parts(x), mlp(x)[None])
        assert mlp.reduce.kernel.shape == (16, 16 // BLOCK)  # the controller's rank: width / N

    def test_decoding_is_the_masked_dense_form(self, mlp):
        x = draw(3, 1, 16)
        np.testing.assert_allclose(mlp.decode(x), mlp(x), rtol=1e-12, atol=1e-12)

    def test_decoding_reads_the_chosen_units_only(self, mlp):
        """Of a pair of matrices whose other rows are not a number, no number is lost."""
        x = draw(1, 1, 16)
        expected = mlp(x)
        chosen = np.asarray(select(mlp.logits(x[0]), None)).reshape(-1, 1) > 0
        for parameter in (mlp.inner, mlp.out.kernel):
            parameter[...] = jnp.where(chosen, parameter[...], jnp.nan)
        np.testing.assert_allclose(mlp.decode(x), expected, rtol=1e-12, atol=1e-12)
        assert chosen.sum() == 24 / BLOCK

    def test_training_trains_the_controller(self, mlp):
        """With a key its gradient is not 0, in a hard pass and in a soft one; without, evaluation, it is."""
        x, (graph, state) = draw(1, 5, 16), nnx.split(mlp)

        @jax.jit
        def reaches(key):
            gradient = jax.grad(
                lambda state: nnx.merge(graph, state)(x, None if key is None else key[None]).sum()
            )(state)
            return jnp.abs(gradient.score.kernel[...]).sum() > 0

        hard, soft = (next(key for key in KEYS[:20] if is_hard(key) == kind) for kind in (True, False))
        assert reaches(hard)
        assert reaches(soft)
        assert not reaches(None)

    def test_the_same_key_is_the_same_pass(self, mlp):
        x = draw(2, 5, 16)
        np.testing.assert_array_equal(mlp(x, KEYS[:2]), mlp(x, KEYS[:2]))
        assert not np.allclose(mlp(x, KEYS[:2]), mlp(x, KEYS[2:4]))

    def test_a_sequence_has_a_pass_of_its_own(self, mlp):
        """Whatever the batch is, and however it is split over devices."""
        x = draw(3, 5, 16)
        together = mlp(x, KEYS[:3])
        for b in range(3):
            alone = mlp(x[b : b + 1], KEYS[b : b + 1])
            np.testing.assert_allclose(together[b : b + 1], alone, rtol=1e-12, atol=1e-12)


class TestMultiplicativeQKV:
    @pytest.fixture
    def qkv(self, config, float64):
        return randomise(MultiplicativeQKV(config(bias=True, dtype="float64"), nnx.Rngs(0)))

    def test_its_formula(self, qkv):
        """Entry by entry: y, then nine taps a channel, nothing before the sequence or beside the heads."""
        x = np.asarray(draw(1, 5, 16))
        y = np.einsum("ti,is,im->tsm", x[0], numbers(qkv.by_head), numbers(qkv.by_dimension))
        taps = numbers(qkv.convolution.kernel).reshape(3, 3, 4, 3, 4)  # position, head, from, which, to
        expected = np.zeros((5, 3, 4, 4)) + numbers(qkv.convolution.bias).reshape(3, 1, 4)
        for t, s, i, j in np.ndindex(5, 4, 3, 3):
            earlier, beside = t + i - 2, s + j - 1
            if earlier >= 0 and 0 <= beside < 4:
                expected[t, :, s] += np.einsum("m,mcn->cn", y[earlier, beside], taps[i, j])
        written, _ = qkv.advance(jnp.asarray(x), qkv.empty(1))
        np.testing.assert_allclose(written[0], expected.reshape(5, 12, 4), rtol=1e-12, atol=1e-12)

    def test_any_permutation_of_the_width(self, qkv):
        """Dimension i goes to place (s, m) if row i of by_head is one-hot at s, of by_dimension at m."""
        order = np.random.default_rng(0).permutation(16)
        qkv.by_head[...] = jnp.eye(4)[order // 4]
        qkv.by_dimension[...] = jnp.eye(4)[order % 4]
        here = np.zeros((3, 3, 4, 3, 4))
        here[2, 1] = np.eye(4)[:, None]  # this position and this head, for each of the three
        qkv.convolution.kernel[...] = jnp.asarray(here.reshape(36, 12))
        qkv.convolution.bias[...] = jnp.zeros(12)
        x = draw(1, 5, 16)
        permuted = np.zeros((5, 16))
        permuted[:, order] = x[0]
        for part in np.split(qkv.advance(x, qkv.empty(1))[0][0], 3, axis=1):
            np.testing.assert_allclose(part.reshape(5, 16), permuted, rtol=1e-12)

    def test_decoding_is_training(self, qkv):
        x = draw(2, 5, 16)
        together, end = qkv.advance(x, qkv.empty(2))
        past, written = qkv.empty(2), []
        for t in range(5):
            position, past = qkv.advance(x[:, t : t + 1], past)
            written.append(position)
        np.testing.assert_allclose(np.concatenate(written, 1), together, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(past, end, rtol=1e-12)

    def test_it_starts_as_a_linear_layer_does(self, config):
        """Of inputs of variance 1, y and what the convolution makes of it inside have variance 1."""
        qkv = MultiplicativeQKV(config(width=256, heads=16), nnx.Rngs(0))
        written, y = qkv.advance(draw(4, 32, 256).astype(jnp.float32), qkv.empty(4))
        np.testing.assert_allclose(np.var(y), 1, rtol=0.1)
        inside = np.asarray(written[:, 2:]).reshape(4, 30, 3, 16, 16)[:, :, :, 1:-1]
        np.testing.assert_allclose(inside.var(), 1, rtol=0.1)


class TestSparseAttention:
    def test_it_is_attention_over_its_queries_keys_and_values(self, config, float64):
        """As an attention whose linear layer reads them off: over a stream that carries all three."""
        sparse = randomise(SparseAttention(config(dtype="float64", bias=True), nnx.Rngs(0)))
        x = draw(2, 6, 16)
        carried = sparse.multiplicative.advance(x, sparse.multiplicative.empty(2))[0].reshape(2, 6, 48)
        wide = Attention(config(width=48, heads=12, dtype="float64"), nnx.Rngs(0))
        wide.project = lambda stream, seen: (jnp.concatenate(  # its heads 4 to 11 are not looked at
            [jnp.pad(part.reshape(2, 6, 4, 4), [(0, 0), (0, 0), (0, 8), (0, 0)]) for part in
             jnp.split(stream, 3, axis=-1)], axis=2), seen)  # fmt: skip
        mixed = wide.mix(carried)[..., :16]
        expected = mixed @ sparse.out.kernel[...] + sparse.out.bias[...]
        np.testing.assert_allclose(sparse(x), expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(sparse.parts(x).sum(0), expected, rtol=1e-12, atol=1e-12)

    def test_no_position_sees_a_later_one(self, config, float64):
        sparse = randomise(SparseAttention(config(dtype="float64"), nnx.Rngs(0)))
        jacobian = jax.jacrev(lambda x: sparse(x)[0].sum(-1))(draw(1, 6, 16))[:, 0]  # t, s, D
        sees = np.abs(jacobian).sum(-1) > 0
        np.testing.assert_array_equal(sees, np.tril(np.ones_like(sees)))

    def test_its_qkv_is_small(self, config):
        """Width 64 of 8 heads: 64 (8 + 8) + 27 · 8² = 2,752 numbers, against 3 · 64² = 12,288."""
        qkv = MultiplicativeQKV(config(width=64, heads=8), nnx.Rngs(0))
        assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(qkv))) == 2752
