"""How far a sweep is and how long it will take: live bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bars

LINE_EVERY = 10.0  # seconds


class Progress:
    """Of the groups that are left, each so many floating-point operations.

    The estimate is (operations left) / (operations a second of dispatches) plus, for each group that is
    left, what a group has cost so far beside its dispatches: compilation, evaluation, saving.
    """

    def __init__(self, work: Mapping[str, float], console: Console):
        self.left = dict(work)
        self.console = console
        self.begun = time.monotonic()
        self.busy = self.flops = 0.0
        self.entered = 0
        self.said = -LINE_EVERY
        self.label = ""
        self.bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            console=console,
            transient=True,
        )
        self.total = self.bars.add_task("sweep", total=sum(work.values()))
        self.group = self.bars.add_task("")

    def __enter__(self) -> "Progress":
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self.bars.stop()

    def start(self, label: str) -> None:
        """A group begins."""
        self.label = label
        self.entered += 1
        self.bars.reset(self.group, total=self.left[label], description=label)

    def advance(self, flops: float, seconds: float, words: str) -> None:
        """A dispatch of the present group is done."""
        self.left[self.label] -= flops
        self.flops += flops
        self.busy += seconds
        left = f"{duration(self.remaining())} left"
        self.bars.update(self.group, advance=flops, description=f"{self.label}  {words}")
        self.bars.update(self.total, advance=flops, description=f"sweep  {left}")
        now = time.monotonic()
        if not self.console.is_terminal and now - self.said > LINE_EVERY:
            self.console.print(f"{self.label}  {words}  {left}", highlight=False)
            self.said = now

    def finish(self, words: str) -> None:
        """The present group is done."""
        self.left.pop(self.label)
        self.console.print(f"{self.label}  {words}", highlight=False)

    def remaining(self) -> float:
        """Seconds."""
        beside = (time.monotonic() - self.begun - self.busy) / max(self.entered, 1)
        to_enter = len(self.left) - (self.label in self.left)
        return sum(self.left.values()) * self.busy / max(self.flops, 1.0) + to_enter * beside


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
