"""Each architecture once more in NumPy, with its ledger kept by hand, entry by entry.

The sum alone proves nothing: what a wrong rule leaves over would be credited to the newest member. Here
the coefficients of every rule are written out from its formula; of the model only the modules are called.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxlayers import Decoder, ledger
from jaxlayers.decoder import reconfigured
from jaxlayers.residual import LedgerStream, Noise, Pair, Stream, through

ARCHITECTURES = {
    "pre-norm": dict(branch_exponent=0.5),
    "pre-norm-scaled": dict(residual="pre-norm-scaled", branch_exponent=0),
    "post-norm": dict(residual="post-norm"),
    "deepnorm": dict(residual="deepnorm"),
    "looped": dict(core=1, depth=3),
    "looped blocks": dict(core=2, depth=4, branch_exponent=0.5, branch_factor=0.75),
    "looped post-norm": dict(core=1, depth=3, residual="post-norm"),
    "looped pre-norm-scaled": dict(core=1, depth=3, residual="pre-norm-scaled", loop_exponent=0.5),
    "gated": dict(gated=True, prelude=1, core=1, coda=1, depth=4),
    "gated pre-norm-scaled": dict(gated=True, prelude=1, core=2, depth=5, residual="pre-norm-scaled"),
    "ssm": dict(mixers=("ssm",), state=3),
    "sparse": dict(mixers=("sparse",), mlp="sparse", sparse_block=4),
    "hybrid": dict(mixers=("attention", "ssm"), depth=4),
    "hybrid post-norm": dict(mixers=("ssm", "attention", "sparse"), depth=6, residual="post-norm"),
    "hybrid looped": dict(mixers=("attention", "ssm"), core=2, depth=4),
    "hybrid gated": dict(mixers=("ssm", "attention"), gated=True, prelude=2, core=2, coda=2, depth=8),
    "reversible": dict(reversible=True, branch_exponent=0.5),
    "reversible pre-norm-scaled": dict(reversible=True, residual="pre-norm-scaled", depth=3, mlp="swiglu"),
    "reversible hybrid": dict(
        reversible=True, mixers=("ssm", "attention", "sparse"), depth=6, mlp="sparse", sparse_block=4
    ),
}
# The branch scale ε, or α, of the same, from the papers' formulas.
SCALES = {
    "pre-norm": 2**-0.5,
    "pre-norm-scaled": 1.0,
    "post-norm": 1.0,
    "deepnorm": (2 * 2) ** 0.25,
    "looped": 1 / 3,
    "looped blocks": 0.75 / (2 * 2**0.5),
    "looped post-norm": 1.0,
    "looped pre-norm-scaled": 3**-0.5,
    "gated": 1 / 3,
    "gated pre-norm-scaled": 1 / 3,
    "ssm": 1 / 2,
    "sparse": 1 / 2,
    "hybrid": 1 / 4,
    "hybrid post-norm": 1.0,
    "hybrid looped": 1 / (2 * 2),
    "hybrid gated": 1 / 6,
    "reversible": 2**-0.5,
    "reversible pre-norm-scaled": 1 / 3,
    "reversible hybrid": 1 / 6,
}


def assert_close(found, expected, tolerance):
    """Relative to the largest: a sum of terms of that size cannot be nearer."""
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


class Norms(NamedTuple):
    """A norm's parameters as numbers, and the two ways in which a ledger meets them."""

    scale: np.ndarray
    shift: np.ndarray | float
    centred: bool

    @classmethod
    def of(cls, norm, block=...):
        shift = 0.0 if norm.shift is None else np.asarray(norm.shift[...])[block]
        return cls(np.asarray(norm.scale[...])[block], shift, norm.shift is not None)

    def linear(self, entry, x):
        """An entry's share of the norm of x: linear, by the statistic of x."""
        if self.centred:
            entry, x = entry - entry.mean(-1, keepdims=True), x - x.mean(-1, keepdims=True)
        return self.scale * entry / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6)

    def __call__(self, x):
        return self.linear(x, x) + self.shift


