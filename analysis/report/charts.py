"""The few kinds of chart that the report draws, each with its intervals and values to hover over.

A chart is an Altair specification of plain records, and the only one there is of it: the page shows it,
and its SVG and PDF are drawn from it.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import altair as alt

Records: TypeAlias = Sequence[dict[str, Any]]
Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart

PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999"]
"""Okabe and Ito's, which the colour-blind tell apart."""


def curve(
    records: Records,
    x: str,
    y: str,
    titles: tuple[str, str],
    colour: str | None = None,
    order: Sequence[Any] | None = None,
    log: bool = False,
    zero: bool = False,
    line: bool = True,
) -> Chart:
    """Points with their intervals (`low` to `high`), joined by a line for each `colour`.

    Args:
        titles: of the two axes, with units.
        order: of the colours, in the legend.
        log: whether x is logarithmic, base 2.
    """
    horizontal = alt.X(x, type="quantitative", title=titles[0], scale=alt.Scale(zero=False))
    if log:
        ticks = alt.Axis(values=sorted({record[x] for record in records}))
        horizontal = horizontal.scale(type="log", base=2).axis(ticks)
    shared: dict[str, Any] = {"x": horizontal}
    if colour:
        shared["color"] = alt.Color(
            colour, type="nominal", sort=list(order or []) or None, scale=alt.Scale(range=PALETTE)
        )
    value = alt.Y(y, type="quantitative", title=titles[1], scale=alt.Scale(zero=zero))
    base = alt.Chart(alt.Data(values=list(records))).encode(**shared)
    layers = [
        base.mark_rule(strokeWidth=1.5, opacity=0.7).encode(y=alt.Y("low", type="quantitative"), y2="high"),
        base.mark_point(filled=True, size=45, opacity=1).encode(y=value, tooltip=_tooltip(records)),
    ]
    if line:
        layers.insert(0, base.mark_line(opacity=0.6).encode(y=value))
    return alt.layer(*layers)


def scatter(records: Records, x: str, y: str, titles: tuple[str, str], colour: str | None = None) -> Chart:
    """A point for each record."""
    encoding: dict[str, Any] = {
        "x": alt.X(x, type="quantitative", title=titles[0], scale=alt.Scale(zero=False)),
        "y": alt.Y(y, type="quantitative", title=titles[1], scale=alt.Scale(zero=False)),
        "tooltip": _tooltip(records),
    }
    if colour:
        encoding["color"] = alt.Color(colour, type="nominal", scale=alt.Scale(range=PALETTE))
    return alt.Chart(alt.Data(values=list(records))).mark_point(filled=True, size=45).encode(**encoding)


def lines(records: Records, x: str, y: str, colour: str, order: Sequence[str] | None = None) -> Chart:
    """Smooth lines to lay under a curve, which has the axes' titles."""
    encoding: dict[str, Any] = {
        "x": alt.X(x, type="quantitative"),
        "y": alt.Y(y, type="quantitative"),
        "color": alt.Color(
            colour, type="nominal", sort=list(order or []) or None, scale=alt.Scale(range=PALETTE)
        ),
        "tooltip": _tooltip(records),
    }
    return alt.Chart(alt.Data(values=list(records))).mark_line(strokeWidth=1.5).encode(**encoding)


def named(
    records: Records, name: str, value: str, title: str, colour: str | None = None, bar: bool = False
) -> Chart:
    """A row for each name, in the order of the records: a point, or a bar from 0, with its interval."""
    names = list(dict.fromkeys(record[name] for record in records))
    shared: dict[str, Any] = {"y": alt.Y(name, type="nominal", title=None, sort=names)}
    if colour:
        shared["color"] = alt.Color(colour, type="nominal", scale=alt.Scale(range=PALETTE))
    base = alt.Chart(alt.Data(values=list(records))).encode(**shared)
    mark = base.mark_bar(opacity=0.8) if bar else base.mark_point(filled=True, size=45, opacity=1)
    return alt.layer(
        mark.encode(x=alt.X(value, type="quantitative", title=title), tooltip=_tooltip(records)),
        base.mark_rule(strokeWidth=1.5).encode(x=alt.X("low", type="quantitative"), x2="high"),
    )


def heat(records: Records, x: str, y: str, value: str, title: str) -> Chart:
    """A square for each pair of names, in the order of the records."""
    names = list(dict.fromkeys(record[x] for record in records))
    return (
        alt.Chart(alt.Data(values=list(records)))
        .mark_rect()
        .encode(
            x=alt.X(x, type="nominal", sort=names, title=None),
            y=alt.Y(y, type="nominal", sort=names, title=None),
            color=alt.Color(value, type="quantitative", title=title, scale=alt.Scale(scheme="viridis")),
            tooltip=_tooltip(records),
        )
    )


def _tooltip(records: Records) -> list[alt.Tooltip]:
    """All that a record says: its value, its interval and what it is of."""
    names = dict.fromkeys(key for record in records for key in record)
    numbers = {name for name in names if any(isinstance(record.get(name), float) for record in records)}
    return [
        alt.Tooltip(name, type="quantitative", format=".4~g")
        if name in numbers
        else alt.Tooltip(name, type="nominal")
        for name in names
    ]


def specification(chart: Chart) -> dict[str, Any]:
    """As Vega-Lite has it, for the page, which brings colours and width."""
    found = chart.to_dict()
    found.pop("config")  # the theme's, which is for the SVG and the PDF
    return found


def sheet(panels: dict[str, Chart]) -> dict[str, Any]:
    """All panels side by side, for the SVG and the PDF."""
    titled = [panel.properties(title=name, width=320, height=240) for name, panel in panels.items()]
    sheet = alt.concat(*titled, columns=2).resolve_scale(color="independent")
    return sheet.configure(numberFormat="~g", font="sans-serif").to_dict()
