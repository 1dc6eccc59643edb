"""The figures: which numbers each one shows, and how to read them. `charts` knows how they are drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
from jaxtyping import Float

from analysis.curves import Curve, curves
from analysis.measurements import Measurements
from analysis.report import charts
from analysis.scaling import compare, marginal_gains
from analysis.statistics import Estimate
from jaxlayers.refusal import Refusal

Records = list[dict[str, Any]]
Panels = dict[str, charts.Chart]


@dataclass(frozen=True)
class Figure:
    """One or more panels that say one thing, and all the numbers in them."""

    id: str
    title: str
    caption: str
    panels: Panels
    records: Records


def figures(models: Sequence[Measurements]) -> list[Figure]:
    """All that the models allow, in the order of the page."""
    found = curves(models)
    several = [curve for curve in found if len(curve.depths) > 1]
    deepest = [deep for curve in found if (deep := _deepest(curve)) is not None]
    drawn = [
        *([_loss(several), _gains(several), _ratio(several), _split(several)] if several else []),
        _lens(found),
        _by_member(deepest),
        _shapley(deepest),
        _orders(deepest),
        _map(
            deepest,
            "redundancy",
            "What pairs of members know alike",
            "I(O_i; O_j) of the members' predictions, in nats; on the diagonal H(O_i). Blocks of light "
            "squares are members that predict the same.",
            lambda model: model.redundancy_map,
            "nats",
        ),
        _map(
            deepest,
            "violations",
            "Where submodularity is violated",
            "For each pair, the share of subsets of the other members on which the two together add more "
            "than each alone. Submodularity predicts none.",
            lambda model: model.performance.get("pair_violations"),
            "share",
        ),
    ]
    return [figure for figure in drawn if figure.panels]


def _number(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: float(estimate.value), "low": float(estimate.low), "high": float(estimate.high)}


def _over_seeds(values: Float[np.ndarray, "S *B"]) -> Estimate:
    """The mean with Student's interval over seeds; with one seed there is none."""
    seeds = len(values)
    error = values.std(0, ddof=1) / np.sqrt(seeds) if seeds > 1 else np.zeros_like(values[0])
    return Estimate(values.mean(0), error, max(seeds - 1, 1))


def _title(curve: Curve) -> str:
    return " · ".join(part for part in (curve.task, curve.architecture) if part) or "the models"


def _deepest(curve: Curve) -> tuple[str, tuple[Measurements, ...]] | None:
    """The largest depth whose members all seeds share, with its title."""
    if not len(curve.depths):
        return None
    return f"{_title(curve)} · depth {curve.depths[-1]}", tuple(row[-1] for row in curve.models)


def _by_depth(curve: Curve, name: str, of: Callable[[Measurements], float]) -> Records:
    found = _over_seeds(curve.values(of))
    return [
        {"depth": int(depth), **_number(name, each), "seeds": len(curve.seeds)}
        for depth, each in zip(curve.depths, found, strict=True)
    ]


