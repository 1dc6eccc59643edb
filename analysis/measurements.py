"""What is kept of one trained model: all that the verdicts and the report need, in a small file.

Per-example arrays stay per example; every other number is an `Estimate`, whose error is over groups of
examples (the sequences they are from).
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from safetensors import safe_open
from safetensors.numpy import save_file

from analysis.bounds import fano_bound
from analysis.decomposition import decompose_evidence, hierarchy_evidence, predictions, prefix_losses
from analysis.entropy import surprises
from analysis.evidence import BUDGET, PROVENANCE, Evidence, Member
from analysis.information import Terms, information
from analysis.redundancy import pairwise_maps, prefixes
from analysis.setfunctions import EXHAUSTIVE, all_subsets, chains, diagnose, greedy, performance
from analysis.statistics import Estimate, clustered_mean
from analysis.streaming import Loss
from jaxlayers.refusal import Refusal

VERSION = "1"
FOLDS = 8  # parts of the examples, left out one at a time for the errors of the set function
Table: TypeAlias = dict[str, dict[str, Estimate]]


@dataclass(frozen=True, eq=False)
class Measurements:
    """Of a model with K members, on N examples. Losses and information in nats, cross-entropy unless said."""

    task: str
    architecture: str
    depth: int
    seed: int
    parameters: int
    training_flops: float
    regulariser: float  # λ of training on cross-entropy - λ · diversity
    update: float  # how far training moved the final norm's output, root mean square; 0: not said
    config_hash: str
    members: tuple[Member, ...]
    classes: int

    group: Int[np.ndarray, " N"]
    correct: Bool[np.ndarray, " N"]
    loss: Float[np.ndarray, " N"]  # the model's own where the evidence has it
    bias: Float[np.ndarray, " N"]
    diversity: Float[np.ndarray, " N"]

    accuracy: Estimate
    splits: Table  # splits[loss]: loss, bias, diversity
    member_loss: Estimate  # [K], as are all of a member
    member_diversity: Estimate
    member_accuracy: Estimate
    prefix_loss: Estimate  # the logit lens after each member
    within_blocks: Estimate  # diversity of the members of a block about their mean, and ...
    between_blocks: Estimate  # ... of the blocks' means: together all diversity

    information_classes: int  # the commonest labels, and the rest as one: what the examples can tell apart
    information: Table  # information[estimator]: the terms of `analysis.information`
    saturated: dict[str, bool]  # by estimator: draw no conclusions
    redundancy_map: Estimate  # [K, K] I(O_i; O_j); on the diagonal H(O_i)
    conditional_redundancy_map: Estimate  # ... given the label
    prefix_redundancy: Estimate  # [K] of the first k members
    prefix_conditional_redundancy: Estimate
    redundancy_slope: Estimate  # over k
    conditional_redundancy_slope: Estimate
    fano_margin: Estimate  # error rate less the bound that H(Y | Ŷ) sets it

    performance: dict[str, Estimate]  # the set function's: what `diagnose` finds, or sampled chains do
    greedy_order: Int[np.ndarray, " K"]

    @property
    def variant(self) -> str:
        """The architecture and how it was trained: what tells the curves of a task apart."""
        return f"{self.architecture}, λ = {self.regulariser:g}" if self.regulariser else self.architecture

    @property
    def ratio(self) -> float:
        """ρ: the share of the bias that diversity takes back."""
        return float(self.diversity.mean() / self.bias.mean())

    def save(self, path: str | os.PathLike) -> None:
        """A safetensors file, whole or not at all."""
        tensors: dict[str, np.ndarray] = {}
        plain: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            found = dict(_flat(field.name, value))
            tensors |= found
            if not found:
                plain[field.name] = value
        plain["members"] = [member._asdict() for member in self.members]
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
        try:
            save_file(tensors, unfinished, {"version": VERSION, "plain": json.dumps(plain)})
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Measurements | None":
        """What `save` wrote; None where there is nothing, or what another version wrote, so measure anew."""
        if not Path(path).is_file():
            return None
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("version") != VERSION:
                return None
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        plain = json.loads(metadata["plain"])
        found = plain | _nested(tensors)
        if found.keys() != {field.name for field in fields(cls)}:
            return None
        found["members"] = tuple(Member(**member) for member in found["members"])
        return cls(**found)


def measure(evidence: Evidence, budget: int = BUDGET) -> Measurements:
    """Takes a model apart, in about `budget` bytes; the bias-diversity decomposition in float64.

    Raises `Refusal` for evidence that leaves nothing to measure.
    """
    for what, number in (
        ("members", len(evidence.members)), ("examples", evidence.examples), ("classes", evidence.classes)
    ):  # fmt: skip
        if number < 2:
            raise Refusal(f"the evidence has {number} of {what}: 2 are the fewest that tell of diversity")
    group = np.arange(evidence.examples, dtype=np.int32) if evidence.group is None else evidence.group
    mean = partial(clustered_mean, group=np.asarray(group))
    with jax.enable_x64(True):
        nats = decompose_evidence(evidence, budget=budget)
        blocks = hierarchy_evidence(evidence, budget=budget)
        within_blocks = np.asarray(blocks.weights @ blocks.within)
    splits: Table = {}
    for loss in get_args(Loss):
        parts = nats if loss == "cross_entropy" else decompose_evidence(evidence, loss, budget=budget)
        splits[loss] = {
            "loss": mean(np.asarray(parts.ensemble_loss)),
            "bias": mean(np.asarray(parts.bias)),
            "diversity": mean(np.asarray(parts.diversity)),
        }
    chosen, together = (np.asarray(choice) for choice in predictions(evidence, budget=budget))
    labels = np.asarray(evidence.labels)
    return Measurements(
        **{name: getattr(evidence, name) for name in PROVENANCE},
        members=evidence.members,
        classes=evidence.classes,
        group=np.asarray(group),
        correct=together == labels,
        loss=np.asarray(nats.ensemble_loss if evidence.loss is None else evidence.loss, np.float64),
        bias=np.asarray(nats.bias),
        diversity=np.asarray(nats.diversity),
        accuracy=mean((together == labels).astype(float)),
        splits=splits,
        member_loss=mean(np.asarray(nats.member_loss).T),
        member_diversity=mean(np.asarray(nats.member_diversity).T),
        member_accuracy=mean((chosen == labels).T.astype(float)),
        prefix_loss=mean(np.asarray(prefix_losses(evidence, budget)).T),
        within_blocks=mean(within_blocks),
        between_blocks=mean(np.asarray(blocks.groups.diversity)),
        **_information(chosen, labels, together, evidence.classes, np.asarray(group), budget),
        **_performance(evidence, len(np.unique(group)), budget),
    )


def commonest(labels: Int[np.ndarray, " N"], classes: int) -> Int[np.ndarray, " C"]:
    """A coarser class for each class: the commonest labels keep one of their own, the rest share the last.

    As many as leave a pair of members and the label at most N/5 joint states to show.
    """
    kept = max(2, int(np.cbrt(len(labels) / 5)))
    if classes <= kept:
        return np.arange(classes)
    order = np.argsort(-np.bincount(labels, minlength=classes), kind="stable")
    coarse = np.full(classes, kept - 1)
    coarse[order[: kept - 1]] = np.arange(kept - 1)
    return coarse


def _information(
    chosen: Int[np.ndarray, "K N"],
    labels: Int[np.ndarray, " N"],
    together: Int[np.ndarray, " N"],
    classes: int,
    group: Int[np.ndarray, " N"],
    budget: int,
) -> dict[str, Any]:
    coarse = commonest(labels, classes)
    chosen, labels, together = coarse[chosen], coarse[labels], coarse[together]
    kept = int(coarse.max()) + 1
    freedom = len(np.unique(group)) - 1

    def estimates(found: Any, names: list[str]) -> dict[str, Estimate]:
        """A bootstrap's interval is kept as the standard error that makes one as wide."""
        ends = ((getattr(found.high, name) - getattr(found.low, name)) / (2 * 1.96) for name in names)
        return {
            name: Estimate(np.asarray(getattr(found, name), float), np.asarray(end, float), freedom)
            for name, end in zip(names, ends, strict=True)
        }

    terms: Table = {}
    saturated = {}
    for estimator in ("pairwise", "miller_madow"):
        found = information(chosen, labels, together, kept, estimator, group=group, budget=budget)
        terms[estimator] = estimates(found, [field.name for field in fields(Terms)])
        saturated[estimator] = bool(found.saturated)
    maps = pairwise_maps(chosen, labels, kept, group=group, budget=budget)
    curves = prefixes(chosen, labels, kept, group=group, budget=budget)
    names = ["redundancy", "conditional_redundancy"]
    slopes = [f"{name}_slope" for name in names]
    return {
        "information_classes": kept,
        "information": terms,
        "saturated": saturated,
        **{f"{name}_map": estimate for name, estimate in estimates(maps, names).items()},
        **{f"prefix_{name}": estimate for name, estimate in estimates(curves, names).items()},
        **estimates(curves, slopes),
        "fano_margin": fano_margin(labels, together, kept, group),
    }


