"""What is written down while runs train: one JSON object a line, which everything else is made from."""

import csv
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from train.files import written_whole
from train.sinks import Line, Sink

FILE = "metrics.jsonl"


class Metrics:
    """Appends lines to a group's `metrics.jsonl`; no step appears twice after a resume."""

    def __init__(
        self, folder: Path, resumed: int, sinks: Callable[[list[Line]], list[Sink]] = lambda kept: []
    ):
        """Drops what was written after the step from which training goes on; `sinks` begin with the rest."""
        path = folder / FILE
        kept = [line for line in lines(path) if line["step"] <= resumed]
        with written_whole(path) as file:
            file.writelines(map(encode, kept))
        self.seconds = max((line.get("seconds", 0.0) for line in kept), default=0.0)  # of training so far
        self.sinks = sinks(kept)
        self.file = path.open("a")

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()
        for sink in self.sinks:
            sink.close()

    def write(self, **values: Any) -> None:
        self.file.write(encode(values))
        for sink in self.sinks:
            sink.write(values)

    def flush(self) -> None:
        self.file.flush()


class Unwritten(Metrics):
    """Those of a process that another one writes for."""

    def __init__(self) -> None:
        self.seconds, self.sinks, self.file = 0.0, [], open(os.devnull, "w")  # noqa: SIM115 closed by __exit__


def encode(values: dict[str, Any]) -> str:
    """One line; what is not finite is null, since JSON knows no NaN."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
    return json.dumps(plain) + "\n"


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a metrics file; a last line torn by a kill is left out."""
    if path.exists():
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """A table with a column for each key of any row."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with written_whole(path) as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
