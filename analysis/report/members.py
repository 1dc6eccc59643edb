"""The figures of single models, the deepest of each curve: what their members are and are worth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.curves import Curve
from analysis.measurements import Measurements
from analysis.report import charts, gains
from analysis.report.records import Figure, Panels, Records, over_seeds, title, told
from analysis.statistics import Estimate

ORDERS = {"in order of depth": "depth_values", "greedy": "greedy_values"}


@dataclass(frozen=True)
class Model:
    """One depth of a curve, all its seeds, whose members are the same."""

    title: str
    seeds: tuple[Measurements, ...]

    @property
    def members(self) -> list[str]:
        return [member.name for member in self.seeds[0].members]

    def of(self, number: Callable[[Measurements], Estimate]) -> Estimate:
        """A number with its interval over seeds, or with one seed over its examples."""
        found = [number(model) for model in self.seeds]
        return found[0] if len(found) == 1 else over_seeds(np.array([each.value for each in found]))

    def rows(self, name: str, number: Callable[[Measurements], Estimate]) -> Records:
        """One for each member."""
        found = zip(self.members, self.of(number), strict=True)
        return [{"member": member, **told(name, value)} for member, value in found]


def deepest(curve: Curve, has: Callable[[Measurements], bool] = lambda model: True) -> Model | None:
    """The largest depth at which every seed has what is to be shown."""
    for i in reversed(range(len(curve.depths))):
        models = tuple(row[i] for row in curve.models)
        if all(map(has, models)):
            return Model(f"{title(curve)} · depth {curve.depths[i]}", models)
    return None


def figures(curves: Sequence[Curve]) -> list[Figure]:
    models = [model for curve in curves if (model := deepest(curve))]
    whole = [
        model for curve in curves if (model := deepest(curve, lambda m: "pair_violations" in m.performance))
    ]
    return [
        _split(models),
        _ratio(models),
        _shapley(models),
        _orders(models),
        _gains(models),
        _map(
            models,
            "redundancy",
            "What pairs of members know alike",
            "I(O_i; O_j) of the members' predictions, in nats: the lighter, the more alike. Grey, on the "
            "diagonal, H(O_i).",
            lambda model: model.redundancy_map,
            "nats",
        ),
        _map(
            whole,
            "violations",
            "Where submodularity is violated",
            "For each pair, the share of subsets of the other members to which both together add more than "
            "one by one; submodularity predicts none. The deepest model whose subsets were all taken.",
            lambda model: model.performance["pair_violations"],
            "share",
        ),
    ]


def _split(models: Sequence[Model]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for model in models:
        rows = [
            {"part": part, **row}
            for part, of in (
                ("loss of the member", lambda m: m.member_loss),
                ("its diversity", lambda m: m.member_diversity),
            )
            for row in model.rows("nats", of)
        ]
        panels[model.title] = charts.named(rows, "member", "nats", "nats", colour="part")
        records += [{"model": model.title, **row} for row in rows]
    return Figure(
        "members",
        "Bias and diversity by layer",
        "Each member's own loss and its divergence from the ensemble; the means over members are bias and "
        "diversity. Shared gauge: the biases of the read-out enter every member whole.",
        panels,
        records,
    )


def _ratio(models: Sequence[Model]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for model in models:
        found = over_seeds(np.array([m.member_diversity.value / m.member_loss.value for m in model.seeds]))
        rows = [{"member": m, **told("ρ", value)} for m, value in zip(model.members, found, strict=True)]
        panels[model.title] = charts.named(rows, "member", "ρ", "ρ = diversity / loss of the member")
        records += [{"model": model.title, **row} for row in rows]
    return Figure(
        "member-ratio",
        "Diversity as a share of bias, by layer",
        "A member's divergence from the ensemble over its own loss. The model's ρ is their mean, weighted by "
        "the members' losses.",
        panels,
        records,
    )


def _shapley(models: Sequence[Model]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for model in models:
        rows = model.rows("nats", lambda m: m.performance["shapley"])
        panels[model.title] = charts.named(rows, "member", "nats", "Shapley value, nats", bar=True)
        records += [{"model": model.title, **row} for row in rows]
    return Figure(
        "shapley",
        "What each member is worth",
        "Shapley values of the read-out's performance: they sum to what all members gain over none, and do "
        "not grow with their number. Up to 16 members exact, beyond from sampled chains.",
        panels,
        records,
    )


def _losses(model: Model, order: str) -> np.ndarray:
    """[S, K+1], from no member to all."""
    return -np.array([each.performance[ORDERS[order]].value for each in model.seeds])


def _orders(models: Sequence[Model]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for model in models:
        rows = [
            {"order": order, "members": k, **told("loss", value)}
            for order in ORDERS
            for k, value in enumerate(over_seeds(_losses(model, order)))
        ]
        panels[model.title] = charts.curve(rows, "members", "loss", ("members", "loss, nats"), colour="order")
        records += [{"model": model.title, **row} for row in rows]
    return Figure(
        "orders",
        "The loss, member by member",
        "The loss when members are read out together, one more at a time: in the order of the model, and "
        "each time the one that helps most. The norm is taken anew for each set.",
        panels,
        records,
    )


def _gains(models: Sequence[Model]) -> Figure:
    panels: Panels = {}
    records: Records = []
    for model in models:
        sizes = np.arange(1, len(model.members) + 1)
        chart, rows = gains.panel(sizes, {order: _losses(model, order)[:, 1:] for order in ORDERS}, "members")
        if chart:
            panels[model.title] = chart
        records += [{"model": model.title, **row} for row in rows]
    return Figure(
        "member-gains",
        "What one more member gains",
        "The fall of the loss with each member from the second on, in the order of the model and greedily, "
        "and the same of the fitted forms. Submodular gains would only fall when taken greedily.",
        panels,
        records,
    )


def _map(
    models: Sequence[Model],
    id: str,
    name: str,
    caption: str,
    of: Callable[[Measurements], Estimate],
    unit: str,
) -> Figure:
    panels: Panels = {}
    records: Records = []
    for model in models:
        found = model.of(of)
        rows = [
            {"member": a, "and": b, **told(unit, found[i][j])}
            for i, a in enumerate(model.members)
            for j, b in enumerate(model.members)
        ]
        panels[model.title] = charts.heat(rows, "member", "and", unit)
        records += [{"model": model.title, **row} for row in rows]
    return Figure(id, name, caption, panels, records)