class ByHand:
    """A model's entries by head, in a list that grows with every part that is written."""

    def __init__(self, model: Decoder, scale: float):
        self.model, self.scale = model, scale
        self.pre_norm = model.config.residual.startswith("pre-norm")
        self.applied = 0

    def writes(self, block):
        """What each module of a block writes for a stream, by part, and its norm."""
        self.applied += 1
        block, turn = divmod(block, len(self.model.config.mixers))
        for branch in self.model.blocks[turn].branches:
            norm = Norms.of(branch.norm, block)
            structure, stacked = nnx.split(branch.module)
            module = nnx.merge(structure, jax.tree.map(lambda leaf: leaf[block], stacked))

            def written(x, module=module, norm=norm):
                h = norm(x) if self.pre_norm else x
                if self.model.config.residual == "pre-norm-scaled":
                    h = h / np.sqrt(self.applied)
                return list(np.asarray(module.parts(jnp.asarray(h))))

            yield written, norm

    def pair(self, x):
        """All blocks over two streams: x1 ← x1 + ε f(x2), then x2 ← x2 + ε g(x1)."""
        x1, x2 = x, x
        for block in range(self.model.config.depth):
            (f, _), (g, _) = self.writes(block)
            x1 = padded(x1, x2) + [self.scale * part for part in f(sum(x2))]
            x2 = padded(x2, x1) + [self.scale * part for part in g(sum(x1))]
        return [(one + other) / 2 for one, other in zip(padded(x1, x2), x2, strict=True)]

    def block(self, entries, block):
        for write, norm in self.writes(block):
            x = sum(entries)
            parts = write(x)
            if self.pre_norm:
                entries = [*entries, *(self.scale * part for part in parts)]
                continue
            joined = self.scale * x + sum(parts)
            old = [norm.linear(self.scale * entry, joined) for entry in entries]
            entries = old + [norm.linear(part, joined) + norm.shift / len(parts) for part in parts]
        return entries

    def recurrence(self, entries, start, blocks, noise):
        """One pass through a gated core."""
        model, D = self.model.recurrence, self.model.config.width
        inject = np.asarray(model.inject.kernel[...])
        inner = [
            h @ inject[:D] + s @ inject[D:] for h, s in zip(entries, padded(start, entries), strict=True)
        ]
        inner[-1] = inner[-1] + (np.zeros_like(start[0]) + noise.stream) @ inject[:D]
        for block in blocks:
            inner = self.block(inner, block)
        read = [Norms.of(model.norm)(sum(entries)), Norms.of(model.start_norm)(sum(start))]
        hidden = np.concatenate(read, -1) @ np.asarray(model.gate_in.kernel[...])
        hidden = hidden + np.asarray(model.gate_in.bias[...])
        hidden = hidden / (1 + np.exp(-hidden))
        gate = hidden @ np.asarray(model.gate_out.kernel[...]) + np.asarray(model.gate_out.bias[...])
        gate = 1 / (1 + np.exp(-gate - noise.gate))
        return [gate * h + (1 - gate) * o for h, o in zip(padded(entries, inner), inner, strict=True)]

    def entries(self, tokens, noises=None):
        config = self.model.config
        core = config.core or config.depth
        loops = (config.depth - config.prelude - config.coda) // core
        entries = [np.asarray(self.model.embedding(tokens))]
        if config.reversible:
            return np.stack(self.pair(entries))
        for block in range(config.prelude):
            entries = self.block(entries, block)
        start, blocks = list(entries), range(config.prelude, config.prelude + core)
        for r in range(loops):
            if config.gated:
                entries = self.recurrence(entries, start, blocks, noises[r] if noises else Noise())
                continue
            for block in blocks:
                entries = self.block(entries, block)
        for block in range(config.coda):
            entries = self.block(entries, blocks.stop + block)
        return np.stack(entries)


def padded(entries, like):
    """What has not been written yet is zero."""
    return entries + [np.zeros_like(like[0])] * (len(like) - len(entries))


