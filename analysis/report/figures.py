"""The figures over trained depths: which numbers each one shows, and how to read them.

`charts` knows how they are drawn; `architectures` lays curves over each other, `members` has the figures of
single models, `behind` those of verdicts.
"""

from collections.abc import Sequence

import altair as alt
import numpy as np

from analysis.curves import Curve, curves
from analysis.measurements import Measurements
from analysis.report import architectures, charts, gains, members
from analysis.report.records import Figure, Panels, Records, by_depth, over_seeds, seeds, title, told
from analysis.scaling import ScalingFit, compare
from jaxlayers.refusal import Refusal


def figures(models: Sequence[Measurements]) -> list[Figure]:
    """All that the models allow, in the order of the page."""
    found = curves(models)
    several = [curve for curve in found if len(curve.depths) > 1]
    drawn = [_loss(several), _gains(several), _ratio(several), _split(several), _lens(found)]
    drawn += [*architectures.figures(several), *members.figures(found)]
    return [figure for figure in drawn if figure.panels]


def _fits(curve: Curve) -> list[ScalingFit]:
    try:
        return [fit for fit in compare(curve.depths, curve.loss) if fit.form.name != "constant"]
    except Refusal:  # too few depths or seeds: the points are shown alone
        return []


def _loss(several: Sequence[Curve]) -> Figure:
    panels: Panels = {}
    records: Records = []
    titles = ("blocks", "loss, nats")
    for curve in several:
        rows = by_depth(curve, "loss", lambda model: model.loss.mean())
        if fits := _fits(curve):
            held_out = curve.depths[-fits[0].held_out :]
            for row in rows:
                row["point"] = "held out of the comparison" if row["depth"] in held_out else "compared on"
            fitted = [
                {"form": f.form.name, "depth": float(x), "loss": float(y), "held-out error": f.holdout_error}
                for f in fits
                for at in [np.geomspace(curve.depths[0], curve.depths[-1], 40)]
                for x, y in zip(at, f.predict(at), strict=True)
            ]
            points = charts.curve(rows, "depth", "loss", titles, shape="point", log=True, line=False)
            panels[title(curve)] = alt.layer(charts.lines(fitted, "depth", "loss", "form"), points)
        else:
            panels[title(curve)] = charts.curve(rows, "depth", "loss", titles, log=True)
        records += [{**curve.name, **row} for row in rows]
    return Figure(
        "loss",
        "Loss against depth",
        "Mean test loss of each depth, and the forms fitted to all depths, the best first by the error at "
        f"the deepest ones when a fit is made without them. {seeds(several)}",
        panels,
        records,
    )


def _gains(several: Sequence[Curve]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for curve in several:
        chart, rows = gains.panel(curve.depths, {"trained depth": curve.loss}, "blocks")
        if chart:
            panels[title(curve)] = chart
        records += [{**curve.name, **row} for row in rows]
    return Figure(
        "gains",
        "What one more block gains",
        "The fall of the loss from a trained depth to the next, by block added, and the same of the fitted "
        f"forms. {seeds(several)}",
        panels,
        records,
    )


def _ratio(several: Sequence[Curve]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for curve in several:
        rows = by_depth(curve, "ρ", lambda model: model.ratio)
        panels[title(curve)] = charts.curve(rows, "depth", "ρ", ("blocks", "ρ = diversity / bias"), log=True)
        records += [{**curve.name, **row} for row in rows]
    return Figure(
        "ratio",
        "Diversity as a share of bias",
        "loss = (1 − ρ) · bias. ρ does not grow with the mere number of members, as bias and diversity do. "
        f"{seeds(several)}",
        panels,
        records,
    )


def _split(several: Sequence[Curve]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for curve in several:
        rows = [
            {"part": part, **row}
            for part, of in (("bias", lambda m: m.bias.mean()), ("diversity", lambda m: m.diversity.mean()))
            for row in by_depth(curve, "nats", of)
        ]
        panels[title(curve)] = charts.curve(
            rows, "depth", "nats", ("blocks", "nats"), colour="part", log=True, zero=True
        )
        records += [{**curve.name, **row} for row in rows]
    return Figure(
        "split",
        "Bias and diversity against depth",
        "Cross-entropy, contributions in mean form (each member times the number of members), so both grow "
        f"with depth; their difference is the loss. {seeds(several)}",
        panels,
        records,
    )


def _lens(found: Sequence[Curve]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for curve in found:
        rows: Records = []
        for d, depth in enumerate(curve.depths):
            models = [row[d] for row in curve.models]
            values = over_seeds(np.array([model.prefix_loss.value for model in models]))
            last = max(len(models[0].members) - 1, 1)
            rows += [
                {"depth": f"{depth}", "after": member.name, "share": k / last, **told("loss", value)}
                for k, (member, value) in enumerate(zip(models[0].members, values, strict=True))
            ]
        if rows:
            titles = ("share of the model read", "loss, nats")
            panels[title(curve)] = charts.curve(rows, "share", "loss", titles, colour="depth")
        records += [{**curve.name, **row} for row in rows]
    return Figure(
        "lens",
        "The logit lens",
        "The loss of the read-out of the stream after each member, under the final norm; at 1 it is the "
        f"model's own. {seeds(found)}",
        panels,
        records,
    )
