"""python -m analysis FOLDER: takes each model of a sweep apart, decides the predictions, writes the report.

python -m analysis A.safetensors [B.safetensors ...] does the same for anybody's models.
"""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import tyro
from pydantic import BaseModel, Field, PositiveInt
from rich.console import Console
from rich.table import Table

from analysis.evidence import Evidence
from analysis.measurements import Measurements, measure
from analysis.predictions import verdicts
from analysis.report import tables, write
from analysis.runs import diverged, evidence, read_sweep
from analysis.verdicts import Verdict
from jaxlayers import xla
from jaxlayers.refusal import Refusal
from train.progress import duration
from train.tasks import CACHE

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


@dataclass(frozen=True)
class Source:
    """Where the models are from: their evidence, one after the other, and what cannot have any."""

    folder: Path
    number: int
    evidence: Iterator[tuple[Path, Evidence]]
    diverged: list[str]

    @classmethod
    def of(cls, options: Options) -> "Source":
        first = options.models[0]
        if len(options.models) > 1 or first.is_file():
            files = ((path, Evidence.load(path)) for path in options.models)
            return cls(first.parent, len(options.models), files, [])
        sweep = read_sweep(first)
        lost = [f"{group.label} seed {seed}" for group in sweep.groups() for seed in diverged(first, group)]
        number = len(sweep.groups()) * len(sweep.seeds) - len(lost)
        return cls(first, number, evidence(first, sweep, options.examples, options.per_sequence), lost)


def measured(source: Source, console: Console) -> Iterator[Measurements]:
    """Each model's, one at a time; what an earlier call has measured is read back."""
    begun = said = time.monotonic()
    for i, (path, each) in enumerate(ahead(source.evidence), 1):
        cache = path.with_suffix(".measurements")
        fresh = cache.exists() and cache.stat().st_mtime_ns >= path.stat().st_mtime_ns
        model = Measurements.load(cache) if fresh else None
        if model is None:
            try:
                model = measure(each)
            except Refusal as refusal:
                raise Refusal(f"{path}: {refusal}") from None
            model.save(cache)
        now = time.monotonic()
        if now - said > 5 or i == source.number:
            left = duration((now - begun) / i * (source.number - i))
            console.out(f"{i} of {source.number} models taken apart  {left} left", highlight=False)
            said = now
        yield model


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same, each being made while the one before it is used: both are mostly compiling, on one core."""
    with ThreadPoolExecutor(1) as maker:
        coming = maker.submit(next, items, None)
        while (item := coming.result()) is not None:
            xla.make_room()
            coming = maker.submit(next, items, None)
            yield item


def table(decided: list[Verdict]) -> Table:
    found = Table("", "prediction", "verdict", "estimate", "interval", "p (Holm)", box=None, padding=(0, 1))
    for verdict in decided:
        state = f"[{COLOURS[verdict.state]}]{verdict.state}[/]"
        numbers = (tables.number(verdict.estimate), tables.interval(verdict), tables.p_value(verdict))
        found.add_row(verdict.id, verdict.prediction, state, *numbers)
    return found


def main(arguments: list[str]) -> int:
    console = Console()
    options = tyro.cli(Options, prog="python -m analysis", args=arguments)
    xla.keep_programs(CACHE / "programs")
    try:
        source = Source.of(options)
        for run in source.diverged:
            console.out(f"{run} diverged and is left out", highlight=False)
        models = list(measured(source, console))
        decided = verdicts(models)
        title = f"{options.models[0].stem}: layers, taken apart"
        page = write(options.out or source.folder / "report", title, models, decided, source.diverged)
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 2
    console.print(table(decided))
    for verdict in decided:
        if verdict.state == "not measured":
            console.out(f"{verdict.id} not measured: {verdict.why}", highlight=False)
    console.out(f"report: {page}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
