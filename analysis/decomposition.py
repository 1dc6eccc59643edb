"""Loss = bias - diversity, exactly: what the members' own losses make of the ensemble's.

With predictions f_k, weights w that sum to 1 and the ensemble z = Σ_k w_k f_k, any loss of the form
ℓ(y, z) = A(z) - ⟨y, z⟩ + const(y) with A convex obeys

    ℓ(y, z)  =  Σ_k w_k ℓ(y, f_k)  -  Σ_k w_k B(f_k ‖ z)            loss = bias - diversity,

B being A's Bregman divergence, whose linear term cancels in the sum (Krogh & Vedelsby 1995 for squares;
Wood et al. 2023, arXiv 2301.03962, in general). `streaming` holds the losses. Nothing is averaged over
examples. Under `jax.enable_x64` everything is computed in float64, else in float32.

A model's members are what its modules contribute: f_k = K · member_logits[k] + bias has the mean
`logits`, and the read-out's bias whole (the *shared* gauge; another moves bias and diversity alike).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int

from analysis.arguments import (
    AnyArray,
    Result,
    check_potential,
    check_targets,
    check_weights,
    checked,
    finite,
)
from analysis.evidence import BUDGET, Evidence, renormalise
from analysis.streaming import LARGEST, POTENTIALS, Choice, Loss, Potential, ReadOut, block_size, stream

Reading: TypeAlias = Literal["contribution", "prefix", "solo"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Decomposition:
    """Of K members' losses over N examples: nats, squares, or errors."""

    ensemble_loss: Float[Array, "*S N"]
    member_loss: Float[Array, "*S K N"]
    member_diversity: Float[Array, "*S K N"]  # B(f_k ‖ z); of errors: the member's less the ensemble's
    bias: Float[Array, "*S N"]  # the weighted mean of member_loss
    diversity: Float[Array, "*S N"]  # the weighted mean of member_diversity

    @property
    def ratio(self) -> Float[Array, "*S N"]:
        """ρ = diversity / bias, at most 1; unlike the two it does not grow with K. Zero without bias."""
        return jnp.where(self.bias == 0, 0, self.diversity / jnp.where(self.bias == 0, 1, self.bias))

    @property
    def residual(self) -> Float[Array, "*S N"]:
        """Loss - (bias - diversity): what rounding leaves of the identity."""
        return self.ensemble_loss - (self.bias - self.diversity)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Hierarchy:
    """Diversity in two steps, of members within G groups and of the groups' means.

    Σ_g weights[g] · within[g] + groups.diversity is the diversity of all members, whatever A is.
    """

    groups: Decomposition  # of the groups' means, G members
    within: Float[Array, "G N"]  # of a group's members about its mean
    weights: Float[Array, " G"]


def mean_form(
    member_logits: Float[AnyArray, "K N C"],
    bias: Float[AnyArray, " C"],
    weights: Float[AnyArray, " K"] | None = None,
) -> Float[Array, "K N C"]:
    """Predictions f_k = member_logits[k] / w_k + bias, whose weighted mean is Σ_k member_logits[k] + bias."""
    share = check_weights(weights, len(member_logits), positive=True)
    return jnp.asarray(member_logits) / share[:, None, None] + jnp.asarray(bias)


def decompose(
    member_logits: Float[AnyArray, "K N C"],
    targets: Int[AnyArray, " N"] | Float[AnyArray, "N C"],
    loss: Loss = "cross_entropy",
    weights: Float[AnyArray, " K"] | None = None,
) -> Decomposition:
    """The loss of z = Σ_k w_k f_k, taken apart. `member_logits` are the f_k: in mean form (`mean_form`).

    `targets` are labels, or real values for "squared", or distributions for "cross_entropy". "zero_one"
    is the error of argmax z; "majority_vote" that of the members' weighted vote, ties going to the lowest
    class. Weights are uniform unless given. `ValueError` says which argument is unusable and why.
    """
    f, t, w = checked(member_logits, targets, loss, weights)
    block = block_size(len(f) + 1, f.shape[2], BUDGET)
    return finite(decompose_rows(f, None, t, w, block, loss), "member_logits")


def hierarchy(
    member_logits: Float[AnyArray, "K N C"],
    targets: Int[AnyArray, " N"] | Float[AnyArray, "N C"],
    groups: Sequence[int],
    loss: Potential = "cross_entropy",
    weights: Float[AnyArray, " K"] | None = None,
) -> Hierarchy:
    """`decompose` with its diversity split at a partition: member k is in group `groups[k]`.

    G groups, in the order of their numbers.
    """
    f, t, w = checked(member_logits, targets, loss, weights)
    partition = _partition(groups, w, loss)
    block = block_size(2 * len(f), f.shape[2], BUDGET)
    whole, within = finite(_hierarchy_rows(f, None, t, w, block, loss, **partition), "member_logits")
    return Hierarchy(whole, within, partition["group_weights"])


