"""The numbers behind each verdict, drawn: a panel or more for each task and architecture."""

from collections.abc import Callable

from analysis.report import charts
from analysis.report.records import Panels, Records


def of_verdict(id: str, data: Records) -> Panels:
    """The panels of a prediction; none where nothing was measured."""
    curves: dict[str, Records] = {}
    for row in data:
        curves.setdefault(" · ".join(row[k] for k in ("task", "architecture") if row.get(k)), []).append(row)
    return {
        " · ".join(part for part in (curve, title) if part): panel
        for curve, rows in curves.items()
        for title, panel in PANELS[id](rows).items()
    }


def _residual(rows: Records) -> Panels:
    titles = ("blocks", "largest residual / (1 + bias)")
    return {"": charts.scatter(rows, "depth", "relative", titles, log=_depths(rows), format="~e")}


def _coefficients(rows: Records) -> Panels:
    if rows[0]["kind"] == "coefficient":
        return {"coefficients": charts.named(rows, "term", "coefficient", "standardised partial coefficient")}
    return {"": charts.scatter(rows, "ρ", "accuracy", ("ρ = diversity / bias", "accuracy"), colour="depth")}


def _slopes(rows: Records) -> Panels:
    titles = ("quartile of bias", "slope of correctness on diversity")
    return {"": charts.curve(rows, "quartile", "slope", titles, zero=True)}


def _steps(rows: Records) -> Panels:
    rows = [row | {"step": f"{row['from_depth']} to {row['to_depth']} blocks"} for row in rows]
    titles = ("change in ρ", "fall of the loss, nats")
    return {"": charts.scatter(rows, "ratio_change", "gain", titles, colour="step")}


def _violations(rows: Records) -> Panels:
    members = [row for row in rows if row["kind"] == "members"]
    gains = [row for row in rows if row["kind"] == "depth"]
    panels: Panels = {}
    if members:
        panels["members"] = charts.curve(
            members,
            "depth",
            "violation_rate",
            ("blocks", "violation rate"),
            colour="seed",
            log=_depths(members),
            zero=True,
            line=False,
        )
    if gains:
        titles = ("blocks", "gain, nats a block")
        panels["trained depth"] = charts.curve(gains, "depth", "gain", titles, log=True, zero=True)
    return panels


def _forms(rows: Records) -> Panels:
    return {"": charts.named(rows, "form", "holdout_error", "held-out error, nats", bar=True)}


def _growth(rows: Records) -> Panels:
    """Of one model, the deepest's first seed; the table has all."""
    depth, seed = min(((row["depth"], row["seed"]) for row in rows), key=lambda model: (-model[0], model[1]))
    some = [row for row in rows if (row["depth"], row["seed"]) == (depth, seed)]
    titles = ("members", "nats")
    return {
        f"depth {depth}, seed {seed}": charts.curve(some, "members", "nats", titles, colour="kind", zero=True)
    }


def _margins(rows: Records) -> Panels:
    titles = ("blocks", "error rate less Fano's bound")
    return {
        "": charts.curve(
            rows, "depth", "margin", titles, colour="seed", log=_depths(rows), zero=True, line=False
        )
    }


def _rewarded(rows: Records) -> Panels:
    titles = ("change in ln bias", "change in accuracy")
    return {"": charts.scatter(rows, "ln_bias_change", "accuracy_change", titles, colour="λ")}


def _depths(rows: Records) -> bool:
    """Whether a logarithm can be taken: somebody's evidence may not say how deep the model is."""
    return min(row["depth"] for row in rows) > 0


PANELS: dict[str, Callable[[Records], Panels]] = {
    "P1": _residual,
    "P2": _coefficients,
    "P3": _slopes,
    "P4": _steps,
    "P5": _violations,
    "P6": _forms,
    "P7": _growth,
    "P8": _margins,
    "P9": _rewarded,
}
