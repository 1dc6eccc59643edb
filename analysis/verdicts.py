"""How a prediction is decided: by intervals alone, with one error rate for the whole table.

A prediction makes one or more claims, each that a number lies on one side of a threshold. All claims of
the table are one family: each is tested by Student's t, its p-value adjusted by Holm's procedure, and its
interval drawn at the level at which Holm tested it. So the interval excludes the threshold if and only if the
adjusted p-value is at most 0.05, and the state follows from the intervals:

    holds      every claim's interval lies on the predicted side
    fails      some claim's interval lies on the other side
    undecided  neither
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np

from analysis.statistics import LEVEL, Estimate, holm
from jaxlayers.refusal import Refusal

Model = TypeVar("Model")
Side: TypeAlias = Literal["above", "below"]
State: TypeAlias = Literal["holds", "fails", "undecided", "not measured"]
Records: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True)
class Claim:
    """That a number lies on one side of a threshold."""

    name: str
    predicted: Side
    estimate: Estimate
    threshold: float = 0.0
    picked_from: int = 1  # numbers, of which this is the worst: its level is shared among them (Bonferroni)
    shown: Callable[[float], float] = float  # from the scale of the estimate to the one it is told in, rising
    sampled: bool = True  # if not, the error is a bound of rounding, and the claim is in no family

    @property
    def p_value(self) -> float:
        return min(1.0, self.picked_from * self.estimate.p_value(self.threshold))

    def interval(self, level: float) -> tuple[float, float]:
        """On the scale it is told in."""
        if not self.sampled:
            value, error = float(self.estimate.value), float(self.estimate.error)
            return value - error, value + error
        low, high = self.estimate.interval(level / self.picked_from)
        return float(self.shown(float(low))), float(self.shown(float(high)))


@dataclass(frozen=True)
class Judged:
    """A claim with its interval, at the level at which Holm tested it."""

    name: str
    predicted: Side
    threshold: float
    estimate: float
    low: float
    high: float
    p_value: float | None
    p_holm: float | None

    @property
    def state(self) -> State:
        if self.low > self.threshold:
            return "holds" if self.predicted == "above" else "fails"
        if self.high < self.threshold:
            return "holds" if self.predicted == "below" else "fails"
        return "undecided"

    def __str__(self) -> str:
        return (
            f"{self.name} is {self.estimate:.3g} [{self.low:.3g}, {self.high:.3g}], "
            f"predicted {self.predicted} {self.threshold:.3g}"
        )


@dataclass(frozen=True)
class Finding:
    claims: tuple[Claim, ...]
    data: Records  # the numbers behind, one record for each mark of the figure


@dataclass(frozen=True)
class Prediction(Generic[Model]):
    """A row of the table before it is decided."""

    id: str
    words: str
    statistic: str
    needs: str  # what to run where it cannot be measured
    measure: Callable[[Sequence[Model]], Finding]  # raises Refusal with the reason where it cannot


@dataclass(frozen=True)
class Verdict:
    """A row of the table. Its numbers are those of the claim that decides; `claims` has all."""

    id: str
    prediction: str
    statistic: str
    state: State
    why: str
    would_change: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None  # None: not sampled
    p_holm: float | None = None
    claims: tuple[Judged, ...] = ()
    data: Records = field(default_factory=list, repr=False)

    def json(self) -> dict[str, Any]:
        """Plain lists, dicts and finite numbers; None where a number is not finite."""
        return _plain(asdict(self))


def decide(predictions: Sequence[Prediction[Model]], models: Sequence[Model]) -> list[Verdict]:
    """A verdict on each prediction, in their order. What cannot be measured is in no family."""
    findings: list[Finding | Refusal] = []
    for prediction in predictions:
        try:
            findings.append(prediction.measure(models))
        except Refusal as reason:
            findings.append(reason)
    judged = iter(
        judge([claim for found in findings if isinstance(found, Finding) for claim in found.claims])
    )
    return [
        _verdict(prediction, [next(judged) for _ in found.claims], found.data)
        if isinstance(found, Finding)
        else _not_measured(prediction, found)
        for prediction, found in zip(predictions, findings, strict=True)
    ]


def judge(claims: Sequence[Claim]) -> list[Judged]:
    """Every claim with its interval; those that are sampled are one family."""
    family = holm([claim.p_value for claim in claims if claim.sampled])
    adjusted, levels = iter(family.adjusted.tolist()), iter(family.level.tolist())
    judged = []
    for claim in claims:
        p_value, p_holm, level = (
            (claim.p_value, next(adjusted), next(levels)) if claim.sampled else (None, None, LEVEL)
        )
        value, ends = float(claim.shown(float(claim.estimate.value))), claim.interval(level)
        judged.append(Judged(claim.name, claim.predicted, claim.threshold, value, *ends, p_value, p_holm))
    return judged


def _not_measured(prediction: Prediction, reason: Refusal) -> Verdict:
    return Verdict(
        prediction.id,
        prediction.words,
        prediction.statistic,
        "not measured",
        _sentence(str(reason)),
        prediction.needs,
    )


def _verdict(prediction: Prediction, claims: Sequence[Judged], data: Records) -> Verdict:
    against = [claim for claim in claims if claim.state == "fails"]
    if against:
        deciding = min(against, key=lambda claim: claim.p_value or 0.0)
    else:
        deciding = max(claims, key=lambda claim: claim.p_value or 0.0)
    return Verdict(
        prediction.id,
        prediction.words,
        prediction.statistic,
        deciding.state,
        _sentence("; ".join(map(str, claims))),
        _would_change(deciding),
        deciding.estimate,
        deciding.low,
        deciding.high,
        deciding.p_value,
        deciding.p_holm,
        tuple(claims),
        data,
    )


def _would_change(claim: Judged) -> str:
    beyond = "below" if claim.predicted == "above" else "above"
    if claim.state == "holds":
        return f"An interval that reaches {claim.threshold:.3g} or lies {beyond} it, of {claim.name}."
    if claim.state == "fails":
        return (
            f"An interval that reaches {claim.threshold:.3g} or lies {claim.predicted} it, of {claim.name}."
        )
    if claim.p_value is None:
        return (
            f"Numbers of more digits: rounding hides on which side of {claim.threshold:.3g} {claim.name} is."
        )
    distance = abs(claim.estimate - claim.threshold)
    times = ((claim.high - claim.low) / 2 / distance) ** 2 if distance else math.inf
    if not times < 1000:
        return (
            f"Nothing in reach: {claim.name} is too near {claim.threshold:.3g} to tell on which side it is."
        )
    side = "above" if claim.estimate > claim.threshold else "below"
    return (
        f"More data: if {claim.name} stays {claim.estimate:.3g}, about {max(2, math.ceil(times))} times as "
        f"much puts its interval {side} {claim.threshold:.3g}."
    )


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