@pytest.mark.parametrize(
    ("name", "norm"),
    [*((name, "layer") for name in ARCHITECTURES), ("post-norm", "rms"), ("gated", "rms")],
)
class TestArchitectures:
    @pytest.fixture
    def model(self, random_model, name, norm, float64, eager):
        return random_model(
            **{"norm": norm, "bias": norm == "layer", "dtype": "float64"} | ARCHITECTURES[name]
        )

    def test_the_ledger_is_the_one_kept_by_hand(self, model, tokens, name):
        entries = ByHand(model, SCALES[name]).entries(tokens)
        final, x = Norms.of(model.norm), entries.sum(0)
        head = np.asarray(model.head())
        logits = final(x) @ head
        assert_close(model(tokens), logits, 1e-12)

        contributions = final._replace(scale=1.0).linear(entries, x)
        heads, depth = model.config.heads, model.config.depth
        blocks = contributions[1:].reshape(depth, heads + 1, *x.shape)
        modules = np.stack([blocks[:, :heads].sum(1), blocks[:, heads]], 1).reshape(2 * depth, *x.shape)
        expected = {
            "head": contributions,
            "module": np.concatenate([contributions[:1], modules]),
            "block": np.concatenate([contributions[:1], blocks.sum(1)]),
        }
        for granularity, by_hand in expected.items():
            found = ledger.trace(model, tokens, granularity)
            assert len(found.names) == len(by_hand)
            assert_close(found.contributions, by_hand, 1e-12)
            assert_close(found.logits(), logits, 1e-12)
            assert_close(found.member_logits().sum(0) + found.bias, logits, 1e-12)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_identity_in_float32(random_model, tokens, eager, name):
    model = random_model(**dict(norm="layer", bias=True) | ARCHITECTURES[name])
    assert_close(ledger.trace(model, tokens).logits(), model(tokens), 1e-5)


def test_each_stream_of_a_pair_is_the_sum_of_a_ledger_of_its_own(random_model, tokens, float64):
    """After every module, and what one has written, the other has not yet."""
    model = random_model(norm="layer", bias=True, dtype="float64", reversible=True)
    x = model.embedding(tokens)
    entries = jnp.zeros((5, *x.shape)).at[0].set(x)
    start = LedgerStream(x, entries, jnp.int32(1), lambda module, h: module(h)[None])
    alone, pair = Pair(Stream(x), Stream(x)), Pair(start, start)
    structure, stacked = nnx.split(model.blocks)
    for b in range(2):
        block = nnx.merge(structure, jax.tree.map(lambda leaf, b=b: leaf[b], stacked))[0]
        for i, branch in enumerate(block.branches):
            alone, pair = through(alone, branch, b), through(pair, branch, b)
            for ledger_, stream in [(pair.older, alone.older), (pair.newer, alone.newer)]:
                assert_close(ledger_.x, stream.x, 1e-12)
                assert_close(ledger_.entries.sum(0), stream.x, 1e-12)
            written = [[bool(entry.any()) for entry in each.entries[1:]] for each in (pair.older, pair.newer)]
            k = 2 * b + i
            assert written[1] == [m <= k and m % 2 == k % 2 for m in range(4)]
            assert written[0] == [m < k and m % 2 != k % 2 for m in range(4)]


GATED = dict(gated=True, prelude=1, core=1, coda=1, norm="layer", bias=True)


