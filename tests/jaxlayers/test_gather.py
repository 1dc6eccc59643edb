import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxlayers.modules.gather import gather


def softmax_attention(q, k, v, past):
    """As it is usually written, for autodiff to differentiate."""
    scores = jnp.einsum("btkgd,bskd->bkgts", q, k) / np.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(past, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bkgts,bskd->btkgd", weights, v).reshape(*q.shape[:2], -1)


@pytest.fixture(params=["causal", "after a cache"])
def arguments(request, float64):
    """Three queries a key head; as many positions as keys, or the last two of them."""
    draw = np.random.default_rng(0)
    queries, keys = {"causal": (5, 5), "after a cache": (2, 5)}[request.param]
    q = jnp.asarray(draw.normal(size=(2, queries, 2, 3, 4)))
    k, v = (jnp.asarray(draw.normal(size=(2, keys, 2, 4))) for _ in range(2))
    past = np.arange(keys) <= np.arange(keys - queries, keys)[:, None]
    return q, k, v, jnp.asarray(past)


def test_value_and_gradient_are_those_of_plain_autodiff(arguments):
    *inputs, past = arguments
    weights = np.random.default_rng(1).normal(size=(inputs[0].shape[0], inputs[0].shape[1], 24))

    def of(attention):
        return jax.value_and_grad(lambda *qkv: (weights * jnp.sin(attention(*qkv, past))).sum(), (0, 1, 2))

    found, expected = of(gather)(*inputs), of(softmax_attention)(*inputs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13), found, expected)


def test_gradient_of_scores_that_overflow_an_exponential(arguments):
    """Scores of thousands: the derivative stays finite, and is that of autodiff."""
    q, k, v, past = arguments

    def of(attention):
        return jax.grad(lambda q, k, v: jnp.sin(attention(1e4 * q, k, v, past)).sum(), (0, 1, 2))(q, k, v)

    found, expected = of(gather), of(softmax_attention)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), found, expected)


def test_of_the_scores_one_array_is_kept(arguments):
    """Between the passes: of all arrays queries × keys, one; autodiff of the usual form keeps more."""
    *inputs, past = arguments

    def kept(attention):
        _, pull = jax.vjp(lambda *qkv: attention(*qkv, past), *inputs)
        return sum(leaf.size == past.size * 12 for leaf in jax.tree.leaves(pull))

    assert kept(gather) == 1
    assert kept(softmax_attention) > 1


def test_exponentials_of_bfloat16_are_float32():
    zeros = jnp.zeros((1, 4, 1, 1, 2), jnp.bfloat16)
    past = jnp.ones((4, 4), bool)
    text = str(jax.make_jaxpr(lambda q: gather(q, zeros[:, :, :, 0], zeros[:, :, :, 0], past))(zeros))
    assert "f32[1,1,4,4] = exp" in text
    assert gather(zeros, zeros[:, :, :, 0], zeros[:, :, :, 0], past).dtype == jnp.bfloat16
