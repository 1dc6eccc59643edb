"""Reversible residual pairs (Gomez et al. 2017, 1707.04585): depth costs no memory for activations."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jaxtyping import Array, Float, Key, PyTree

Module = Callable[[Any, jax.Array, jax.Array | None], jax.Array]  # parameters, x, key -> what it writes
Pair = tuple[Float[Array, "*S"], Float[Array, "*S"]]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def reversible(
    modules: tuple[Module, ...],
    parameters: tuple[PyTree[Float[Array, "L ..."]], ...],
    keys: Key[Array, "L M"] | None,
    pair: Pair,
) -> Pair:
    """L blocks of M modules in turn, each (x, y) ← (y, x + module(parameters, y, key)).

    With modules f and g that is x ← x + f(y), y ← y + g(x). The gradient recomputes each input from the
    output, x = (x + module(y)) - module(y), with the same key, and so stores the last pair alone. In floating
    point the recomputed inputs are off by the rounding of their sums, so the pair should not be bfloat16.

    Args:
        modules: pure functions of their own parameters, which close over no array that is differentiated.
        parameters: for each module, with a leading axis over blocks.
        keys: one for each application; none: the modules are given None.
        pair: the two streams, of one shape.
    """

    def block(pair: Pair, each: tuple) -> tuple[Pair, None]:
        parameters, keys = each
        for i, module in enumerate(modules):
            x, y = pair
            pair = y, x + module(parameters[i], y, None if keys is None else keys[i])
        return pair, None

    return jax.lax.scan(block, pair, (parameters, keys))[0]


def forward(modules, parameters, keys, pair):
    end = reversible(modules, parameters, keys, pair)
    return end, (parameters, keys, end)


def backward(modules, saved, cotangents):
    parameters, keys, end = saved

    def block(carry, each):
        (x, y), (dx, dy) = carry
        parameters, keys = each
        gradients: list[PyTree] = []
        for i, module in reversed(list(enumerate(modules))):
            apply = partial(module, key=None if keys is None else keys[i])
            written, pull = jax.vjp(lambda own, x, apply=apply: apply(own, x), parameters[i], x)
            gradient, through = pull(dy)
            x, y = y - written, x
            dx, dy = dy, dx + through
            gradients.insert(0, gradient)
        return ((x, y), (dx, dy)), tuple(gradients)

    (_, cotangents), gradients = jax.lax.scan(block, (end, cotangents), (parameters, keys), reverse=True)
    return gradients, None, cotangents


reversible.defvjp(forward, backward)
