"""The page: one file that needs nothing else, every chart's specification and its library within."""

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

import vl_convert

from analysis.report.charts import specification
from analysis.report.figures import Figure, Panels, of_verdict
from analysis.verdicts import Verdict

CLASS = {"holds": "holds", "fails": "fails", "undecided": "undecided", "not measured": "none"}


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
        f'<span class="{CLASS[v.state]}">{escape(v.state)}</span></h3>'
        f'<p>{escape(v.why)}</p><p class="dim">{escape(_would_change(v))}</p>'
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
        verdicts=_table([_row(v) for v in verdicts]),
        reasons=reasons,
        figures=drawn,
        models=_table(models),
        library=vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"),
        charts=json.dumps(charts).replace("</", "<\\/"),
    )


def _would_change(verdict: Verdict) -> str:
    words = "To measure it" if verdict.state == "not measured" else "What would have changed it"
    return f"{words}: {verdict.would_change}"


def _row(verdict: Verdict) -> dict[str, Any]:
    return {
        "": verdict.id,
        "prediction": verdict.prediction,
        "verdict": verdict.state,
        "statistic": verdict.statistic,
        "estimate": verdict.estimate,
        "low": verdict.low,
        "high": verdict.high,
        "p (Holm)": verdict.p_holm,
    }


def number(value: Any) -> str:
    """As it is told: three digits of a float, and a dash for nothing."""
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _table(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "<p>none</p>"
    heads = "".join(f'<th scope="col" aria-sort="none">{escape(name)}</th>' for name in rows[0])
    body = "".join(
        "<tr>" + "".join(_cell(name, value) for name, value in row.items()) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _cell(name: str, value: Any) -> str:
    if name == "verdict":
        return f'<td class="state {CLASS[value]}">{escape(value)}</td>'
    return f"<td>{escape(number(value))}</td>"
