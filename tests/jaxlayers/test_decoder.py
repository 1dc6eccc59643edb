import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxlayers.decoder
from jaxlayers import Decoder, ModelConfig, ledger
from jaxlayers.residual import Stream


def parameters(config):
    """Shapes alone: nothing is allocated."""
    return nnx.state(nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0))))


def count(config):
    return sum(leaf.size for leaf in jax.tree.leaves(parameters(config)))


def test_parity_with_the_published_formulas(random_model, tokens, family, float64):
    fields, reference = family
    model = random_model(**fields)
    expected = reference(model, tokens).logits
    np.testing.assert_allclose(model(tokens), expected, rtol=1e-10, atol=1e-10)


class TestCausality:
    @pytest.mark.parametrize("positions", ["rotary", "learned"])
    def test_by_gradient(self, random_model, tokens, positions, float64):
        """d logits[t] / d stream[s] is exactly 0 for s > t, and not for s ≤ t."""
        model = random_model(positions=positions, kv_heads=2, dtype="float64")

        def logits(x):
            return model.read_out(model.through_blocks(Stream(x[None])).x)[0]

        jacobian = jax.jit(jax.jacrev(logits))(model.embedding(tokens)[0])  # [T, V, T, D]
        size = np.abs(jacobian).max((1, 3))
        past = np.tril(np.ones((6, 6), bool))
        assert (size[~past] == 0).all()
        assert (size[past] > 1e-4).all()

    def test_a_prefix_is_read_as_on_its_own(self, random_model, tokens, float64):
        model = random_model(positions="learned", dtype="float64")
        whole, prefix = jax.jit(lambda tokens: (model(tokens), model(tokens[:, :4])))(tokens)
        np.testing.assert_allclose(whole[:, :4], prefix, rtol=1e-12, atol=1e-13)


