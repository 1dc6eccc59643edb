import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlayers import Decoder, ledger
from jaxlayers.ledger import Member
from jaxlayers.residual import LedgerStream

OPTIONS = dict(
    norm=["rms", "layer"],
    positions=["rotary", "learned"],
    mlp=["gelu", "swiglu"],
    bias=[False, True],
    tied=[False, True],
    kv_heads=[4, 2],
)
COMBINATIONS = [dict(zip(OPTIONS, values, strict=True)) for values in itertools.product(*OPTIONS.values())]


def assert_close(found, expected, tolerance):
    """Relative to the largest: a sum of terms of that size cannot be nearer."""
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def by_block(entries, heads):
    """The reference's finest members as a list of blocks: [H + 1, B, T, D] each."""
    return entries[1:].reshape(-1, heads + 1, *entries.shape[1:])


class TestIdentity:
    @pytest.mark.parametrize("options", COMBINATIONS, ids=lambda o: "-".join(str(v) for v in o.values()))
    @pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
    def test_every_option(self, random_model, tokens, float64, eager, options, dtype, tolerance):
        model = random_model(dtype=dtype, **options)
        logits = model(tokens)
        for granularity in ["block", "module", "head"]:
            found = ledger.trace(model, tokens, granularity)
            assert found.contributions.dtype == found.bias.dtype == dtype
            assert_close(found.logits(), logits, tolerance)
            assert_close(found.member_logits().sum(0) + found.bias, logits, tolerance)

    def test_compiled_and_deep(self, random_model, tokens, float64):
        """Deep enough for the loop to stay rolled."""
        model = random_model(depth=9, norm="layer", bias=True, dtype="float64")
        logits = model(tokens)
        for granularity in ["block", "module", "head"]:
            assert_close(ledger.trace(model, tokens, granularity).logits(), logits, 1e-12)

    def test_models_trained_in_bfloat16_are_traced_in_float32(self, random_model, tokens):
        coarse, fine = random_model(dtype="bfloat16"), random_model(dtype="float32")
        found = ledger.trace(coarse, tokens)
        assert found.contributions.dtype == jnp.float32
        assert_close(found.logits(), fine(tokens), 1e-5)
        assert np.abs(coarse(tokens) - fine(tokens)).max() > 1e-3


class TestContributions:
    """Not only do they sum up: each is what its member wrote, standardised as the whole stream is."""

    @pytest.fixture
    def expected(self, random_model, tokens, family, float64, eager):
        """A model, and by NumPy: the finest contributions, the head and the bias."""
        fields, reference = family
        model = random_model(**fields)
        written = reference(model, tokens).written
        scale, unembedding = np.asarray(model.norm.scale[...]), np.asarray(model.head())
        if fields["norm"] == "layer":
            written = written - written.mean(-1, keepdims=True)
            bias = np.asarray(model.norm.shift[...]) @ unembedding
        else:
            bias = np.zeros(11)
        sigma = np.sqrt(np.mean(written.sum(0) ** 2, -1, keepdims=True) + 1e-5)
        return model, written / sigma, np.diag(scale) @ unembedding, bias

    def test_of_heads(self, expected, tokens):
        model, contributions, head, bias = expected
        found = ledger.trace(model, tokens, "head")
        assert_close(found.contributions, contributions, 1e-12)
        assert_close(found.head, head, 1e-12)
        np.testing.assert_allclose(found.bias, bias, rtol=1e-12, atol=1e-13)

    def test_of_modules(self, expected, tokens):
        model, fine, _, _ = expected
        modules = [[block[:4].sum(0), block[4]] for block in by_block(fine, 4)]
        found = ledger.trace(model, tokens, "module").contributions
        assert_close(found, np.stack([fine[0], *itertools.chain(*modules)]), 1e-12)

    def test_of_blocks(self, expected, tokens):
        model, fine, _, _ = expected
        found = ledger.trace(model, tokens, "block").contributions
        assert_close(found, np.stack([fine[0], *by_block(fine, 4).sum(1)]), 1e-12)

    def test_of_one_mlp_by_hand(self, random_model, tokens, float64, eager):
        """From the stream that it reads, which is the model's with this and all later modules left out."""
        model = random_model(norm="layer", bias=True, branch_exponent=0.5, dtype="float64")
        before = np.asarray(model.hidden(tokens, jnp.asarray([1.0, 1, 1, 1, 0])))
        mlp, at = model.blocks[0].mlp, 1
        h = (before - before.mean(-1, keepdims=True)) / np.sqrt(before.var(-1, keepdims=True) + 1e-6)
        h = h * mlp.norm.scale[at] + mlp.norm.shift[at]
        h = h @ mlp.module.inner.kernel[at] + mlp.module.inner.bias[at]
        h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        h = 2**-0.5 * (h @ mlp.module.out.kernel[at] + mlp.module.out.bias[at])
        sigma = np.sqrt(np.asarray(model.hidden(tokens)).var(-1, keepdims=True) + 1e-6)
        found = ledger.trace(model, tokens)
        at = found.names.index("mlp 1")
        assert_close(found.contributions[at], (h - h.mean(-1, keepdims=True)) / sigma, 1e-12)

    def test_of_the_embedding(self, random_model, tokens, float64, eager):
        model = random_model(positions="learned", dtype="float64")
        rms = np.sqrt(np.mean(np.square(model.hidden(tokens)), -1, keepdims=True) + 1e-6)
        found = ledger.trace(model, tokens)
        assert_close(found.contributions[0], model.embedding(tokens) / rms, 1e-12)


