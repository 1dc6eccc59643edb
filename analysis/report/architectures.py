"""The figures that lay the architectures of a task over each other, where it was trained with several."""

from collections.abc import Callable, Sequence

from analysis.curves import Curve
from analysis.measurements import Measurements
from analysis.report import charts
from analysis.report.records import Figure, Panels, Records, by_depth, seeds, told
from analysis.scaling import marginal_gains
from jaxlayers.refusal import Refusal

NUMBERS: dict[str, tuple[str, Callable[[Measurements], float]]] = {
    "loss": ("loss, nats", lambda model: model.loss.mean()),
    "bias": ("bias, nats", lambda model: model.bias.mean()),
    "diversity": ("diversity, nats", lambda model: model.diversity.mean()),
    "ρ": ("ρ = diversity / bias", lambda model: model.ratio),
}
SIZES: dict[str, Callable[[Measurements], float]] = {
    "parameters": lambda model: model.parameters,
    "training FLOPs": lambda model: model.training_flops,
}


def figures(several: Sequence[Curve]) -> list[Figure]:
    """Of the curves of more than one depth."""
    tasks = dict.fromkeys(curve.task for curve in several)
    rivals = [[curve for curve in several if curve.task == task] for task in tasks]
    rivals = [curves for curves in rivals if len(curves) > 1]
    return [_numbers(rivals), _gains(rivals), _sizes(rivals), _updates(rivals)]


def _numbers(rivals: Sequence[Sequence[Curve]]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for curves in rivals:
        for name, (axis, of) in NUMBERS.items():
            rows = [{**curve.name, **row} for curve in curves for row in by_depth(curve, name, of)]
            titles = ("blocks", axis)
            panels[f"{curves[0].task} · {name}"] = charts.curve(
                rows, "depth", name, titles, colour="architecture", log=True
            )
            records += rows
    return Figure(
        "architectures",
        "The architectures against each other",
        "Of all architectures of a task. Bias and diversity grow with the number of members, "
        f"which is not the same for all: ρ compares. {_seeds(rivals)}",
        panels,
        records,
    )


def _gains(rivals: Sequence[Sequence[Curve]]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for curves in rivals:
        rows: Records = []
        for curve in curves:
            try:
                gains = marginal_gains(curve.depths, curve.loss)
            except Refusal:  # one seed: no interval
                continue
            rows += [
                {**curve.name, "blocks": float(x), **told("gain", gain)}
                for x, gain in zip(gains.x, gains.gain, strict=True)
            ]
        if rows:
            titles = ("blocks", "gain, nats a block")
            panels[curves[0].task] = charts.curve(
                rows, "blocks", "gain", titles, colour="architecture", log=True, zero=True
            )
        records += rows
    return Figure(
        "architecture-gains",
        "What one more block gains, by architecture",
        f"The fall of the loss from a trained depth to the next, by block added. {_seeds(rivals)}",
        panels,
        records,
    )


def _sizes(rivals: Sequence[Sequence[Curve]]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for curves in rivals:
        for size, of in SIZES.items():
            rows = [
                {**curve.name, size: float(at), **row}
                for curve in curves
                for at, row in zip(
                    curve.values(of).mean(0),
                    by_depth(curve, "loss", lambda model: model.loss.mean()),
                    strict=True,
                )
            ]
            if min(row[size] for row in rows) > 0:  # somebody's evidence may not say
                panels[f"{curves[0].task} · {size}"] = charts.curve(
                    rows, size, "loss", (size, "loss, nats"), colour="architecture", log=True
                )
                records += rows
    return Figure(
        "sizes",
        "Loss against what it costs",
        f"Where a weight-tied model is cheap to hold, it may be dear to train. {_seeds(rivals)}",
        panels,
        records,
    )


def _updates(rivals: Sequence[Sequence[Curve]]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for curves in rivals:
        rows = [
            {**curve.name, **row}
            for curve in curves
            if curve.values(lambda model: model.update).all()  # somebody's evidence may not say
            for row in by_depth(curve, "update", lambda model: model.update)
        ]
        if rows:
            titles = ("blocks", "update, root mean square")
            panels[curves[0].task] = charts.curve(
                rows, "depth", "update", titles, colour="architecture", log=True, zero=True
            )
        records += rows
    return Figure(
        "updates",
        "How far training moved the model",
        "The change of the final norm's output, whose own components are about 1, from the start of training "
        "to its end. By DeepNet (2203.00555) a model is stable whose update does not grow with depth. "
        f"{_seeds(rivals)}",
        panels,
        records,
    )


def _seeds(rivals: Sequence[Sequence[Curve]]) -> str:
    return seeds([curve for curves in rivals for curve in curves])
