"""The tables: what is in them, and how a number is told."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from analysis.measurements import Measurements
from analysis.verdicts import Verdict

Row = Mapping[str, Any]
STATES = {"holds": "holds", "fails": "fails", "undecided": "undecided", "not measured": "none"}


def models(measured: Sequence[Measurements]) -> list[dict[str, Any]]:
    return [
        {
            "task": model.task,
            "architecture": model.variant,
            "depth": model.depth,
            "seed": model.seed,
            "parameters": model.parameters,
            "loss": float(model.loss.mean()),
            "accuracy": float(model.accuracy.value),
            "bias": float(model.bias.mean()),
            "diversity": float(model.diversity.mean()),
            "ρ": model.ratio,
            "within blocks": float(model.within_blocks.value),
            "between blocks": float(model.between_blocks.value),
            "violation rate": float(model.performance["violation_rate"].value),
        }
        for model in measured
    ]


def verdicts(decided: Sequence[Verdict]) -> str:
    """HTML."""
    heads = ("", "prediction", "verdict", "statistic", "estimate", "interval", "p (Holm)")
    return _table(heads, [_verdict(verdict) for verdict in decided])


def html(rows: Sequence[Row]) -> str:
    """HTML, a column for each key."""
    if not rows:
        return "<p>none</p>"
    return _table(rows[0], ["".join(_cell(number(v), v) for v in row.values()) for row in rows])


def number(value: Any) -> str:
    """As it is told: three digits of a float, and a dash for nothing."""
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def interval(verdict: Verdict) -> str:
    return f"{number(verdict.low)} to {number(verdict.high)}" if verdict.low is not None else "–"


def p_value(verdict: Verdict) -> str:
    """Of a test; what holds or fails by rounding alone is exact, and what was not measured has none."""
    if verdict.estimate is None:
        return "–"
    if verdict.p_holm is None:
        return "exact"
    return "< 0.0001" if verdict.p_holm < 1e-4 else f"{verdict.p_holm:.2g}"


def _verdict(verdict: Verdict) -> str:
    return (
        _cell(verdict.id)
        + _cell(verdict.prediction)
        + f'<td class="state {STATES[verdict.state]}">{escape(verdict.state)}</td>'
        + _cell(verdict.statistic)
        + _cell(number(verdict.estimate), verdict.estimate)
        + _cell(interval(verdict), verdict.low)
        + _cell(p_value(verdict), verdict.p_holm)
    )


def _table(heads: Sequence[str] | Row, rows: Sequence[str]) -> str:
    named = "".join(
        f'<th scope="col" aria-sort="none"><button>{escape(head)}</button></th>' for head in heads
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{named}</tr></thead><tbody>{body}</tbody></table>"


def _cell(words: str, value: Any = None) -> str:
    """What it is sorted by is the number itself, not its digits."""
    sorted_by = f' data-value="{value!r}"' if isinstance(value, int | float) else ""
    return f"<td{sorted_by}>{escape(words)}</td>"
