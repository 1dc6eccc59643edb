"""What an entropy says of an error rate, and an error rate of an entropy."""

import jax
import jax.numpy as jnp
from jax.scipy.special import entr
from jaxtyping import Array, Float


def fano_bound(conditional_entropy: Float[Array, "*B"], classes: int) -> Float[Array, "*B"]:
    """The least error of a decision Ŷ that leaves H(Y | Ŷ) nats of the label open (Fano 1961).

    The smallest e with h(e) + e ln(classes - 1) ≥ H(Y | Ŷ), by bisection to rounding. The left side rises up
    to e = 1 - 1/classes, where it is ln(classes); a larger entropy, which an estimate may be, gets that e.
    """
    largest = 1 - 1 / classes

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        enough = entr(middle) + entr(1 - middle) + middle * jnp.log(classes - 1) >= conditional_entropy
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    steps = jnp.finfo(conditional_entropy.dtype).nmant + 8
    ends = jnp.zeros_like(conditional_entropy), jnp.full_like(conditional_entropy, largest)
    return jnp.where(conditional_entropy > 0, jax.lax.fori_loop(0, steps, halve, ends)[1], 0)


def hellman_raviv_bound(conditional_entropy: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """The most error of the best decision from O, given H(Y | O) in nats: half of it in bits (1970)."""
    return conditional_entropy / (2 * jnp.log(2))
