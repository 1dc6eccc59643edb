"""Reversible residual pairs (Gomez et al. 2017, 1707.04585): depth costs no memory for activations."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Shaped

Arrays = tuple[Float[Array, "*S"], Float[Array, "*S"]]
Step = Callable[[Any, Any, Arrays], Arrays]  # parameters, constants, (x, y) -> (y, x + what it writes)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def reversible(
    steps: tuple[Step, ...],
    parameters: tuple[PyTree[Float[Array, "L ..."]], ...],
    constants: PyTree[Shaped[Array, "L ..."]],
    pair: Arrays,
) -> Arrays:
    """L blocks of M steps in turn, each (x, y) ← (y, x + what it writes for y).

    The gradient stores the last pair alone: a step of (0, y) gives what was written, and x is what is left
    without it. In floating point x comes back but for the rounding of the sum.

    Args:
        steps: pure functions, which close over no array.
        parameters: for each step, with a leading axis over blocks.
        constants: what all steps of a block are given and is not differentiated, such as random keys.
        pair: the two streams, of one shape.
    """

    def block(pair: Arrays, each: tuple) -> tuple[Arrays, None]:
        parameters, constants = each
        for step, own in zip(steps, parameters, strict=True):
            pair = step(own, constants, pair)
        return pair, None

    return jax.lax.scan(block, pair, (parameters, constants))[0]


def forward(steps, parameters, constants, pair):
    end = reversible(steps, parameters, constants, pair)
    return end, (parameters, constants, end)


def backward(steps, saved, cotangents):
    parameters, constants, end = saved

    def block(carry, each):
        (y, z), cotangents = carry
        parameters, constants = each
        gradients: list[PyTree] = []
        for step, own in reversed(list(zip(steps, parameters, strict=True))):
            (_, written), pull = jax.vjp(
                lambda own, pair, step=step: step(own, constants, pair), own, (jnp.zeros_like(y), y)
            )
            gradient, cotangents = pull(cotangents)
            y, z = z - written, y
            gradients.insert(0, gradient)
        return ((y, z), cotangents), tuple(gradients)

    start = end, cotangents
    (_, cotangents), gradients = jax.lax.scan(block, start, (parameters, constants), reverse=True)
    return gradients, None, cotangents


reversible.defvjp(forward, backward)
