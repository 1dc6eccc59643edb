"""How far a sweep is and how long it will take: a live table on a terminal, plain lines elsewhere."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

LINE_EVERY = 10.0  # seconds
DRAW_EVERY = 0.25


@dataclass
class Work:
    """What is left of a group of runs: floating-point operations of training and of evaluations."""

    depth: int
    seeds: Sequence[int]
    training: float
    evaluation: float


@dataclass
class Spent:
    """On one kind of work so far."""

    flops: float = 0.0
    seconds: float = 0.0

    def add(self, flops: float, seconds: float) -> None:
        self.flops += flops
        self.seconds += seconds


class Progress:
    """Of the groups that are left.

    Time left = (operations of training left) x (seconds an operation has taken so far), the same for those of
    evaluations, and for each group that has not begun what a group has cost so far beside these two:
    compilation, files. The first operations should be those of the largest group, since a small model takes
    longer for one.
    """

    def __init__(
        self, work: Mapping[str, Work], console: Console, clock: Callable[[], float] = time.monotonic
    ):
        self.left = dict(work)
        self.console, self.clock = console, clock
        self.training, self.evaluation = Spent(), Spent()
        self.begun, self.said = clock(), clock() - LINE_EVERY
        self.entered = 0
        self.label = ""  # of the group at work
        self.cells: list[tuple[str, str, str]] = []  # of its seeds: step, loss, tokens a second
        self.live = Live(console=console, transient=True, auto_refresh=False)
        self.drawn = -math.inf

    def __enter__(self) -> "Progress":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def start(self, label: str) -> None:
        """A group begins."""
        self.label = label
        self.entered += 1
        self.cells = []
        self.draw()

    def trained(
        self, flops: float, seconds: float, step: str, losses: Sequence[float | None], rate: float
    ) -> None:
        """A dispatch of the present group is done: the step now, the losses of its seeds (None: diverged) and
        their tokens a second, all together."""
        self.left[self.label].training -= flops
        self.training.add(flops, seconds)
        said = ["diverged" if loss is None else f"{loss:.3f}" for loss in losses]
        self.cells = [(step, loss, f"{rate / len(losses):,.0f}") for loss in said]
        self.draw()
        if not self.console.is_terminal and self.clock() - self.said >= LINE_EVERY:
            self.said = self.clock()
            self.console.out(
                f"{self.label}  step {step}  loss {' '.join(said)}  {rate:,.0f} tokens/s  "
                f"{duration(self.remaining())} left",
                highlight=False,
            )

    def evaluated(self, flops: float, seconds: float) -> None:
        """So much of the present group's evaluations is done."""
        self.left[self.label].evaluation -= flops
        self.evaluation.add(flops, seconds)
        self.draw()

    def finish(self, words: str) -> None:
        """The present group is done."""
        self.left.pop(self.label)
        self.label = ""
        self.console.out(words, highlight=False)

    def remaining(self, label: str | None = None) -> float:
        """Seconds, of one group or (None) of all together."""
        if label is None:
            return sum(map(self.remaining, self.left), 0.0)
        work, second = self.left[label], self.training.seconds / max(self.training.flops, 1.0)
        evaluation = self.evaluation.seconds / self.evaluation.flops if self.evaluation.flops else second
        beside = self.clock() - self.begun - self.training.seconds - self.evaluation.seconds
        yet_to_enter = 0.0 if label == self.label else beside / max(self.entered, 1)
        return max(work.training, 0.0) * second + max(work.evaluation, 0.0) * evaluation + yet_to_enter

    def draw(self) -> None:
        if self.live.is_started and self.clock() - self.drawn >= DRAW_EVERY:
            self.drawn = self.clock()
            self.live.update(self.table(), refresh=True)

    def table(self) -> Table:
        """A row for each run: those of the group at work, then those that wait."""
        table = Table("runs", "depth", "seed", "step", "loss", "tokens/s", "left", box=None, highlight=False)
        for label, work in sorted(self.left.items(), key=lambda item: item[0] != self.label):
            left = duration(self.remaining(label)) if self.training.flops else ""
            cells = self.cells if label == self.label and self.cells else [("", "", "")] * len(work.seeds)
            for seed, cell in zip(work.seeds, cells, strict=True):
                table.add_row(label, str(work.depth), str(seed), *cell, left)
        if self.training.flops:
            table.caption = f"{duration(self.remaining())} left"
        return table


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