def _loss(several: Sequence[Curve]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for curve in several:
        measured = _by_depth(curve, "loss", lambda model: model.loss.mean())
        x = np.geomspace(curve.depths[0], curve.depths[-1], 40)
        try:
            fits = compare(curve.depths, curve.loss)
        except Refusal:
            fits = []
        lines = [
            {"form": fit.form.name, "depth": float(at), "loss": float(y), "held-out error": fit.holdout_error}
            for fit in fits
            if fit.form.name != "constant"
            for at, y in zip(x, fit.predict(x), strict=True)
        ]
        chart = charts.curve(measured, "depth", "loss", ("blocks", "loss, nats"), log=True, line=not lines)
        if lines:
            order = [fit.form.name for fit in fits if fit.form.name != "constant"]
            chart = alt.layer(charts.lines(lines, "depth", "loss", "form", order), chart)
        panels[_title(curve)] = chart
        records += [{**curve.name, **record} for record in measured]
    return Figure(
        "loss",
        "Loss against depth",
        "Mean test loss of each depth with its 95 % interval over seeds, and the fitted forms, the best "
        "first by the error on the deepest depths, which are held out of that fit.",
        panels,
        records,
    )


def _gains(several: Sequence[Curve]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for curve in several:
        try:
            found = marginal_gains(curve.depths, curve.loss)
            fits = {fit.form.name: fit for fit in compare(curve.depths, curve.loss)}
        except Refusal:
            continue
        rows: Records = [
            {"depth": float(x), **_number("gain", gain), "of": "trained depth"}
            for x, gain in zip(found.x, found.gain, strict=True)
        ]
        chart = charts.curve(
            rows, "depth", "gain", ("blocks", "gain, nats a block"), log=True, zero=True, line=False
        )
        lines = [
            {"form": name, "depth": float(x), "gain": float(gain)}
            for name in ("log", "power", "exponential")
            if name in fits
            for x, gain in zip(
                found.x, -np.diff(fits[name].predict(curve.depths)) / np.diff(curve.depths), strict=True
            )
        ]
        panels[_title(curve)] = alt.layer(charts.lines(lines, "depth", "gain", "form"), chart)
        records += [{**curve.name, **row} for row in rows]
    return Figure(
        "gains",
        "What one more block gains",
        "The fall of the loss between neighbouring depths, by block added, with its 95 % interval over "
        "seeds, and the same of the fitted forms.",
        panels,
        records,
    )


def _ratio(several: Sequence[Curve]) -> Figure:
    records: Records = []
    panels: Panels = {}
    for curve in several:
        rows = _by_depth(curve, "ρ", lambda model: model.ratio)
        panels[_title(curve)] = charts.curve(rows, "depth", "ρ", ("blocks", "ρ = diversity / bias"), log=True)
        records += [{**curve.name, **row} for row in rows]
    return Figure(
        "ratio",
        "Diversity as a share of bias",
        "loss = (1 − ρ) · bias. ρ does not grow with the mere number of members, as bias and diversity do.",
        panels,
        records,
    )


def _split(several: Sequence[Curve]) -> Figure:
    records: Records = []
    panels: Panels = {}
    for curve in several:
        rows: Records = []
        for name in ("bias", "diversity"):
            rows += [{"part": name, **row} for row in _by_depth(curve, "nats", _mean_of(name))]
        panels[_title(curve)] = charts.curve(
            rows, "depth", "nats", ("blocks", "nats"), colour="part", log=True, zero=True
        )
        records += [{**curve.name, **row} for row in rows]
    return Figure(
        "split",
        "Bias and diversity against depth",
        "Cross-entropy, contributions in mean form (each member times the number of members), so both grow "
        "with depth; their difference is the loss.",
        panels,
        records,
    )


def _mean_of(name: str) -> Callable[[Measurements], float]:
    return lambda model: float(getattr(model, name).mean())


def _lens(found: Sequence[Curve]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for curve in found:
        rows: Records = []
        for d, depth in enumerate(curve.depths):
            models = [row[d] for row in curve.models]
            values = _over_seeds(np.array([model.prefix_loss.value for model in models]))
            last = len(models[0].members) - 1
            rows += [
                {
                    "depth": f"{depth}",
                    "after": models[0].members[k].name,
                    "share of members": k / last if last else 1.0,
                    **_number("loss", value),
                }
                for k, value in enumerate(values)
            ]
        panels[_title(curve)] = charts.curve(
            rows,
            "share of members",
            "loss",
            ("share of the model read", "loss, nats"),
            colour="depth",
            order=[str(depth) for depth in curve.depths],
        )
        records += [{**curve.name, **row} for row in rows]
    return Figure(
        "lens",
        "The logit lens",
        "The loss of the read-out of the stream after each member, under the final norm; at 1 it is the "
        "model's own. Intervals over seeds.",
        panels,
        records,
    )


def _members(models: Sequence[Measurements], name: str, of: Callable[[Measurements], Estimate]) -> Records:
    """A row for each member: over seeds, or with one seed over its examples."""
    several = [of(model) for model in models]
    found = several[0] if len(models) == 1 else _over_seeds(np.array([each.value for each in several]))
    return [
        {"member": member.name, **_number(name, value)}
        for member, value in zip(models[0].members, found, strict=True)
    ]


def _by_member(deepest: Sequence[tuple[str, tuple[Measurements, ...]]]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for title, models in deepest:
        rows = [
            {"part": part, **row}
            for part, of in (
                ("loss of the member", lambda model: model.member_loss),
                ("its diversity", lambda model: model.member_diversity),
            )
            for row in _members(models, "nats", of)
        ]
        panels[title] = charts.named(rows, "member", "nats", "nats", colour="part")
        records += [{"model": title, **row} for row in rows]
    return Figure(
        "members",
        "Bias and diversity by layer",
        "Each member's own loss and its divergence from the ensemble; the means over members are bias and "
        "diversity. Shared gauge: the biases of the read-out enter every member whole.",
        panels,
        records,
    )


def _shapley(deepest: Sequence[tuple[str, tuple[Measurements, ...]]]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for title, models in deepest:
        rows = _members(models, "nats", lambda model: model.performance["shapley"])
        panels[title] = charts.named(rows, "member", "nats", "Shapley value, nats", bar=True)
        records += [{"model": title, **row} for row in rows]
    return Figure(
        "shapley",
        "What each member is worth",
        "Shapley values of the read-out's performance: they sum to what all members gain over none, and do "
        "not grow with their number. Up to 16 members exact, beyond from sampled chains.",
        panels,
        records,
    )


def _orders(deepest: Sequence[tuple[str, tuple[Measurements, ...]]]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for title, models in deepest:
        rows: Records = []
        for name, key in (("in order of depth", "depth_values"), ("greedy", "greedy_values")):
            losses = -np.array([model.performance[key].value for model in models])
            rows += [
                {"order": name, "members": float(k), **_number("loss", value)}
                for k, value in enumerate(_over_seeds(losses))
            ]
        panels[title] = charts.curve(rows, "members", "loss", ("members", "loss, nats"), colour="order")
        records += [{"model": title, **row} for row in rows]
    return Figure(
        "orders",
        "Gains of members, in order of depth and greedily",
        "The loss when members are read out together, one more at a time: in the order of the model, and "
        "each time the one that helps most. The norm is taken anew for each set.",
        panels,
        records,
    )


def _map(
    deepest: Sequence[tuple[str, tuple[Measurements, ...]]],
    id: str,
    title: str,
    caption: str,
    of: Callable[[Measurements], Estimate | None],
    unit: str,
) -> Figure:
    panels: Panels = {}
    records: Records = []
    for name, models in deepest:
        found = [value for model in models if (value := of(model)) is not None]
        if len(found) < len(models) or not found:
            continue
        mean = np.mean(np.array([value.value for value in found]), axis=0)
        members = [member.name for member in models[0].members]
        rows: Records = [
            {"member": a, "and": b, unit: float(mean[i, j])}
            for i, a in enumerate(members)
            for j, b in enumerate(members)
        ]
        panels[name] = charts.heat(rows, "member", "and", unit, unit)
        records += [{"model": name, **row} for row in rows]
    return Figure(id, title, caption, panels, records)


def of_verdict(id: str, data: Records) -> Panels:
    """The numbers behind a verdict, drawn."""
    tasks: dict[str, Records] = {}
    for row in data:
        tasks.setdefault(" · ".join(row[k] for k in ("task", "architecture") if row.get(k)), []).append(row)
    panels: Panels = {}
    for task, rows in tasks.items():
        for title, panel in _PANELS[id](rows).items():
            panels[" · ".join(part for part in (task, title) if part)] = panel
    return panels


def _residual(rows: Records) -> Panels:
    titles = ("blocks", "largest residual / (1 + bias)")
    return {"": charts.scatter(rows, "depth", "relative", titles)}


def _coefficients(rows: Records) -> Panels:
    if rows[0]["kind"] == "coefficient":
        return {"coefficients": charts.named(rows, "term", "coefficient", "standardised partial coefficient")}
    return {"": charts.scatter(rows, "ρ", "accuracy", ("ρ = diversity / bias", "accuracy"), colour="depth")}


def _slopes(rows: Records) -> Panels:
    titles = ("quartile of bias", "slope of correctness on diversity")
    return {"": charts.curve(rows, "quartile", "slope", titles, zero=True)}


def _steps(rows: Records) -> Panels:
    titles = ("change in ρ", "fall of the loss, nats")
    return {"": charts.scatter(rows, "ratio_change", "gain", titles, colour="to_depth")}


def _violations(rows: Records) -> Panels:
    members = [row for row in rows if row["kind"] == "members"]
    gains = [row for row in rows if row["kind"] == "depth"]
    titles = ("blocks", "violation rate")
    panels: Panels = {}
    if members:
        panels["members"] = charts.curve(
            members, "depth", "violation_rate", titles, colour="seed", zero=True, line=False
        )
    if gains:
        panels["trained depth"] = charts.curve(
            gains, "depth", "gain", ("blocks", "gain, nats a block"), log=True, zero=True
        )
    return panels


def _forms(rows: Records) -> Panels:
    return {"": charts.named(rows, "form", "holdout_error", "held-out error, nats", bar=True)}


def _growth(rows: Records) -> Panels:
    """Of one model, the deepest's first seed; the table has all."""
    depth = max(row["depth"] for row in rows)
    seed = min(row["seed"] for row in rows if row["depth"] == depth)
    some = [row for row in rows if (row["depth"], row["seed"]) == (depth, seed)]
    return {
        f"depth {depth}, seed {seed}": charts.curve(
            some, "members", "nats", ("members", "nats"), colour="kind", zero=True
        )
    }


def _margins(rows: Records) -> Panels:
    titles = ("blocks", "error rate less Fano's bound")
    return {"": charts.curve(rows, "depth", "margin", titles, colour="seed", zero=True, line=False)}


_PANELS: dict[str, Callable[[Records], Panels]] = {
    "P1": _residual,
    "P2": _coefficients,
    "P3": _slopes,
    "P4": _steps,
    "P5": _violations,
    "P6": _forms,
    "P7": _growth,
    "P8": _margins,
}
