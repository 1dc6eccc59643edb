"""Trained depths as curves: the models of one task and architecture, trained alike, seed by depth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from analysis.measurements import Measurements
from jaxlayers.refusal import Refusal


@dataclass(frozen=True)
class Curve:
    """S seeds at each of X depths."""

    task: str
    architecture: str  # and how it was trained: `Measurements.variant`
    depths: Int[np.ndarray, " X"]
    seeds: Int[np.ndarray, " S"]
    models: tuple[tuple[Measurements, ...], ...]  # [S][X]

    @property
    def name(self) -> dict[str, str]:
        return {"task": self.task, "architecture": self.architecture}

    def values(self, number: Callable[[Measurements], float]) -> Float[np.ndarray, "S X"]:
        return np.array([[float(number(model)) for model in row] for row in self.models])

    @property
    def loss(self) -> Float[np.ndarray, "S X"]:
        return self.values(lambda model: model.loss.mean())


def curves(models: Sequence[Measurements]) -> list[Curve]:
    """A curve for each task and architecture, over the depths at which all of its seeds were trained."""
    found: dict[tuple[str, str], dict[tuple[int, int], Measurements]] = {}
    for model in models:
        runs = found.setdefault((model.task, model.variant), {})
        if (model.seed, model.depth) in runs:
            raise Refusal(
                f"two models of task {model.task!r} and architecture {model.variant!r} have depth "
                f"{model.depth} and seed {model.seed}: give different architectures different names"
            )
        runs[model.seed, model.depth] = model
    result = []
    for (task, architecture), runs in found.items():
        seeds = sorted({seed for seed, _ in runs})
        depths = sorted({depth for _, depth in runs if all((seed, depth) in runs for seed in seeds)})
        rows = tuple(tuple(runs[seed, depth] for depth in depths) for seed in seeds)
        result.append(Curve(task, architecture, np.array(depths, int), np.array(seeds, int), rows))
    return result


def measured(models: Sequence[Measurements], depths: int, seeds: int = 2) -> list[Curve]:
    """The curves of at least so many depths and seeds; `Refusal` if there is none."""
    found = [c for c in curves(models) if len(c.depths) >= depths and len(c.seeds) >= seeds]
    if not found:
        raise Refusal(f"no task was trained at {depths} depths or more with {seeds} seeds or more each")
    return found
