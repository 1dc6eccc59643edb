"""The page: one file that needs nothing else, every chart's specification and its library within."""

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import vl_convert

from analysis.report import tables
from analysis.report.behind import of_verdict
from analysis.report.charts import HEIGHT, PALETTES, THEME, specification
from analysis.report.records import Figure, Panels
from analysis.verdicts import Verdict


def page(
    title: str,
    summary: str,
    verdicts: Sequence[Verdict],
    figures: Sequence[Figure],
    models: Sequence[dict[str, Any]],
) -> str:
    """HTML, in light or dark as the reader's system is."""
    charts: dict[str, dict[str, Any]] = {}

    def panels(id: str, drawn: Panels) -> str:
        found = []
        for i, (name, chart) in enumerate(drawn.items()):
            charts[f"{id}-{i}"] = specification(chart)
            heading = f"<h4>{escape(name)}</h4>" if name else ""
            found.append(f'<div>{heading}<div class="panel" id="{id}-{i}"></div></div>')
        return f'<div class="panels">{"".join(found)}</div>'

    reasons = "".join(
        f"<h3>{escape(f'{v.id}  {v.prediction}')}: "
        f'<span class="{tables.STATES[v.state]}">{escape(v.state)}</span></h3>'
        f'<p>{escape(v.why)}</p><p class="dim">{escape(_would_change(v))}{escape(_left_out(v, models))}</p>'
        + panels(f"verdict-{v.id}", of_verdict(v.id, v.data))
        for v in verdicts
    )
    drawn = "".join(
        f"<h3>{escape(figure.title)}</h3><figure>{panels(figure.id, figure.panels)}"
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
        for figure in figures
    )
    return Template(files(__package__).joinpath("template.html").read_text()).substitute(
        title=escape(title),
        summary=escape(summary),
        verdicts=tables.verdicts(verdicts),
        reasons=reasons,
        figures=drawn,
        models=tables.html(models),
        library=vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"),
        charts=_script(charts),
        palettes=_script(PALETTES),
        theme=_script(THEME),
        height=HEIGHT,
    )


def _script(value: Any) -> str:
    return json.dumps(value).replace("</", "<\\/")


def _would_change(verdict: Verdict) -> str:
    words = "To measure it" if verdict.state == "not measured" else "What would have changed it"
    return f"{words}: {verdict.would_change}"


def _left_out(verdict: Verdict, models: Sequence[dict[str, Any]]) -> str:
    """Of a verdict on single models, those that could not be used for it."""
    key = ("task", "architecture", "depth", "seed")
    used = {tuple(row[k] for k in key) for row in verdict.data if row.keys() >= set(key)}
    without = [model for model in models if tuple(model[k] for k in key) not in used]
    if not used or not without:
        return ""
    return f" Without {len(without)} of the {len(models)} models, which could not be used for it."
