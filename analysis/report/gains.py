"""Marginal gains against those of fitted forms: one drawing for members and for trained depths."""

from collections.abc import Mapping

import altair as alt
import numpy as np
from jaxtyping import Float, Int

from analysis.report import charts
from analysis.report.records import Records, told
from analysis.scaling import fit, marginal_gains
from jaxlayers.refusal import Refusal

FORMS = ("log", "power", "exponential")


def panel(
    sizes: Int[np.ndarray, " X"], losses: Mapping[str, Float[np.ndarray, "S X"]], unit: str
) -> tuple[charts.Chart | None, Records]:
    """What each unit of size gains, for each named series of losses; None where no seeds give an interval."""
    points: Records = []
    fitted: Records = []
    for name, loss in losses.items():
        try:
            gains = marginal_gains(sizes, loss)
        except Refusal:
            continue
        points += [
            {"of": name, unit: float(x), **told("gain", gain)}
            for x, gain in zip(gains.x, gains.gain, strict=True)
        ]
        for form in FORMS:
            try:
                fitting = fit(sizes, loss, form, resamples=1)  # the curve alone, no intervals of parameters
                slope = -np.diff(fitting.predict(sizes)) / np.diff(sizes)
            except Refusal:  # fewer sizes than the form needs
                continue
            fitted += [
                {"of": name, "form": form, unit: float(x), "gain": float(gain)}
                for x, gain in zip(gains.x, slope, strict=True)
            ]
    if not points:
        return None, []
    titles = (unit, f"gain, nats a {unit.removesuffix('s')}")
    log = unit == "blocks"
    chart = charts.curve(points, unit, "gain", titles, colour="of", log=log, zero=True, line=False)
    if fitted:
        chart = alt.layer(charts.lines(fitted, unit, "gain", colour="of", dash="form"), chart)
    return chart, points + fitted