class TestMembers:
    @pytest.mark.parametrize(
        ("granularity", "names"),
        [
            ("block", "embedding, block 0, block 1"),
            ("module", "embedding, attention 0, mlp 0, attention 1, mlp 1"),
            ("head", "embedding, head 0.0, head 0.1, mlp 0, head 1.0, head 1.1, mlp 1"),
        ],
    )
    def test_names(self, config, granularity, names):
        found = ledger.members(config(heads=2), granularity)
        assert ", ".join(member.name for member in found) == names

    def test_kinds_and_blocks(self, config):
        found = ledger.members(config(heads=2, depth=2), "head")
        assert found[0] == Member("embedding", "embedding", -1)
        assert found[5] == Member("head 1.1", "head", 1)
        assert found[6] == Member("mlp 1", "mlp", 1)
        assert ledger.members(config(), "block")[1] == Member("block 0", "block", 0)

    def test_a_ledger_passes_through_jit(self, random_model, tokens):
        model = random_model()
        found = ledger.trace(model, tokens)
        assert found.members == ledger.members(model.config, "module")
        doubled = jax.jit(lambda each: jax.tree.map(lambda leaf: 2 * leaf, each))(found)
        assert doubled.names == ("embedding", "attention 0", "mlp 0", "attention 1", "mlp 1")
        np.testing.assert_array_equal(doubled.contributions, 2 * found.contributions)


@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_with_epsilon_the_full_sum_renormalises_to_the_logits(random_model, tokens, float64, eager, norm):
    """A large ε, so that leaving it out would show."""
    model = random_model(norm=norm, bias=True, norm_epsilon=0.3, dtype="float64")
    found = ledger.trace(model, tokens)
    total = np.asarray(found.contributions.sum(0))
    power = np.mean(total**2, -1)

    def read(sigma):
        return total / sigma[..., None] @ np.asarray(found.head) + np.asarray(found.bias)

    assert_close(read(np.sqrt(power + np.asarray(found.epsilon))), model(tokens), 1e-12)
    assert np.abs(read(np.sqrt(power)) - model(tokens)).max() > 0.01


@pytest.mark.parametrize("reversible", [False, True])
def test_a_ledger_of_kept_modules_sums_to_their_stream(random_model, tokens, float64, eager, reversible):
    model: Decoder = random_model(norm="layer", bias=True, dtype="float64", reversible=reversible)
    keep = jnp.asarray([1.0, 0.0, 0.5, 1.0, 0.3])
    x = model.embedding(tokens)
    entries = jnp.zeros((5, *x.shape)).at[0].set(x)
    stream = LedgerStream(x, entries, jnp.int32(1), lambda module, h: module(h)[None])
    kept = model.through_blocks(stream, keep[1:].reshape(2, 2))
    assert_close(kept.entries.sum(0), model.hidden(tokens, keep), 1e-12)
    assert (kept.entries[1] == 0).all()
