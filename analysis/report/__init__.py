"""What is shown: one page, its figures as SVG and PDF, its tables as CSV, the verdicts as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import vl_convert

from analysis.measurements import Measurements
from analysis.report.charts import sheet
from analysis.report.figures import figures, of_verdict
from analysis.report.page import page
from analysis.verdicts import Verdict
from train.metrics import write_csv

SETTING = (
    "Cross-entropy in nats on held-out examples; members are modules (the embedding, each attention, each "
    "MLP), read as contributions in the shared gauge."
)


def write(
    folder: Path,
    title: str,
    models: Sequence[Measurements],
    verdicts: Sequence[Verdict],
    diverged: Sequence[str] = (),
) -> Path:
    """Writes everything into a folder and returns the page, which names the runs that diverged."""
    drawn = figures(models)
    for name in ("figures", "tables"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    sheets = {figure.id: figure.panels for figure in drawn}
    sheets |= {verdict.id: panels for verdict in verdicts if (panels := of_verdict(verdict.id, verdict.data))}
    for name, panels in sheets.items():
        specification = sheet(panels)
        (folder / "figures" / f"{name}.svg").write_text(vl_convert.vegalite_to_svg(specification))
        (folder / "figures" / f"{name}.pdf").write_bytes(vl_convert.vegalite_to_pdf(specification))
    table = [row(model) for model in models]
    records: dict[str, Sequence[dict[str, Any]]] = {"models": table}
    records |= {figure.id: figure.records for figure in drawn}
    records |= {verdict.id: verdict.data for verdict in verdicts if verdict.data}
    for name, rows in records.items():
        write_csv(folder / "tables" / f"{name}.csv", list(rows))
    plain = [verdict.json() for verdict in verdicts]
    (folder / "verdicts.json").write_text(json.dumps(plain, indent=2, ensure_ascii=False) + "\n")

    examples = ", ".join(sorted({f"{len(model.loss):,}" for model in models}))
    summary = f"{len(models)} models, {examples} examples each. {SETTING}"
    if diverged:
        summary += f" Left out, since they diverged: {', '.join(diverged)}."
    path = folder / "index.html"
    path.write_text(page(title, summary, verdicts, drawn, table))
    return path


def row(model: Measurements) -> dict[str, Any]:
    """A model in the table of models."""
    return {
        "task": model.task,
        "architecture": model.architecture,
        "depth": model.depth,
        "seed": model.seed,
        "parameters": model.parameters,
        "loss": float(model.loss.mean()),
        "accuracy": float(model.accuracy.value),
        "bias": float(model.bias.mean()),
        "diversity": float(model.diversity.mean()),
        "ρ": model.ratio,
        "within blocks": float(model.within_blocks.value),
        "between blocks": float(model.between_blocks.value),
        "violation rate": float(model.performance["violation_rate"].value),
    }
