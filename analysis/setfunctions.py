"""Set functions: what a model's members are worth together, for any subset of them; higher is better.

- `performance`: minus the cross-entropy read out of the subset's contributions alone, in nats.
- `information`: what the subset's predictions know of the label, in nats.
- `ablation`: minus the cross-entropy of the model run without the other modules, which later ones notice.

Subsets are rows of booleans [M, K]. Up to 16 members all are taken (`..._lattice`: bit k of the index is
member k) and `diagnose` measures submodularity on them; beyond, `chains` says which subsets to sample.
"""

from functools import partial
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from analysis.chains import Chains, Sampled, chains, greedy
from analysis.entropy import CountEstimator, joint_information, pattern_ids
from analysis.evidence import BUDGET, Evidence
from analysis.folds import Folds, in_turn
from analysis.lattice import (
    EXHAUSTIVE,
    AnyArray,
    Square,
    Submodularity,
    all_subsets,
    checked_subsets,
    diagnose,
)
from analysis.performance import Renorm, performance
from analysis.sample import sample
from jaxlayers import Decoder

__all__ = [
    "EXHAUSTIVE",
    "Chains",
    "Folds",
    "Sampled",
    "Square",
    "Submodularity",
    "ablation",
    "ablation_lattice",
    "all_subsets",
    "chains",
    "diagnose",
    "greedy",
    "information",
    "information_lattice",
    "performance",
    "performance_lattice",
]


def performance_lattice(
    evidence: Evidence, norm: Renorm = "recomputed", budget: int = BUDGET
) -> Float[np.ndarray, " M"]:
    """`performance` of all M = 2^K subsets on all examples."""
    return performance(evidence, all_subsets(len(evidence.contributions)), norm, budget=budget).mean


def information_lattice(
    member_predictions: ArrayLike,
    labels: ArrayLike,
    classes: int,
    estimator: CountEstimator = "miller_madow",
) -> Float[np.ndarray, " M"]:
    """`information` of all M = 2^K subsets."""
    return information(
        member_predictions, labels, classes, all_subsets(len(np.asarray(member_predictions))), estimator
    )


def information(
    member_predictions: ArrayLike,
    labels: ArrayLike,
    classes: int,
    subsets: Bool[AnyArray, "M K"],
    estimator: CountEstimator = "miller_madow",
) -> Float[np.ndarray, " M"]:
    """I(O_S; Y) in nats, of the predictions [K, N] of the members in S about the labels [N].

    Estimated from the counts of joint patterns. A larger set shows more patterns, so what bias the estimator
    has grows along a chain: hold it against `analysis.information`'s null. `ValueError` for bad arguments.
    """
    if estimator not in get_args(CountEstimator):
        raise ValueError(
            f"estimator is {estimator!r}, but must be one of {', '.join(get_args(CountEstimator))}"
        )
    data = sample(member_predictions, labels, classes, None)
    chosen = jnp.asarray(checked_subsets(subsets, len(data.predictions)))
    return np.asarray(_informations(data.predictions, data.labels, chosen, classes, estimator))


@partial(jax.jit, static_argnames=("classes", "estimator"))
def _informations(
    predictions: Int[Array, "K N"],
    labels: Int[Array, " N"],
    subsets: Bool[Array, "M K"],
    classes: int,
    estimator: CountEstimator,
) -> Float[Array, " M"]:
    def of_subset(subset):
        ids = pattern_ids(jnp.where(subset[:, None], predictions, 0), classes)
        return joint_information(ids, labels, classes, estimator)

    return jax.lax.map(of_subset, subsets)


def ablation_lattice(
    model: Decoder,
    tokens: Int[AnyArray, "N T"],
    labels: Int[AnyArray, "N T"],
    weights: Float[AnyArray, "N T"],
    classes: int,
    budget: int = BUDGET,
) -> Float[np.ndarray, " M"]:
    """`ablation` of all M = 2^(1 + 2L) subsets of the modules."""
    subsets = all_subsets(1 + 2 * model.config.depth)
    return ablation(model, tokens, labels, weights, classes, subsets, budget=budget).mean


def ablation(
    model: Decoder,
    tokens: Int[AnyArray, "N T"],
    labels: Int[AnyArray, "N T"],
    weights: Float[AnyArray, "N T"],
    classes: int,
    subsets: Bool[AnyArray, "M K"],
    folds: int = 1,
    budget: int = BUDGET,
) -> Folds:
    """Minus the mean cross-entropy, in nats, of the model run without the modules outside S.

    The modules are the embedding, attention 0, MLP 0, attention 1, … (K = 1 + 2L). Positions count by their
    weights; the first `classes` logits make the prediction. Sequences go to the folds in turn. Each subset
    costs a forward pass. `budget` bytes are worked in, beside the result. `ValueError` for bad arguments.
    """
    config = model.config
    chosen = jnp.asarray(checked_subsets(subsets, 1 + 2 * config.depth), float)
    tokens, labels, weights = np.asarray(tokens), np.asarray(labels), np.asarray(weights)
    if not tokens.shape == labels.shape == weights.shape:
        raise ValueError(
            f"tokens, labels and weights have shapes {tokens.shape}, {labels.shape} and {weights.shape}, "
            "but must have the same"
        )
    counted = labels[weights != 0]
    if counted.size == 0 or counted.min() < 0 or counted.max() >= classes:
        raise ValueError(
            f"labels that count must lie in 0 to {classes - 1} (classes is {classes}), and some must count"
        )
    sequences, length = tokens.shape
    fold = in_turn(np.arange(sequences), folds)
    graph, state = nnx.split(model)
    per_position = 3 * classes + 8 * config.width + 3 * config.hidden + 3 * config.heads * length
    size = max(1, budget // (chosen.itemsize * length * per_position))
    sums: Any = 0
    for start in range(0, sequences, size):
        run = slice(start, start + size)
        batch = (jnp.asarray(x[run]) for x in (tokens, np.where(weights != 0, labels, 0)))
        losses = _run_losses(
            graph, state, *batch, jnp.asarray(weights[run], float), jnp.asarray(fold[run]), chosen, classes
        )
        sums += np.asarray(losses, np.float64)
    return Folds.of_losses(sums, weights.sum(1) @ fold, chosen.dtype)


@partial(jax.jit, static_argnames=("graph", "classes"))
def _run_losses(
    graph: Any,
    state: Any,
    tokens: Int[Array, "n T"],
    labels: Int[Array, "n T"],
    weights: Float[Array, "n T"],
    fold: Float[Array, "n B"],
    subsets: Float[Array, "M K"],
    classes: int,
) -> Float[Array, "M B"]:
    model = nnx.merge(graph, state)

    def losses(keep):
        z = model.read_out(model.hidden(tokens, keep), classes)
        at_label = jnp.take_along_axis(z, labels[..., None], -1)[..., 0]
        return ((jax.nn.logsumexp(z, axis=-1) - at_label) * weights).sum(1) @ fold

    return jax.lax.map(losses, subsets)
