"""What the decompositions ask of their arguments; checked on the host, before anything is compiled."""

from typing import TypeAlias, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from analysis.streaming import POTENTIALS, Loss

AnyArray: TypeAlias = Array | np.ndarray
Result = TypeVar("Result")


def checked(
    member_logits: Float[AnyArray, "K N C"],
    targets: Int[AnyArray, " N"] | Float[AnyArray, "N C"],
    loss: Loss,
    weights: Float[AnyArray, " K"] | None,
) -> tuple[Float[Array, "K N C"], Int[Array, " N"] | Float[Array, "N C"], Float[Array, " K"]]:
    """The arguments as arrays of one type, float32 at least. `ValueError` for what cannot be used."""
    if np.ndim(member_logits) != 3 or 0 in np.shape(member_logits):
        raise ValueError(
            f"member_logits has shape {np.shape(member_logits)}, but must be [members, examples, classes]"
            " with at least one of each"
        )
    members, examples, classes = np.shape(member_logits)
    check_targets(targets, examples, classes, loss)
    f = jnp.asarray(member_logits)
    f = f.astype(jnp.promote_types(f.dtype, jnp.float32))
    t = jnp.asarray(targets)
    w = check_weights(weights, members).astype(f.dtype)
    return f, t if t.ndim == 1 else t.astype(f.dtype), w


def check_weights(
    weights: Float[AnyArray, " K"] | None, members: int, positive: bool = False
) -> Float[Array, " K"]:
    """The weights, uniform if none. `ValueError` unless they are K, sum to 1 and none is negative (or 0)."""
    w = np.full(members, 1 / members) if weights is None else np.asarray(weights, np.float64)
    if w.shape != (members,):
        raise ValueError(
            f"weights has shape {w.shape}, but there are {members} members: give one weight each"
        )
    if not abs(w.sum() - 1) < 1e-6:
        raise ValueError(f"weights sum to {w.sum():.8g}, but must sum to 1: divide them by their sum")
    if w.min() < 0 or (positive and w.min() == 0):
        raise ValueError(
            f"weights holds {w.min():.4g} for member {w.argmin()}, but must be "
            f"{'positive, since contributions are divided by them' if positive else 'zero or more'}"
        )
    return jnp.asarray(w / w.sum(), float)


def check_targets(targets: AnyArray, examples: int, classes: int, loss: Loss) -> None:
    if loss not in get_args(Loss):
        raise ValueError(f"loss is {loss!r}, but must be one of {', '.join(get_args(Loss))}")
    t = np.asarray(targets)
    if t.dtype.kind in "iu" and t.shape == (examples,):
        if t.min() < 0 or t.max() >= classes:
            raise ValueError(
                f"targets runs from {t.min()} to {t.max()}, but there are {classes} classes: "
                f"labels must lie in 0 to {classes - 1}"
            )
        return
    if loss not in POTENTIALS or t.dtype.kind != "f" or t.shape != (examples, classes):
        soft = f", or real numbers of shape {(examples, classes)}" if loss in POTENTIALS else ""
        raise ValueError(
            f"targets is {t.dtype} of shape {t.shape}, but for {loss} must be integer labels of shape "
            f"{(examples,)}{soft}"
        )
    if not np.isfinite(t).all():
        raise ValueError("targets holds NaN or infinite values: leave such examples out")
    if loss == "cross_entropy" and (t.min() < 0 or (abs(t.sum(1) - 1) > 1e-4).any()):
        worst = int(np.argmax(abs(t.sum(1) - 1)))
        raise ValueError(
            f"targets must be distributions for the cross-entropy, none negative, each summing to 1, but "
            f"the least is {t.min():.4g} and those of example {worst} sum to {t[worst].sum():.6g}"
        )


def check_potential(loss: Loss) -> None:
    if loss not in POTENTIALS:
        raise ValueError(f"loss is {loss!r}, but must have a potential: give {' or '.join(POTENTIALS)}")


def finite(result: Result, argument: str) -> Result:
    """The result, its arrays' last axis being examples; `ValueError` if NaN or infinity has got into it."""
    for leaf in jax.tree.leaves(result):
        spoilt = ~np.isfinite(leaf).reshape(-1, leaf.shape[-1]).all(0)
        if spoilt.any():
            raise ValueError(
                f"{argument} holds NaN or infinite values at example {spoilt.argmax()}; leave it out"
            )
    return result
