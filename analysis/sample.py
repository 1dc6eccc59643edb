"""Labelled predictions, checked: what every function of information starts from."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Int


@dataclass(frozen=True)
class Sample:
    """The examples in the order of their groups, which are numbered 0..groups-1."""

    predictions: Int[Array, "K N"]
    labels: Int[Array, "N"]
    group: Int[Array, "N"]
    groups: int
    decisions: Int[Array, "N"]  # the ensemble's predictions


def sample(
    member_predictions: ArrayLike,
    labels: ArrayLike,
    classes: int,
    group: ArrayLike | None,
    ensemble_predictions: ArrayLike | None = None,
) -> Sample:
    """Raises ValueError unless [K, N] predictions, [N] labels and [N] groups make a sample of `classes`."""
    if classes < 2:
        raise ValueError(f"classes is {classes}, but must be at least 2: one class leaves nothing to predict")
    labels = _integers("labels", labels, 1)
    examples = labels.size
    if examples < 2:
        raise ValueError(f"labels has {examples} example(s), but must have at least 2 for an entropy")
    if examples * classes >= 2**31:
        raise ValueError(
            f"classes is {classes}, but with {examples} examples must stay below {2**31 // examples}: "
            "take fewer examples, or merge rare classes"
        )
    given = {"labels": labels, "member_predictions": _integers("member_predictions", member_predictions, 2)}
    if ensemble_predictions is not None:
        given["ensemble_predictions"] = _integers("ensemble_predictions", ensemble_predictions, 1)
    groups = np.arange(examples) if group is None else _integers("group", group, 1)
    for name, array in {**given, "group": groups}.items():
        if array.shape[-1] != examples:
            raise ValueError(
                f"{name} has {array.shape[-1]} examples, but labels has {examples}: give one each"
            )
    if given["member_predictions"].shape[0] == 0:
        raise ValueError("member_predictions has no members, but must have at least one")
    for name, array in given.items():
        outside = (array < 0) | (array >= classes)
        if outside.any():
            raise ValueError(
                f"{name} holds {array[outside][0]}, but must hold classes 0 to {classes - 1}: "
                "leave such examples out, or change classes"
            )
    names, numbered = np.unique(groups, return_inverse=True)
    if names.size < 2:
        raise ValueError("group holds one group, but must hold at least 2 for an interval")
    order = np.argsort(numbered, kind="stable")
    ordered = {name: jnp.asarray(array[..., order], jnp.int32) for name, array in given.items()}
    return Sample(
        ordered["member_predictions"],
        ordered["labels"],
        jnp.asarray(numbered[order], jnp.int32),
        int(names.size),
        ordered.get("ensemble_predictions", ordered["labels"]),
    )


def _integers(name: str, value: ArrayLike, axes: int) -> np.ndarray:
    array = np.asarray(value)
    if array.ndim != axes or not np.issubdtype(array.dtype, np.integer):
        wanted = "[K, N]" if axes == 2 else "[N]"
        raise ValueError(
            f"{name} is {array.dtype} of shape {array.shape}, but must be integers of shape {wanted}"
        )
    return array