class TestKeep:
    """keep multiplies what a module writes, which is what multiplying its last parameters does."""

    @pytest.fixture
    def model(self, random_model, float64, eager):
        return random_model(positions="learned", bias=True, dtype="float64")

    def scaled(self, model, module, factor):
        """The same model, its module's last linear map (or the embedding's tables) times a factor."""
        model = nnx.clone(model)
        if module == 0:
            outputs, at = (model.embedding.tokens, model.embedding.positions), slice(None)
        else:
            at, which = divmod(module - 1, 2)
            out = model.blocks[0].branches[which].module.out
            outputs = out.kernel, out.bias
        for parameter in outputs:
            parameter[...] = parameter[...].at[at].multiply(factor)
        return model

    def test_ones_change_nothing(self, model, tokens):
        np.testing.assert_array_equal(model(tokens, jnp.ones(5)), model(tokens))

    @pytest.mark.parametrize("factor", [0.0, 0.5])
    @pytest.mark.parametrize("module", range(5))
    def test_one_module(self, model, tokens, module, factor):
        expected = self.scaled(model, module, factor)(tokens)
        found = model(tokens, jnp.ones(5).at[module].set(factor))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        assert np.abs(found - model(tokens)).max() > 1e-3

    def test_many_at_once(self, model, tokens):
        keeps = jnp.asarray([[1, 0, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], float)
        together = jax.vmap(lambda keep: model(tokens, keep))(keeps)
        without_second_block = self.scaled(self.scaled(model, 3, 0), 4, 0)
        expected = [self.scaled(model, 1, 0)(tokens), without_second_block(tokens), model(tokens)]
        np.testing.assert_allclose(together, np.stack(expected), rtol=1e-12, atol=1e-12)


def test_the_loop_unrolls_up_to_a_depth_and_gives_the_same(random_model, tokens, float64, monkeypatch):
    model = random_model(dtype="float64")

    def at(unrolled):
        monkeypatch.setattr(jaxlayers.decoder, "UNROLLED", unrolled)

        def logits(tokens):  # a new function each time: what jax has traced before, it does not trace again
            return model(tokens)

        (loop,) = [e for e in jax.make_jaxpr(logits)(tokens).eqns if e.primitive.name == "scan"]
        return loop.params["unroll"], jax.jit(logits)(tokens)

    (rolled, a), (unrolled, b) = at(1), at(2)
    assert (rolled, unrolled) == (1, 2)
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


class TestStart:
    """At the start every number is of order one, at every depth."""

    @pytest.fixture
    def fresh(self, config):
        """fresh(field=value, ...): an untrained decoder, wide enough for statistics."""
        start = dict(width=64, mlp="swiglu", kv_heads=2, depth=3, vocabulary=300)
        return lambda seed=0, **fields: Decoder(config(**start | fields), nnx.Rngs(seed))

    def kernels(self, model):
        attention, mlp = model.blocks[0].mixer.module, model.blocks[0].mlp.module
        return [np.asarray(layer.kernel[...]) for layer in (attention.qkv, attention.out, mlp.inner, mlp.out)]

    def test_kernels_are_one_over_the_root_of_fan_in(self, fresh):
        model = fresh()
        shapes = [(3, 64, 128), (3, 64, 64), (3, 64, 2 * 176), (3, 176, 64)]
        for kernel, shape in zip(self.kernels(model), shapes, strict=True):
            assert kernel.shape == shape
            np.testing.assert_allclose(kernel.std((1, 2)), shape[1] ** -0.5, rtol=0.05)
        np.testing.assert_allclose(model.unembedding[...].std(), 64**-0.5, rtol=0.05)
        np.testing.assert_allclose(model.embedding.tokens[...].std(), 1, rtol=0.05)

    def test_tied_embeddings_are_a_read_out(self, fresh):
        model = fresh(tied=True)
        np.testing.assert_allclose(model.embedding.tokens[...].std(), 64**-0.5, rtol=0.05)
        np.testing.assert_array_equal(model.head(), model.embedding.tokens[...].T)

    def test_no_two_kernels_are_alike(self, fresh):
        """Neither two blocks', nor two modules' of one block, nor two seeds'."""
        kernels = [*self.kernels(fresh(seed=0)), *self.kernels(fresh(seed=1))]
        rows = np.concatenate([kernel.reshape(3, -1)[:, :4096] for kernel in kernels])
        assert np.abs(np.corrcoef(rows) - np.eye(len(rows))).max() < 0.1

    @pytest.mark.parametrize("tied", [False, True])
    @pytest.mark.parametrize("depth", [1, 3, 32])
    def test_stream_and_logits_are_of_order_one(self, fresh, tokens, depth, tied):
        model = fresh(depth=depth, tied=tied)
        x, logits = jax.jit(lambda tokens: (model.hidden(tokens), model(tokens)))(tokens)
        assert 0.1 < x.std() < 3
        assert 0.4 < logits.std() < 2.5


class TestCount:
    @pytest.mark.parametrize(
        ("fields", "published"),
        [
            pytest.param(
                dict(width=768, heads=12, depth=12, vocabulary=50_257, length=1024)
                | dict(norm="layer", positions="learned", mlp="gelu", bias=True, tied=True),
                124_439_808,
                id="gpt2",
            ),
            pytest.param(
                dict(width=4096, heads=32, depth=32, vocabulary=32_000, length=4096)
                | dict(mlp="swiglu", mlp_width=11_008),
                6_738_415_616,
                id="llama-2-7b",
            ),
            pytest.param(
                dict(width=576, heads=9, kv_heads=3, depth=30, vocabulary=49_152, length=2048)
                | dict(mlp="swiglu", mlp_width=1536, tied=True),
                134_515_008,
                id="smollm2-135m",
            ),
        ],
    )
    def test_of_published_models(self, fields, published):
        assert count(ModelConfig(**fields)) == published

    @pytest.mark.parametrize(
        ("norm", "positions", "mlp", "bias", "tied", "kv"),
        [
            *itertools.product(
                ["rms", "layer"], ["rotary", "learned"], ["gelu", "swiglu"], *2 * [[0, 1]], [4, 2]
            )
        ],
    )
    def test_by_formula(self, config, norm, positions, mlp, bias, tied, kv):
        D, d, L, V, T, F, gates = 16, 4, 3, 11, 6, 24, 2 if mlp == "swiglu" else 1
        norms = D * (2 if norm == "layer" and bias else 1)
        attention = D * (D + 2 * kv * d) + D * D + bias * (D + 2 * kv * d + D)
        perceptron = D * gates * F + F * D + bias * (gates * F + D)
        embedding = V * D + (T * D if positions == "learned" else 0)
        expected = embedding + L * (attention + perceptron + 2 * norms) + norms + (0 if tied else D * V)
        fields = dict(norm=norm, positions=positions, mlp=mlp, bias=bool(bias), tied=bool(tied), kv_heads=kv)
        assert count(config(depth=L, mlp_width=F, **fields)) == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtypes(random_model, tokens, dtype):
    """Parameters and logits are float32, whatever is computed in between."""
    model = random_model(dtype=dtype, bias=True)
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {jnp.dtype("float32")}
    assert jax.eval_shape(model.hidden, tokens).dtype == dtype
    assert jax.eval_shape(model, tokens).dtype == jnp.float32


def test_the_first_classes_of_the_read_out(random_model, float64):
    model = random_model(dtype="float64")
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 6, 16)))
    found, full = model.read_out(x, classes=3), model.read_out(x)
    assert found.shape == (2, 6, 3)
    np.testing.assert_allclose(found, full[..., :3], rtol=1e-12, atol=1e-13)


