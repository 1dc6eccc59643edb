"""A form's parameters under weights on the losses: by least squares, or by Huber's loss of ln L."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

HUBER = 1e-3  # of the residuals of ln L
DESCENTS = 8  # from the best starts of a grid
LANES = 16  # descents at once
STEPS = 500
LARGEST = 300  # |ln parameter|: where the losses leave a parameter open, it runs away


@dataclass(frozen=True)
class Form:
    name: str
    formula: str
    parameters: tuple[str, ...]
    predict: Callable[[Array, Array], Array]  # parameters [P], sizes [X, ...] -> losses [X]
    starts: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    """From sizes and mean losses [X] to parameters [G, P]; None: the form is linear in its parameters."""


def least_squares(
    form: Form,
    x: Float[np.ndarray, "X *V"],
    losses: Float[np.ndarray, "S X"],
    weights: Float[np.ndarray, "*R S X"],
) -> Float[np.ndarray, "*R P"]:
    design = np.asarray(jax.jacobian(form.predict)(jnp.zeros(len(form.parameters)), jnp.asarray(x)))
    scale = np.abs(design).max(0)
    total = weights.sum(-2)
    mean = (weights * losses).sum(-2) / np.where(total > 0, total, 1)
    root = np.sqrt(total)[..., None]
    return (np.linalg.pinv(design / scale * root) @ (mean[..., None] * root))[..., 0] / scale


def huber(
    form: Form,
    x: Float[np.ndarray, "X *V"],
    losses: Float[np.ndarray, "S X"],
    weights: Float[np.ndarray, "2 R S X"],
    starts: Float[np.ndarray, "G P"],
) -> Float[np.ndarray, "2 R P"]:
    """The data, with and without what is held out, from the grid; their resamples from where these ended.

    And from the best three of the grid: an end may be a plateau, such as E near 0, that no descent leaves.
    """
    sizes, logs = jnp.asarray(x), jnp.log(losses)
    grid = np.log(starts)
    values = jax.vmap(partial(_objective, form, sizes, logs, jnp.asarray(weights[0, 0])))(grid)
    grid = grid[np.argsort(values)[:DESCENTS]]

    def lowest(weights: Float[np.ndarray, "W S X"], starts: Float[np.ndarray, "W G P"]) -> np.ndarray:
        each = starts.shape[1]
        lanes = np.repeat(weights, each, 0), starts.reshape(-1, starts.shape[2])
        ends, values = [], []
        for first in range(0, len(lanes[1]), LANES):
            last = np.minimum(np.arange(first, first + LANES), len(lanes[1]) - 1)  # one compilation
            end, value = _descend(sizes, logs, lanes[0][last], lanes[1][last], form)
            ends.append(end)
            values.append(value)
        best = np.nanargmin(np.concatenate(values)[: len(lanes[1])].reshape(-1, each), 1)
        return np.concatenate(ends)[: len(lanes[1])].reshape(starts.shape)[np.arange(len(best)), best]

    whole = lowest(weights[:, 0], np.stack([grid, grid]))
    again = np.stack([np.vstack([end, grid[:3]]) for end in whole])
    resampled = weights[:, 1:].reshape(-1, *losses.shape)
    rest = lowest(resampled, np.repeat(again, weights.shape[1] - 1, 0)).reshape(2, -1, grid.shape[1])
    return np.exp(np.clip(np.concatenate([whole[:, None], rest], 1), -LARGEST, LARGEST))


def _objective(form: Form, x: Array, logs: Array, weight: Array, log_parameters: Array) -> Array:
    residuals = jnp.log(form.predict(jnp.exp(log_parameters), x)) - logs
    return (weight * optax.huber_loss(residuals, delta=HUBER)).sum()


@partial(jax.jit, static_argnames="form")
def _descend(
    x: Float[Array, "X *V"],
    logs: Float[Array, "S X"],
    weights: Float[Array, "L S X"],
    starts: Float[Array, "L P"],
    form: Form,
) -> tuple[Float[Array, "L P"], Float[Array, " L"]]:
    """Where L-BFGS ends from each start under its own weights, and the value there."""
    return jax.vmap(lambda weight, start: _lbfgs(partial(_objective, form, x, logs, weight), start))(
        weights, starts
    )


def _lbfgs(objective: Callable[[Array], Array], start: Float[Array, "P"]) -> tuple[Array, Array]:
    """Down from `start` until the gradient is nothing, or a step gains nothing."""
    solver = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(objective)

    def step(carry):
        at, state, steps, before, _ = carry
        value, slope = value_and_grad(at, state=state)
        update, state = solver.update(slope, state, at, value=value, grad=slope, value_fn=objective)
        return at + update, state, steps + 1, value, (jnp.linalg.norm(slope) > 1e-12) & (value < before)

    def descending(carry):
        *_, steps, _, falling = carry
        return (steps < STEPS) & falling

    begin = start, solver.init(start), 0, jnp.array(jnp.inf), jnp.array(True)
    end, *_ = jax.lax.while_loop(descending, step, begin)
    return end, objective(end)