class TestRecurrence:
    @pytest.mark.parametrize("depth", [3, 4, 7])
    def test_any_number_of_recurrences(self, random_model, tokens, float64, eager, depth):
        """Fewer and more than the model was built for, with the same parameters."""
        model = reconfigured(random_model(depth=4, dtype="float64", **GATED), depth=depth)
        x = ByHand(model, 1 / 3).entries(tokens).sum(0)
        assert_close(model.hidden(tokens), x, 1e-12)
        assert ledger.trace(model, tokens, "block").names[-1] == f"block {depth - 1}"

    def test_noise_of_training(self, random_model, tokens, float64, eager):
        """On what the core is given and in the gate, new in each recurrence."""
        model, seeds = random_model(depth=5, dtype="float64", **GATED), np.array([3, 4], np.uint32)
        keys, like = jax.vmap(jax.random.key)(seeds), jnp.zeros((2, 6, 16))
        noises = [jax.tree.map(np.asarray, Noise.drawn(keys, r, 3, like)) for r in range(3)]
        x = ByHand(model, 1 / 3).entries(tokens, noises).sum(0)
        found = model.hidden(tokens, noise=jnp.asarray(seeds))
        assert_close(found, x, 1e-12)
        assert np.abs(found - model.hidden(tokens)).max() > 0.01

    def test_a_sequence_does_not_depend_on_its_batch(self, random_model, tokens, float64):
        model, seeds = random_model(depth=5, dtype="float64", **GATED), jnp.array([3, 4], jnp.uint32)
        hidden = jax.jit(lambda tokens, noise: model.hidden(tokens, noise=noise))
        assert_close(hidden(tokens[1:], seeds[1:]), hidden(tokens, seeds)[1:], 1e-12)

    @pytest.fixture
    def drawn(self):
        """Of 3,000 sequences in each of 4 recurrences: [R, B, T, D]."""
        keys = jax.vmap(jax.random.key)(jnp.arange(3000, dtype=jnp.uint32))
        like = jnp.zeros((3000, 2, 4))
        return jax.tree.map(np.asarray, jax.vmap(lambda r: Noise.drawn(keys, r, 4, like))(jnp.arange(4)))

    def test_numbers_of_recurrences_are_uniform_from_one(self, drawn):
        on = np.isfinite(drawn.gate)
        assert (on == on[..., :1, :1]).all()  # all of a sequence goes on, or none
        on = on[..., 0, 0]
        assert (on[:-1] >= on[1:]).all()  # and what has stopped does not go on again
        shares = np.bincount(on.sum(0), minlength=5) / 3000
        np.testing.assert_allclose(shares, [0, 0.25, 0.25, 0.25, 0.25], atol=0.03)  # 4 standard errors

    def test_noise_is_normal_with_deviation_a_tenth(self, drawn):
        gate = drawn.gate[0]
        for values in (drawn.stream, gate):
            np.testing.assert_allclose(values.std(), 0.1, rtol=0.02)
            np.testing.assert_allclose((np.abs(values) < 0.1).mean(), 0.683, atol=0.01)
        flat = np.stack([*drawn.stream.reshape(4, -1), gate.ravel()])
        assert np.abs(np.corrcoef(flat) - np.eye(5)).max() < 0.03

    def test_at_the_start_the_gate_is_nearly_shut(self, config):
        gate = Decoder(config(depth=3, **GATED), nnx.Rngs(0)).recurrence.gate_out
        np.testing.assert_array_equal(gate.bias[...], 4)

    def test_what_a_sequence_has_done_with_passes_no_gradient(self, random_model):
        """An infinite gate's gradient is zero, not NaN."""
        structure, parameters = nnx.split(random_model(gated=True, core=1, depth=2))
        seeds, like = jnp.arange(9, dtype=jnp.uint32), jnp.zeros((9, 1, 1))
        assert set(np.isinf(Noise.drawn(jax.vmap(jax.random.key)(seeds), 1, 2, like).gate).ravel()) == {0, 1}

        def spread(parameters):
            return nnx.merge(structure, parameters).hidden(jnp.zeros((9, 3), int), noise=seeds).std()

        gradient = jax.jit(jax.grad(spread))(parameters)
        assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