def decompose_evidence(
    evidence: Evidence,
    loss: Loss = "cross_entropy",
    reading: Reading = "contribution",
    weights: Float[AnyArray, " K"] | None = None,
    budget: int = BUDGET,
) -> Decomposition:
    """`decompose` for a model, streamed over examples and classes in about `budget` bytes.

    The members' predictions are, through the read-out with its bias, by `reading`:
    "contribution": contribution k divided by w_k; their ensemble is the model.
    "prefix": the stream after member k, by a norm of its own (the logit lens).
    "solo": contribution k, by a norm of its own.
    Of the last two the ensemble is not the model: the identity holds for the ensemble that they form.
    "squared" takes the evidence's targets if it has them, and all else its labels.
    """
    core = partial(decompose_rows, loss=loss)
    return _streamed(core, len(evidence.members) + 1, evidence, loss, reading, weights, budget)


def hierarchy_evidence(
    evidence: Evidence,
    loss: Potential = "cross_entropy",
    reading: Reading = "contribution",
    weights: Float[AnyArray, " K"] | None = None,
    budget: int = BUDGET,
) -> Hierarchy:
    """`hierarchy` for a model, streamed likewise; its blocks are the groups, the embedding one of them."""
    w = check_weights(weights, len(evidence.members))
    partition = _partition([member.block for member in evidence.members], w, loss)
    core = partial(_hierarchy_rows, loss=loss, **partition)
    whole, within = _streamed(core, 2 * len(evidence.members), evidence, loss, reading, weights, budget)
    return Hierarchy(whole, within, partition["group_weights"])


def prefix_losses(evidence: Evidence, budget: int = BUDGET) -> Float[Array, "K N"]:
    """Cross-entropy of the logit lens after every member, in nats. The last row is the model's loss."""
    return decompose_evidence(evidence, reading="prefix", budget=budget).member_loss


def predictions(
    evidence: Evidence,
    reading: Reading = "contribution",
    weights: Float[AnyArray, " K"] | None = None,
    budget: int = BUDGET,
) -> tuple[Int[Array, "K N"], Int[Array, " N"]]:
    """The class that every member of `decompose_evidence` predicts, and the one that they do together."""
    members, ensemble = _streamed(
        _choose, len(evidence.members) + 1, evidence, "zero_one", reading, weights, budget
    )
    return members.label, ensemble.label[0]


@partial(jax.jit, static_argnames=("block", "loss"))
def decompose_rows(
    rows: Float[Array, "K N D"],
    read_out: ReadOut,
    targets: Int[Array, " N"] | Float[Array, "N C"],
    weights: Float[Array, " K"],
    block: tuple[int, int],
    loss: Loss,
) -> Decomposition:
    """`decompose` for predictions rows @ head + bias; without a read-out the rows themselves."""
    if loss in POTENTIALS:
        mean = mix(weights[None], rows)
        sums = stream(POTENTIALS[loss], rows, mean, read_out, targets, block)
        member_loss, diversity, ensemble_loss = sums.loss, sums.divergence, sums.reference_loss[0]
    else:
        members, ensemble = _choose(rows, read_out, targets, weights, block)
        vote = _vote(members.label, weights) if loss == "majority_vote" else ensemble.label[0]
        nothing = 0 * members.logit  # or NaN, which is passed on
        member_loss = (members.label != targets) + nothing
        ensemble_loss = (vote != targets) + nothing[0]
        diversity = member_loss - ensemble_loss
    return Decomposition(
        ensemble_loss,
        member_loss,
        diversity,
        weighted_mean(weights, member_loss),
        weighted_mean(weights, diversity),
    )


@partial(jax.jit, static_argnames=("block", "loss"))
def _hierarchy_rows(
    rows: Float[Array, "K N D"],
    read_out: ReadOut,
    targets: Int[Array, " N"] | Float[Array, "N C"],
    weights: Float[Array, " K"],
    block: tuple[int, int],
    loss: Potential,
    group: Int[Array, " K"],
    shares: Float[Array, "G K"],
    group_weights: Float[Array, " G"],
) -> tuple[Decomposition, Float[Array, "G N"]]:
    """The groups' means taken apart, and the diversity within each group about its mean."""
    means = mix(shares, rows)
    within = stream(POTENTIALS[loss], rows, means[group], read_out, targets, block).divergence
    whole = decompose_rows(means, read_out, targets, group_weights, block, loss)
    return whole, mix(shares, within)


@partial(jax.jit, static_argnames="block")
def _choose(
    rows: Float[Array, "K N D"],
    read_out: ReadOut,
    targets: Int[Array, " N"],
    weights: Float[Array, " K"],
    block: tuple[int, int],
) -> tuple[Choice, Choice]:
    """The largest logit of every member and of their weighted mean."""
    return stream(LARGEST, rows, mix(weights[None], rows), read_out, targets, block)


