"""What a figure is made of: plain records, each a mark with its interval."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from analysis.curves import Curve
from analysis.measurements import Measurements
from analysis.report.charts import Chart
from analysis.statistics import Estimate

Records: TypeAlias = list[dict[str, Any]]
Panels: TypeAlias = dict[str, Chart]


@dataclass(frozen=True)
class Figure:
    """One or more panels that say one thing, and all the numbers in them."""

    id: str
    title: str
    caption: str
    panels: Panels
    records: Records


def told(name: str, estimate: Estimate) -> dict[str, float | None]:
    """A number under its name, and the ends of its interval: None where nothing says how sure it is."""
    value, low, high = (float(x) for x in (estimate.value, estimate.low, estimate.high))
    sure = np.isfinite([low, high]).all()
    return {name: value, "low": low if sure else None, "high": high if sure else None}


def over_seeds(values: Float[np.ndarray, "S *B"]) -> Estimate:
    """The mean with Student's interval over seeds. One seed does not say how sure it is."""
    seeds = len(values)
    error = values.std(0, ddof=1) / np.sqrt(seeds) if seeds > 1 else np.full(values.shape[1:], np.nan)
    return Estimate(values.mean(0), error, max(seeds - 1, 1))


def by_depth(curve: Curve, name: str, of: Callable[[Measurements], float]) -> Records:
    """One for each depth: the mean over seeds and its interval."""
    found = over_seeds(curve.values(of))
    return [
        {"depth": int(depth), **told(name, each), "seeds": len(curve.seeds)}
        for depth, each in zip(curve.depths, found, strict=True)
    ]


def title(curve: Curve) -> str:
    return " · ".join(part for part in (curve.task, curve.architecture) if part) or "the models"


def seeds(curves: Sequence[Curve]) -> str:
    """How a caption says what the intervals are over."""
    numbers = sorted({len(curve.seeds) for curve in curves})
    if numbers == [1]:
        return "One seed: no intervals."
    return f"Intervals: 95 % over {' or '.join(map(str, numbers))} seeds."