class TestLooped:
    def test_is_the_untied_decoder_whose_blocks_are_alike(self, random_model, tokens, float64):
        """Also where some modules are left out: each application is a member of its own."""
        looped = random_model(core=2, depth=4, dtype="float64")
        untied = random_model(depth=4, dtype="float64")
        parameters = nnx.state(looped)
        parameters["blocks"] = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), parameters["blocks"])
        nnx.update(untied, parameters)
        keep = jnp.asarray(np.random.default_rng(0).uniform(size=9))
        for given in (None, keep):
            run = jax.jit(lambda model, tokens, given=given: model(tokens, given))
            assert_close(run(looped, tokens), run(untied, tokens), 1e-12)

    @pytest.mark.parametrize(
        ("fields", "scale"),
        [
            (dict(core=1, depth=16), 1 / 16),  # ε = 1/N
            (dict(core=1, depth=16, loop_exponent=0.5), 1 / 4),
            (dict(core=1, depth=16, loop_exponent=0), 1),
            (dict(core=4, depth=32, branch_exponent=0.5), 1 / 16),  # ε = 1/(N √L)
            (dict(core=4, depth=32, branch_exponent=0.5, branch_factor=3.0), 3 / 16),  # ε = λ/(N √L)
            (dict(depth=16, branch_exponent=0.5), 1 / 4),  # untied: ε = 1/√L
        ],
    )
    def test_residual_scaling(self, config, fields, scale):
        assert config(**fields).branch_scale == scale

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("core", "exponent", "growth"),
        [(1, 0, 1), (1, 0.5, 0.5), (1, 1, 0), (None, 0, 0.5), (None, 0.5, 0), (None, 1, 0)],
    )
    def test_growth_of_the_stream(self, config, core, exponent, growth):
        """At the start, over 9 to 36 applications: the same block again writes much the same, so that the
        sum grows with N·ε; those of unlike blocks grow with √N·ε."""

        tokens = jnp.asarray(np.random.default_rng(0).integers(64, size=(8, 6)))

        def rms(depth):
            scale = dict(loop_exponent=exponent) if core else dict(branch_exponent=exponent)
            fields = config(width=64, vocabulary=64, depth=depth, core=core, **scale)
            x = jax.jit(lambda: Decoder(fields, nnx.Rngs(0)).hidden(tokens))()
            return jnp.sqrt(jnp.square(x).mean())

        np.testing.assert_allclose(np.log(rms(36) / rms(9)) / np.log(4), growth, atol=0.12)

    def test_one_block_has_one_block_s_parameters(self, config):
        blocks = Decoder(config(core=1, depth=5), nnx.Rngs(0)).blocks
        assert {leaf.shape[0] for leaf in jax.tree.leaves(nnx.state(blocks))} == {1}


def test_deepnorm_starts_values_and_mlps_smaller_but_not_queries_and_keys(config):
    """β = (8M)^-¼ = ½ for M = 2 (2203.00555); Xavier's deviation is 1/√width here."""
    fields = dict(width=64, kv_heads=2, depth=2)
    plain, deep = (
        Decoder(config(residual=rule, **fields), nnx.Rngs(0)).blocks[0] for rule in ("post-norm", "deepnorm")
    )
    qkv = deep.mixer.module.qkv.kernel[...]
    q, k, v = np.split(np.asarray(qkv), [64, 64 + 32], axis=-1)
    np.testing.assert_allclose([q.std(), k.std(), v.std()], np.array([1, 1, 0.5]) / 8, rtol=0.03)
    np.testing.assert_allclose(deep.mixer.module.out.kernel[...].std(), 0.5 / 8, rtol=0.03)
    np.testing.assert_allclose(deep.mlp.module.inner.kernel[...].std(), 0.5 / 8, rtol=0.03)
    np.testing.assert_allclose(deep.mlp.module.out.kernel[...].std(), 0.5 / 16, rtol=0.03)
    np.testing.assert_array_equal(plain.mixer.module.qkv.kernel[..., :96], qkv[..., :96])


class TestReconfigured:
    def test_parameters_of_other_shapes_are_refused(self, random_model):
        with pytest.raises(ValueError, match=r"'depth': 3.* parameters of other shapes"):
            reconfigured(random_model(depth=2), depth=3)

    def test_a_config_that_does_not_fit_together_is_refused(self, random_model):
        with pytest.raises(ValueError, match=r"depth 3 is not prelude 0 \+ core 2 x n"):
            reconfigured(random_model(depth=2, core=2), depth=3)