def _performance(evidence: Evidence, groups: int, budget: int) -> dict[str, Any]:
    """The lattice of all subsets, or beyond 16 members sampled chains and the greedy one."""
    members, folds = len(evidence.members), min(FOLDS, groups)
    if members <= EXHAUSTIVE:
        values = performance(evidence, all_subsets(members), folds=folds, budget=budget)
        return {"performance": values.estimates(diagnose), "greedy_order": diagnose(values.mean).greedy_order}
    sampled = chains(members)
    found = performance(evidence, sampled.subsets, folds=folds, budget=budget).estimates(sampled.read)
    order, gained = greedy(lambda subsets: performance(evidence, subsets, budget=budget).mean, members)
    nothing = np.asarray(found["depth_values"].value)[:1]
    along = Estimate(np.concatenate([nothing, gained]), np.nan, 1)
    return {"performance": found | {"greedy_values": along}, "greedy_order": order}


def fano_margin(
    labels: Int[np.ndarray, " N"], together: Int[np.ndarray, " N"], classes: int, group: Int[np.ndarray, " N"]
) -> Estimate:
    """The error rate less Fano's bound b on it, its error by the bound's slope.

    b solves h(b) + b ln(C-1) = H(Y | Ŷ), so it moves with H by 1 / (ln((1-b)/b) + ln(C-1)).
    """
    with jax.enable_x64(True):
        left_open, bound = _left_open(jnp.asarray(together), jnp.asarray(labels), classes)
    bound = float(bound)
    slope = 0.0 if bound in (0, 1 - 1 / classes) else 1 / (np.log1p(-bound) - np.log(bound / (classes - 1)))
    wrong = together != labels
    linear = clustered_mean(wrong - slope * np.asarray(left_open), group)
    return Estimate(float(wrong.mean() - bound), linear.error, linear.freedom)


@partial(jax.jit, static_argnames="classes")
def _left_open(
    decisions: Int[Array, " N"], labels: Int[Array, " N"], classes: int
) -> tuple[Float[Array, " N"], Float[Array, ""]]:
    """What H(Y | Ŷ) is the mean of, and Fano's bound at it."""
    surprise = partial(surprises, estimator="miller_madow")
    left_open = surprise(decisions * classes + labels) - surprise(decisions)
    return left_open, fano_bound(left_open.mean(), classes)


def _flat(name: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays in a field, by their paths; none in a plain one."""
    if isinstance(value, np.ndarray):
        yield name, np.ascontiguousarray(value)
    elif isinstance(value, Estimate):
        for part in ("value", "error", "freedom"):
            yield f"{name}/{part}", np.array(getattr(value, part), float)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(f"{name}/{key}", part)


def _nested(tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    """The fields that `_flat` took apart."""
    fields: dict[str, Any] = {}
    for path, tensor in tensors.items():
        *outer, last = path.split("/")
        inner = fields
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = tensor

    def built(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if node.keys() == {"value", "error", "freedom"}:
            return Estimate(node["value"], node["error"], float(node["freedom"]))
        return {key: built(part) for key, part in node.items()}

    return built(fields)
