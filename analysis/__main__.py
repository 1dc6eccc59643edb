"""python -m analysis FOLDER: takes each model of a sweep apart, decides the predictions, writes the report.

python -m analysis A.safetensors [B.safetensors ...] does the same for anybody's models.
"""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, TypeVar

import tyro
from pydantic import BaseModel, Field, PositiveInt
from rich.console import Console
from rich.table import Table

from analysis.evidence import Evidence
from analysis.measurements import Measurements, measure
from analysis.predictions import verdicts
from analysis.report import write
from analysis.runs import diverged, evidence, read_sweep
from analysis.verdicts import Verdict
from jaxlayers.refusal import Refusal
from train.config import SweepConfig
from train.progress import duration

Item = TypeVar("Item")
COLOURS = {"holds": "green", "fails": "red", "undecided": "yellow", "not measured": "dim"}


class Options(BaseModel):
    """Takes trained models apart and tests the theory's predictions on them."""

    models: tyro.conf.Positional[Annotated[tuple[Path, ...], Field(min_length=1)]] = Field(
        description="the folder of a sweep that `python -m train` made, or evidence files of any models"
    )
    examples: PositiveInt = Field(2048, description="predictions of each model that are taken apart")
    per_sequence: PositiveInt = Field(8, description="of them from one sequence, at most")
    out: Path | None = Field(None, description="where the report goes; none: report, beside the models")


def measured(options: Options, console: Console) -> Iterator[Measurements]:
    """Each model's, one at a time; what an earlier call has measured is read back."""
    first = options.models[0]
    if len(options.models) == 1 and not first.is_file():
        sweep = read_sweep(first)
        lost = lost_runs(first, sweep)
        for run in lost:
            console.print(f"{run} diverged and is left out", highlight=False)
        number = len(sweep.groups()) * len(sweep.seeds) - len(lost)
        found = evidence(first, sweep, options.examples, options.per_sequence)
    else:
        number = len(options.models)
        found = ((path, Evidence.load(path)) for path in options.models)
    begun = said = time.monotonic()
    for i, (path, each) in enumerate(ahead(found), 1):
        cache = path.with_suffix(".measurements")
        fresh = cache.exists() and cache.stat().st_mtime_ns >= path.stat().st_mtime_ns
        model = Measurements.load(cache) if fresh else None
        if model is None:
            model = measure(each)
            model.save(cache)
        now = time.monotonic()
        if now - said > 5 or i == number:
            left = duration((now - begun) / i * (number - i))
            console.print(f"{i} of {number} models taken apart  {left} left", highlight=False)
            said = now
        yield model


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same, each being made while the one before it is used: both are mostly compiling, on one core."""
    with ThreadPoolExecutor(1) as maker:
        coming = maker.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = maker.submit(next, items, None)
            yield item


def lost_runs(folder: Path, sweep: SweepConfig) -> list[str]:
    return [f"{group.label} seed {seed}" for group in sweep.groups() for seed in diverged(folder, group)]


def table(decided: list[Verdict]) -> Table:
    found = Table("", "prediction", "verdict", "estimate", "interval", "p (Holm)", box=None, padding=(0, 1))
    for verdict in decided:
        numbers = ("", "", "")
        if verdict.estimate is not None:
            p = "exact" if verdict.p_holm is None else f"{verdict.p_holm:.2g}"
            numbers = (f"{verdict.estimate:.3g}", f"{verdict.low:.3g} to {verdict.high:.3g}", p)
        state = f"[{COLOURS[verdict.state]}]{verdict.state}[/]"
        found.add_row(verdict.id, verdict.prediction, state, *numbers)
    return found


def main(arguments: list[str]) -> int:
    console = Console()
    options = tyro.cli(Options, prog="python -m analysis", args=arguments)
    first = options.models[0]
    try:
        models = list(measured(options, console))
        decided = verdicts(models)
        folder = options.out or (first if first.is_dir() else first.parent) / "report"
        lost = lost_runs(first, read_sweep(first)) if first.is_dir() else []
        page = write(folder, f"{first.stem}: layers, taken apart", models, decided, lost)
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 2
    console.print(table(decided))
    console.print(f"report: {page}", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
