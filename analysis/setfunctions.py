"""Set functions: what a model's members are worth together, for any subset of them; higher is better.

- `performance`: minus the cross-entropy read out of the subset's contributions alone, in nats.
- `information`: what the subset's predictions know of the label, in nats.
- `ablation`: minus the cross-entropy of the model run without the other modules, which later ones notice.

Subsets are rows of booleans [M, K]. Up to 16 members all are taken (`..._lattice`: bit k of the index is
member k) and `diagnose` measures submodularity on them; beyond, `chains` says which subsets to sample.
"""

from functools import partial
from typing import Any, Literal, TypeAlias, get_args

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
from analysis.lattice import EXHAUSTIVE, AnyArray, Square, Submodularity, diagnose
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

Renorm: TypeAlias = Literal["recomputed", "frozen"]
CACHE = 1 << 23  # bytes of a tile on a CPU: its cache holds them; larger tiles are slower
BATCH = 256  # subsets of a tile, where there are so many


def all_subsets(members: int) -> Bool[np.ndarray, "M K"]:
    """All 2^K subsets; member k is bit k of the row's number. `ValueError` for more than 16 members."""
    if not 1 <= members <= EXHAUSTIVE:
        raise ValueError(
            f"all 2^K subsets are taken of K = 1 to {EXHAUSTIVE} members, but there are {members}: use "
            "sampled chains (analysis.setfunctions.chains), or a coarser granularity"
        )
    return (np.arange(2**members)[:, None] >> np.arange(members) & 1).astype(bool)


def performance_lattice(
    evidence: Evidence, norm: Renorm = "recomputed", budget: int = BUDGET
) -> Float[np.ndarray, " M"]:
    """`performance` of all M = 2^K subsets on all examples."""
    return performance(evidence, all_subsets(len(evidence.contributions)), norm, budget=budget).mean


def performance(
    evidence: Evidence,
    subsets: Bool[AnyArray, "M K"],
    norm: Renorm = "recomputed",
    folds: int = 1,
    budget: int = BUDGET,
) -> Folds:
    """Minus the mean cross-entropy, in nats, of the read-out of Σ_{k∈S} contributions[k].

    The final norm's statistic is that subset's own (`recomputed`), or stays the full model's (`frozen`). All
    members give the model's performance, none that of the read-out's bias. Whole groups of examples go to the
    folds in turn. `budget` bytes are worked in, beside the result. `ValueError` for arguments out of range.
    """
    members, examples, width = evidence.contributions.shape
    if norm not in get_args(Renorm):
        raise ValueError(f"norm is {norm!r}, but must be 'recomputed' or 'frozen'")
    chosen = jnp.asarray(_checked(subsets, members), float)
    groups = (
        np.arange(examples) if evidence.group is None else np.unique(evidence.group, return_inverse=True)[1]
    )
    fold = in_turn(groups, folds)
    head, bias = jnp.asarray(evidence.head, float), jnp.asarray(evidence.bias, float)
    batch = min(BATCH, len(chosen), max(1, budget // (8 * chosen.itemsize * evidence.classes)))
    bytes_per_example = chosen.itemsize * (
        4 * batch * evidence.classes + members * (4 * width + 3 * evidence.classes)
    )
    sums: Any = 0
    for run in evidence.chunks(bytes_per_example, min(budget, CACHE)):
        epsilon = np.zeros(1) if evidence.epsilon is None else evidence.epsilon[run]
        losses = _fold_losses(
            jnp.asarray(evidence.contributions[:, run], float),
            jnp.asarray(epsilon, float),
            head,
            bias,
            jnp.asarray(evidence.labels[run]),
            jnp.asarray(fold[run], float),
            chosen,
            batch,
            norm == "recomputed" and evidence.norm != "none",
        )
        sums += np.asarray(losses, np.float64)
    return Folds.of_losses(sums, fold.sum(0), chosen.dtype)


@partial(jax.jit, static_argnames=("batch", "renormalised"))
def _fold_losses(
    contributions: Float[Array, "K n D"],
    epsilon: Float[Array, " #n"],
    head: Float[Array, "D C"],
    bias: Float[Array, " C"],
    labels: Int[Array, " n"],
    fold: Float[Array, "n B"],
    subsets: Float[Array, "M K"],
    batch: int,
    renormalised: bool,
) -> Float[Array, "M B"]:
    """The subsets' cross-entropies, summed over the examples of each fold.

    Nothing of width D is summed over subsets: the norm of a sum of members is that of their coordinates in an
    orthonormal basis, which are K numbers each (their Gram matrix would square the cancellation).
    """
    dot = partial(jnp.tensordot, axes=1, precision="highest")
    logits = dot(contributions, head)
    logits -= jnp.take_along_axis(logits, labels[None, :, None], 2)  # the label's are 0
    offset = bias - bias[labels][:, None]
    coordinates = jnp.linalg.qr(jnp.moveaxis(contributions, 0, -1), mode="r")  # [n, min(D, K), K]
    coordinates = jnp.moveaxis(coordinates, -1, 0) * contributions.shape[2] ** -0.5

    def losses(subset):
        z = dot(subset, logits)
        if renormalised:
            square = jnp.square(dot(subset, coordinates)).sum(-1) + epsilon
            z *= (square + 1e-30)[:, None] ** -0.5
        return dot(jax.nn.logsumexp(z + offset, axis=-1), fold)

    return jax.lax.map(losses, subsets, batch_size=batch)


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
    chosen = jnp.asarray(_checked(subsets, len(data.predictions)))
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
    chosen = jnp.asarray(_checked(subsets, 1 + 2 * config.depth), float)
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


def _checked(subsets: AnyArray, members: int) -> Bool[np.ndarray, "M K"]:
    subsets = np.asarray(subsets)
    if subsets.ndim != 2 or subsets.shape[1] != members or not len(subsets) or subsets.dtype != bool:
        raise ValueError(
            f"subsets is {subsets.dtype} of shape {subsets.shape}, but must be booleans of shape "
            f"[M, {members}], a row for each subset"
        )
    return subsets
