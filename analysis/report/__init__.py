"""What is shown: one page, its figures as SVG and PDF, its tables as CSV, the verdicts as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vl_convert

from analysis.measurements import Measurements
from analysis.report import tables
from analysis.report.behind import of_verdict
from analysis.report.charts import sheet
from analysis.report.figures import figures
from analysis.report.page import page
from analysis.verdicts import Verdict
from jaxlayers.refusal import Refusal
from train.metrics import write_csv


def write(
    folder: Path,
    title: str,
    models: Sequence[Measurements],
    verdicts: Sequence[Verdict],
    diverged: Sequence[str] = (),
) -> Path:
    """Writes everything into a folder and returns the page, which names the runs that diverged.

    Raises `Refusal` where no folder can be made.
    """
    for name in ("figures", "tables"):
        try:
            (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refusal(f"no report can be written to {folder} ({error.strerror}): name another") from None
    drawn = figures(models)
    sheets = {figure.id: figure.panels for figure in drawn}
    sheets |= {verdict.id: panels for verdict in verdicts if (panels := of_verdict(verdict.id, verdict.data))}
    for name, panels in sheets.items():
        specification = sheet(panels)
        (folder / "figures" / f"{name}.svg").write_text(vl_convert.vegalite_to_svg(specification))
        (folder / "figures" / f"{name}.pdf").write_bytes(vl_convert.vegalite_to_pdf(specification))
    rows = tables.models(models)
    records: dict[str, list[dict[str, Any]]] = {"models": rows}
    records |= {figure.id: figure.records for figure in drawn}
    records |= {verdict.id: verdict.data for verdict in verdicts if verdict.data}
    for name, table in records.items():
        write_csv(folder / "tables" / f"{name}.csv", table)
    plain = [verdict.json() for verdict in verdicts]
    (folder / "verdicts.json").write_text(json.dumps(plain, indent=2, ensure_ascii=False) + "\n")
    path = folder / "index.html"
    path.write_text(page(title, summary(models, diverged), verdicts, drawn, rows))
    return path


def summary(models: Sequence[Measurements], diverged: Sequence[str] = ()) -> str:
    """What the numbers of the page are of."""
    examples = " or ".join(f"{n:,}" for n in sorted({len(model.loss) for model in models}))
    seeds = len({model.seed for model in models})
    depths = ", ".join(str(depth) for depth in sorted({model.depth for model in models}))
    words = (
        f"{len(models)} models, {seeds} {'seed' if seeds == 1 else 'seeds'}, depths {depths}; "
        f"{examples} examples each. Cross-entropy in nats. Shared gauge, "
        f"{granularity(models)} granularity, contribution reading."
    )
    if diverged:
        words += f" Left out, since they diverged: {', '.join(diverged)}."
    return words


def granularity(models: Sequence[Measurements]) -> str:
    """The finest kind of member: what the models are taken apart into."""
    kinds = {member.kind for model in models for member in model.members}
    for kind, name in (("head", "head"), ("attention", "module"), ("mlp", "module"), ("block", "block")):
        if kind in kinds:
            return name
    return "/".join(sorted(kinds))
