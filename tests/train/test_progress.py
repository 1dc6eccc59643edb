"""The time that is left, against machines whose time is known."""

import itertools
from io import StringIO

import pytest
from rich.console import Console

from train.progress import Progress, Work, duration

SEEDS = (0, 1, 2)


class Machine:
    """A sweep on a clock that only work moves: a dispatch costs by operations and by itself, and a group
    compiles longer the deeper it is."""

    def __init__(self, dispatch, compilation, evaluation):
        self.dispatch, self.compilation, self.evaluation = dispatch, compilation, evaluation
        self.now = 1000.0

    def clock(self):
        return self.now

    def run(self, depths, progress, dispatches=50):
        """Yields after each dispatch."""
        for depth in sorted(depths, reverse=True):
            label = f"depth {depth}"
            progress.start(label)
            self.now += self.compilation * (1 + depth / 8)
            for i in range(dispatches):
                seconds = 1e-9 * depth * 1e9 + self.dispatch
                self.now += seconds
                progress.trained(depth * 1e9, seconds, f"{i}/{dispatches}", [1.0] * 3, 1.0)
                yield
                if i % 10 == 9:
                    self.now += depth * self.evaluation
                    progress.evaluated(depth * 1e9, depth * self.evaluation)
            progress.finish("")


@pytest.mark.parametrize("depths", [(1, 2, 3, 4, 6, 8), (6,), (1, 8), (4, 5, 6)])
@pytest.mark.parametrize(
    ("dispatch", "compilation", "evaluation"),
    [(0.0, 0.0, 0.0), (0.5, 20.0, 0.5), (0.0, 60.0, 3.0), (0.2, 5.0, 2.0)],
)
def test_after_a_tenth_of_the_work_the_time_left_is_right_within_30_percent(
    depths, dispatch, compilation, evaluation
):
    machine = Machine(dispatch, compilation, evaluation)
    work = {f"depth {d}": Work(d, SEEDS, 50e9 * d, 5e9 * d) for d in depths}
    progress = Progress(work, Console(file=StringIO()), clock=machine.clock)
    total, told = 50e9 * sum(depths), None
    for _ in machine.run(depths, progress):
        if told is None and progress.training.flops >= total / 10:
            told, at = progress.remaining(), machine.now
    assert told == pytest.approx(machine.now - at, rel=0.3)
    assert progress.remaining() == 0


def progress_of(console, clock=lambda: 0.0):
    work = {"deep": Work(8, (3, 4), 80e9, 0.0), "shallow": Work(1, (3, 4), 10e9, 0.0)}
    return Progress(work, console, clock=clock)


def test_without_a_terminal_there_are_plain_lines(console):
    """One at the start, and one every ten seconds."""
    now = [0.0]
    with progress_of(console, lambda: now[0]) as progress:
        progress.start("deep")
        for i in range(21):
            now[0] += 1
            progress.trained(1e9, 1.0, f"{i + 1}/80", [0.5, None], 1234.4)
        progress.finish("deep is done")
    said = console.file.getvalue().splitlines()
    assert said[0] == "deep  step 1/80  loss 0.500 diverged  1,234 tokens/s  1:29 left"
    assert [line.split("step ")[1].split("/")[0] for line in said[:-1]] == ["1", "11", "21"]
    assert said[-1] == "deep is done"
    assert "\x1b" not in console.file.getvalue()


def test_a_line_is_not_wrapped():
    """Whoever reads a log line by line finds the time left beside the run."""
    console = Console(file=StringIO(), width=40)
    with progress_of(console) as progress:
        progress.start("deep")
        progress.trained(1e9, 1.0, "1/80", [0.5, None], 1234.4)
        progress.finish("deep [0] is done, at length: " + "0.5 " * 20 + "in 0:59")
    first, last = console.file.getvalue().splitlines()
    assert first.startswith("deep  step")
    assert first.endswith(" left")
    assert last.startswith("deep [0] is")
    assert last.endswith("in 0:59")


def test_on_a_terminal_there_is_a_row_for_each_run():
    console = Console(file=StringIO(), force_terminal=True, width=100, height=20)
    with progress_of(console, itertools.count().__next__) as progress:
        progress.start("shallow")
        progress.trained(1e9, 2.0, "1/10", [0.25, None], 3000.0)
    plain = Console(file=StringIO(), width=100)
    plain.print(progress.table())
    rows = [line.split() for line in plain.file.getvalue().splitlines()]
    assert rows[1] == ["shallow", "1", "3", "1/10", "0.250", "1,500", "0:18"]
    assert rows[2] == ["shallow", "1", "4", "1/10", "diverged", "1,500", "0:18"]
    assert [row[:3] for row in rows[3:5]] == [["deep", "8", "3"], ["deep", "8", "4"]]
    assert "diverged" in console.file.getvalue()  # it was drawn


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.0, "0:00"), (59.6, "1:00"), (3599.0, "59:59"), (7265.0, "2:01:05")]
)
def test_durations(seconds, said):
    assert duration(seconds) == said