class TestTokens:
    @pytest.fixture(params=["model", "trace"])
    def read(self, random_model, request):
        """What a model does with tokens, and what the ledger does."""
        model = random_model()
        return model if request.param == "model" else lambda tokens: ledger.trace(model, tokens)

    @pytest.mark.parametrize("token", [-1, 11])
    def test_an_id_out_of_range_is_named(self, read, token):
        with pytest.raises(ValueError, match=f"tokens holds the id {token}, but .* from 0 to 10: correct"):
            read(jnp.array([[0, token, 10]]))

    def test_too_long_a_sequence_is_named(self, read):
        with pytest.raises(ValueError, match="tokens has 7 positions, but the model's length is 6: shorten"):
            read(jnp.zeros((1, 7), int))

    def test_also_in_a_compiled_function(self, random_model):
        with pytest.raises(ValueError, match="tokens has 7 positions"):
            jax.jit(random_model().__call__)(jnp.zeros((1, 7), int))


@pytest.mark.parametrize("depth", [2, 9])
def test_rematerialisation_changes_no_gradient(random_model, tokens, float64, depth):
    def gradient(remat):
        structure, parameters = nnx.split(random_model(depth=depth, dtype="float64", remat=remat))
        return jax.jit(jax.grad(lambda p: nnx.merge(structure, p)(tokens).std()))(parameters)

    plain, again = gradient(False), gradient(True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), plain, again)


def test_rematerialised_activations_are_a_stream_a_block():
    """Of 32 blocks more, the backward pass keeps the streams, and the gradients of the parameters."""
    tokens = jnp.zeros((8, 64), int)

    def temporaries(depth, remat):
        config = ModelConfig(vocabulary=11, length=64, width=32, depth=depth, remat=remat)
        structure, parameters = nnx.split(nnx.eval_shape(lambda: Decoder(config, nnx.Rngs(0))))
        loss = jax.jit(jax.grad(lambda p: nnx.merge(structure, p)(tokens).std()))
        return loss.lower(parameters).compile().memory_analysis().temp_size_in_bytes

    stream = 4 * 8 * 64 * 32
    assert (temporaries(48, True) - temporaries(16, True)) / 32 < 1.5 * stream
    assert (temporaries(48, False) - temporaries(16, False)) / 32 > 10 * stream


def test_a_rolled_and_an_unrolled_loop_have_the_same_gradient(config, tokens, float64, monkeypatch):
    model = Decoder(config(dtype="float64", depth=4), nnx.Rngs(0))
    structure, parameters = nnx.split(model)

    def gradient(unrolled):
        monkeypatch.setattr(jaxlayers.decoder, "UNROLLED", unrolled)
        return jax.grad(lambda p: jnp.sin(nnx.merge(structure, p)(tokens)).sum())(parameters)

    def agree(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)

    jax.tree.map(agree, gradient(8), gradient(1))


@pytest.mark.slow
def test_what_unrolled_blocks_compute_grows_as_their_number(config):
    """Of a step, by XLA's own count: each module's derivative is computed once, not once for each one below.
    Without `settled` 16 blocks cost 4.7 times what 4 do."""

    def operations(depth):
        model = Decoder(config(depth=depth, vocabulary=16, norm="layer"), nnx.Rngs(0))
        structure, parameters = nnx.split(model)
        gradient = jax.jit(jax.grad(lambda p, x: nnx.merge(structure, p)(x).sum()))
        return gradient.lower(parameters, jnp.zeros((4, 6), int)).compile().cost_analysis()["flops"]

    assert operations(16) < 4.2 * operations(4)
