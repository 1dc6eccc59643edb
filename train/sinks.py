"""Where metrics go beside `metrics.jsonl`, from which each of these is made: extras."""

import math
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from jaxlayers.refusal import require
from train.config import GroupConfig

Line = dict[str, Any]
Log = Literal["tensorboard", "wandb"]


@runtime_checkable
class Sink(Protocol):
    """Opened with the lines that are there already, so that after a resume no step is in it twice."""

    def write(self, line: Line) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files, one folder a seed; written anew at every start."""

    def __init__(self, folder: Path, group: GroupConfig, lines: Iterable[Line]):
        import tensorboardX

        shutil.rmtree(folder / "tensorboard", ignore_errors=True)
        self.writers = {
            seed: tensorboardX.SummaryWriter(str(folder / "tensorboard" / f"seed-{seed}"))
            for seed in group.seeds
        }
        for line in lines:
            self.write(line)

    def write(self, line: Line) -> None:
        for name, value in numbers(line).items():
            self.writers[line["seed"]].add_scalar(name, value, line["step"])

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


class WeightsAndBiases:
    """A run for each seed, which a later start goes on with; steps that the run has are left out."""

    def __init__(self, folder: Path, group: GroupConfig, lines: Iterable[Line]):
        import wandb

        self.runs = {
            seed: wandb.init(
                project="jaxlayers",
                id=f"{group.hash}-{seed}",
                name=f"{group.label} seed {seed}",
                group=group.label,
                config=group.model_dump(mode="json"),
                dir=str(folder),
                resume="allow",
                reinit="create_new",
            )
            for seed in group.seeds
        }
        self.begun = {seed: run.step for seed, run in self.runs.items()}
        for line in lines:
            self.write(line)

    def write(self, line: Line) -> None:
        if line["step"] >= self.begun[line["seed"]]:
            self.runs[line["seed"]].log(numbers(line), step=line["step"])

    def close(self) -> None:
        for run in self.runs.values():
            run.finish()


SINKS: dict[str, tuple[type[TensorBoard] | type[WeightsAndBiases], str]] = {
    "tensorboard": (TensorBoard, "tensorboardX"),
    "wandb": (WeightsAndBiases, "wandb"),
}


def check_installed(log: Sequence[Log]) -> None:
    """Refuses a sink whose package is not here."""
    for name in log:
        require(SINKS[name][1], f"--log {name}", name)


def opened(log: Sequence[Log], folder: Path, group: GroupConfig, lines: Sequence[Line]) -> list[Sink]:
    return [SINKS[name][0](folder, group, lines) for name in log]


def numbers(line: Line) -> dict[str, float]:
    """What a line measures, by "split/name"; what is not finite is left out."""
    measured = {k: v for k, v in line.items() if k not in ("step", "seed", "split") and v is not None}
    return {f"{line['split']}/{name}": value for name, value in measured.items() if math.isfinite(value)}
