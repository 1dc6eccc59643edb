"""Decoding with a cache gives what the whole sequence gives, and what it chooses is what it should."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxlayers import generation

MODELS = {
    "mha": dict(positions="learned", bias=True),
    "mqa": dict(kv_heads=1),
    "post-norm": dict(residual="post-norm", kv_heads=2),
    "rolled": dict(depth=9, residual="pre-norm-scaled"),
    "looped": dict(core=2, depth=4),
    "ssm": dict(mixers=("ssm",), state=3, depth=3),
    "sparse": dict(mixers=("sparse",), mlp="sparse", sparse_block=4, bias=True),
    "hybrid": dict(mixers=("attention", "ssm", "sparse"), depth=6, kv_heads=None),
    "hybrid looped": dict(mixers=("ssm", "attention"), core=2, depth=6),
    "gated": dict(gated=True, prelude=1, core=1, coda=1, depth=5),
    "reversible": dict(reversible=True, depth=9),
    "reversible hybrid": dict(
        reversible=True, mixers=("ssm", "sparse"), depth=4, mlp="sparse", sparse_block=4
    ),
}


@pytest.mark.parametrize(
    ("fields", "pieces"),
    [*((fields, (3, 1, 2)) for fields in MODELS.values()), (MODELS["mqa"], (1,) * 6)],
    ids=[*MODELS, "one by one"],
)
def test_cached_logits_are_the_uncached(random_model, tokens, float64, fields, pieces):
    model = random_model(dtype="float64", **fields)

    @jax.jit
    def in_pieces(tokens):
        past, found = generation.empty(model, 2), []
        for piece in jnp.split(tokens, np.cumsum(pieces)[:-1], axis=1):
            logits, past = generation.advance(model, piece, past)
            found.append(logits)
        return jnp.concatenate(found, 1)

    np.testing.assert_allclose(in_pieces(tokens), jax.jit(model.__call__)(tokens), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("reversible", [False, True])
def test_in_float32(random_model, tokens, reversible):
    model = random_model(positions="learned", reversible=reversible)
    past, advance = generation.empty(model, 2), jax.jit(generation.advance)
    for t in range(6):
        logits, past = advance(model, tokens[:, t : t + 1], past)
    expected = model(tokens)[:, -1]
    np.testing.assert_allclose(logits[:, 0], expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(("prompt", "reversible"), [(1, False), (3, False), (3, True)])
def test_greedy_is_the_likeliest_each_time(random_model, tokens, prompt, reversible):
    model = random_model(reversible=reversible)
    sequence = tokens[:, :prompt]
    while sequence.shape[1] < 6:
        sequence = jnp.concatenate([sequence, model(sequence)[:, -1:].argmax(-1)], 1)
    found = generation.generate(model, tokens[:, :prompt], 6 - prompt)
    np.testing.assert_array_equal(found, sequence[:, prompt:])


class TestDraws:
    DRAWS = 4000

    @pytest.mark.parametrize("temperature", [1.0, 2.5])
    def test_follow_the_softmax(self, random_model, temperature):
        """Of the first token, and of the second given the commonest first."""
        model = random_model()
        prompt = jnp.full((self.DRAWS, 1), 7)
        drawn = np.asarray(generation.generate(model, prompt, 2, jax.random.key(0), temperature))

        def expected(*sequence):
            return np.asarray(jax.nn.softmax(model(jnp.array([sequence]))[0, -1] / temperature))

        self.check(drawn[:, 0], expected(7))
        first = np.bincount(drawn[:, 0]).argmax()
        self.check(drawn[drawn[:, 0] == first, 1], expected(7, int(first)))

    def check(self, drawn, expected):
        shares = np.bincount(drawn, minlength=11) / len(drawn)
        errors = np.sqrt(expected * (1 - expected) / len(drawn))
        assert (np.abs(shares - expected) < 4.5 * errors + 1e-9).all()
        assert len(drawn) > 500

    def test_sequences_and_steps_are_drawn_apart(self, random_model):
        """Where every token is as likely as any other, two draws agree in one of 11."""
        model = random_model()
        nnx.update(model, {"unembedding": 0 * model.unembedding[...]})
        drawn = np.asarray(generation.generate(model, jnp.zeros((self.DRAWS, 1), int), 4, jax.random.key(1)))
        for a, b in [(drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1])]:
            np.testing.assert_allclose((a == b).mean(), 1 / 11, atol=0.01)
        again = generation.generate(model, jnp.zeros((self.DRAWS, 1), int), 4, jax.random.key(2))
        np.testing.assert_allclose((drawn == np.asarray(again)).mean(), 1 / 11, atol=0.01)


@pytest.mark.parametrize(
    ("prompt", "arguments", "sentence"),
    [
        (
            np.zeros((1, 3), int),
            dict(count=4),
            "prompt of 3 tokens and count 4: .* at most length 6 together",
        ),
        (np.zeros((1, 0), int), dict(count=4), "prompt of 0 tokens and count 4: give at least one of each"),
        (np.zeros((1, 3), int), dict(count=0), "prompt of 3 tokens and count 0"),
        (np.zeros((1, 3), int), dict(count=1, temperature=0.0), "temperature 0.0 is not positive"),
        (np.full((1, 3), 11), dict(count=1), "tokens holds the id 11"),
    ],
)
def test_what_cannot_be_decoded_is_refused(random_model, prompt, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        generation.generate(random_model(), jnp.asarray(prompt), **arguments)