def _streamed(
    core: Callable[..., Any],
    predictions: int,
    evidence: Evidence,
    loss: Loss,
    reading: Reading,
    weights: Float[AnyArray, " K"] | None,
    budget: int,
) -> Any:
    """What `core` makes of a model's rows, a run of examples at a time.

    Half of the budget is for the rows, half for the logits of `predictions` at once.
    """
    members, examples, width = evidence.contributions.shape
    w = check_weights(weights, members, positive=reading == "contribution")
    targets = evidence.labels if loss != "squared" or evidence.targets is None else evidence.targets
    check_targets(targets, examples, evidence.classes, loss)
    read_out = jnp.asarray(evidence.head, float), jnp.asarray(evidence.bias, float)
    block = block_size(predictions, evidence.classes, budget // 2)

    def of_run(run: slice) -> Any:
        return core(read_rows(evidence, run, w, reading), read_out, jnp.asarray(targets[run]), w, block)

    return by_runs(of_run, examples, budget // 2 // (4 * members * width * w.dtype.itemsize))


def by_runs(of_run: Callable[[slice], Result], examples: int, size: int) -> Result:
    """What `of_run` says of every run of so many examples, put together along the last axis.

    The runs are of equal length, so that it is compiled once; the last one overlaps the one before. They
    share the examples out evenly: of 512 by 477, the second run of 477 would repeat most of the first.
    """
    size = -(-examples // -(-examples // max(1, size)))
    results: list[np.ndarray] = []
    for start in range(0, examples, size):
        run = slice(min(start, examples - size), min(start + size, examples))
        parts, structure = jax.tree.flatten(of_run(run))
        results = results or [np.empty((*part.shape[:-1], examples), part.dtype) for part in parts]
        for result, part in zip(results, parts, strict=True):
            result[..., run] = part
    return finite(jax.tree.unflatten(structure, [jnp.asarray(result) for result in results]), "evidence")


def read_rows(
    evidence: Evidence, run: slice, weights: Float[Array, " K"], reading: Reading
) -> Float[Array, "K n D"]:
    """What goes into the read-out for every member's prediction of a run of examples."""
    if reading not in get_args(Reading):
        raise ValueError(f"reading is {reading!r}, but must be one of {', '.join(get_args(Reading))}")
    contributions = jnp.asarray(evidence.contributions[:, run], float)
    epsilon = jnp.zeros(1) if evidence.epsilon is None else jnp.asarray(evidence.epsilon[run], float)
    return _read(contributions, epsilon, weights, evidence.norm, reading)


@partial(jax.jit, static_argnames=("norm", "reading"))
def _read(
    contributions: Float[Array, "K n D"],
    epsilon: Float[Array, " n"] | Float[Array, " 1"],
    weights: Float[Array, " K"],
    norm: str,
    reading: Reading,
) -> Float[Array, "K n D"]:
    if reading == "contribution":
        return contributions / weights[:, None, None]
    stream = jnp.cumsum(contributions, 0) if reading == "prefix" else contributions
    return renormalise(stream, norm, epsilon)


def mix(shares: Float[Array, "G K"], rows: Float[Array, "K ..."]) -> Float[Array, "G ..."]:
    """Weighted sums of members, G of them."""
    return jnp.tensordot(shares, rows, 1, precision="highest")


def weighted_mean(weights: Float[Array, " K"], terms: Float[Array, "K N"]) -> Float[Array, " N"]:
    """Σ_k w_k x_k, compensated (Neumaier 1974): bias and diversity are large, their difference is small."""

    def add(carry: tuple[Array, Array], term: Array) -> tuple[tuple[Array, Array], None]:
        total, lost = carry
        new = total + term
        larger, smaller = (
            jnp.where(abs(total) < abs(term), *pair) for pair in ((term, total), (total, term))
        )
        return (new, lost + ((larger - new) + smaller)), None

    start = jnp.zeros_like(terms[0])
    (total, lost), _ = lax.scan(add, (start, start), weights[:, None] * terms)
    return total + lost


def _vote(choices: Int[Array, "K N"], weights: Float[Array, " K"]) -> Int[Array, " N"]:
    """The class with most of the weight, the lowest of several."""
    votes = lax.map(lambda choice: weights @ (choices == choice).astype(weights.dtype), choices)
    winning = votes > votes.max(0) - 1e-5  # a tie, but for rounding
    return jnp.where(winning, choices, jnp.iinfo(choices.dtype).max).min(0)


def _partition(groups: Sequence[int], weights: Float[Array, " K"], loss: Loss) -> dict[str, Array]:
    """Each member's group, counted from 0; its share of the group's weight; the weight of the group."""
    check_potential(loss)
    if len(groups) != len(weights):
        raise ValueError(f"groups names {len(groups)} groups for {len(weights)} members: give one each")
    numbers, group = np.unique(np.asarray(groups), return_inverse=True)
    shares = np.asarray(weights, np.float64) * (group == np.arange(len(numbers))[:, None])
    total = shares.sum(1)
    if not total.all():
        raise ValueError(f"group {numbers[total.argmin()]} has no weight: leave its members out")
    shares, total = shares / total[:, None], total / total.sum()
    dtype = weights.dtype
    return {
        "group": jnp.asarray(group),
        "shares": jnp.asarray(shares, dtype),
        "group_weights": jnp.asarray(total, dtype),
    }
