"""The few kinds of chart that the report draws, each with its intervals and values to hover over.

A chart is an Altair specification of plain records, and the only one there is of it: the page shows it,
and its SVG and PDF are drawn from it.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import altair as alt

Records: TypeAlias = Sequence[dict[str, Any]]
Chart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart

PALETTES = {
    "light": ["#0072B2", "#D55E00", "#008F68", "#B4558B", "#A87400", "#2C8DC4", "#6E6E6E"],
    "dark": ["#56B4E9", "#F08A4B", "#33C79B", "#E39BC4", "#F0C34E", "#A9DBFA", "#B5B5B5"],
}
"""Okabe and Ito's hues, which the colour-blind tell apart, each at 3:1 or more against its paper."""

MARKS = ["circle", "square", "triangle-up", "cross"]
DASHES = [[1, 0], [6, 3], [2, 2], [8, 2, 2, 2]]
"""For the names after as many as there are hues: the same hues again, otherwise drawn."""

HEIGHT = 240
ROW = 14  # pixels that a name needs
THEME = {"axisQuantitative": {"tickCount": 6, "labelOverlap": True}}
"""What the page and the files have in common."""


def curve(
    records: Records,
    x: str,
    y: str,
    titles: tuple[str, str],
    colour: str | None = None,
    shape: str | None = None,
    log: bool = False,
    zero: bool = False,
    line: bool = True,
) -> Chart:
    """Points with their intervals (`low` to `high`), joined by a line for each `colour`.

    Args:
        titles: of the two axes, with units.
        shape: tells points apart that are otherwise alike.
        log: whether x is logarithmic, base 2, with ticks at the records' values and nowhere else.
    """
    shared = {"x": _horizontal(records, x, titles[0], log)} | _coloured(records, colour)
    value = alt.Y(y, type="quantitative", title=titles[1], scale=_vertical(zero))
    base = _chart(records).encode(**shared)
    points = base.mark_point(filled=True, size=45, opacity=1).encode(y=value, tooltip=_tooltip(records))
    joined = base.mark_line(opacity=0.7).encode(y=value)
    if shape:
        points = points.encode(shape=alt.Shape(shape, type="nominal", title=None))
    elif colour and len(_names(records, colour)) > len(PALETTES["light"]):
        names = _names(records, colour)
        points = points.encode(shape=alt.Shape(colour, type="nominal", scale=_each_hue(names, MARKS)))
        dash = alt.StrokeDash(colour, type="nominal", scale=_each_hue(names, DASHES))
        joined = joined.encode(strokeDash=dash)
    layers = [points]
    if _has_intervals(records):
        ends = {"y": alt.Y("low", type="quantitative"), "y2": "high"}
        layers.insert(0, base.mark_rule(strokeWidth=1.5, opacity=0.7).encode(**ends))
    if line:
        layers.insert(0, joined)
    return alt.layer(*layers)


def scatter(
    records: Records,
    x: str,
    y: str,
    titles: tuple[str, str],
    colour: str | None = None,
    log: bool = False,
    format: str | None = None,
) -> Chart:
    """A point for each record; `log` as in `curve`, `format` of the numbers along y."""
    axis = alt.Axis(format=format) if format else alt.Axis()
    encoding = {
        "x": _horizontal(records, x, titles[0], log),
        "y": alt.Y(y, type="quantitative", title=titles[1], axis=axis, scale=_vertical(zero=False)),
        "tooltip": _tooltip(records),
    }
    return _chart(records).mark_point(filled=True, size=45).encode(**encoding | _coloured(records, colour))


def lines(records: Records, x: str, y: str, colour: str, dash: str | None = None) -> Chart:
    """Smooth lines to lay under a curve, which has the axes' titles."""
    encoding: dict[str, Any] = {
        "x": alt.X(x, type="quantitative"),
        "y": alt.Y(y, type="quantitative"),
        "tooltip": _tooltip(records),
    }
    if dash:
        encoding["strokeDash"] = alt.StrokeDash(dash, type="nominal", sort=_names(records, dash))
    return _chart(records).mark_line(strokeWidth=1.5).encode(**encoding | _coloured(records, colour))


def named(
    records: Records, name: str, value: str, title: str, colour: str | None = None, bar: bool = False
) -> Chart:
    """A row for each name, in the order of the records: a point, or a bar from 0, with its interval.

    The `colour`s of a name stand under each other.
    """
    names = _names(records, name)
    shared: dict[str, Any] = {"y": alt.Y(name, type="nominal", title=None, sort=names)}
    if colour:
        shared["yOffset"] = alt.YOffset(colour, type="nominal", sort=_names(records, colour))
    base = _chart(records).encode(**shared | _coloured(records, colour))
    mark = base.mark_bar(opacity=0.8) if bar else base.mark_point(filled=True, size=45, opacity=1)
    along = alt.X(value, type="quantitative", title=title, scale=alt.Scale(zero=bar))
    layers = [mark.encode(x=along, tooltip=_tooltip(records))]
    if _has_intervals(records):
        ends = {"x": alt.X("low", type="quantitative"), "x2": "high"}
        layers.append(base.mark_rule(strokeWidth=1.5).encode(**ends))
    height = _height(names, len(_names(records, colour)) if colour else 1)
    return alt.layer(*layers).properties(height=height)


def heat(records: Records, x: str, y: str, value: str) -> Chart:
    """A square for each pair of names, in the order of the records.

    One of a name with itself is another kind of number: it is told, but the colours are the pairs'.
    """
    names = _names(records, x)
    pairs = [record[value] for record in records if record[x] != record[y]]
    scale = alt.Scale(scheme="viridis", domain=[min(pairs, default=0), max(pairs, default=1)], clamp=True)
    colour = alt.Color(value, type="quantitative", title=value, scale=scale)
    axis = alt.Axis(labelOverlap=True)
    encoding = {
        "x": alt.X(x, type="nominal", sort=names, title=None, axis=axis),
        "y": alt.Y(y, type="nominal", sort=names, title=None, axis=axis),
        "color": alt.when(alt.datum[x] == alt.datum[y]).then(alt.value("#8a8f94")).otherwise(colour),
        "tooltip": _tooltip(records),
    }
    return _chart(records).mark_rect().encode(**encoding).properties(height=_height(names))


def _chart(records: Records) -> alt.Chart:
    return alt.Chart(alt.Data(values=list(records)))


def _names(records: Records, name: str) -> list[Any]:
    """As they first appear."""
    return list(dict.fromkeys(record[name] for record in records))


def _height(names: Sequence[Any], marks: int = 1) -> int:
    """So that neither the names nor the marks beside each of them run into each other."""
    return max(HEIGHT, len(names) * max(ROW, 10 * marks))


def _coloured(records: Records, colour: str | None) -> dict[str, Any]:
    """In the order of the records; which colours is the theme's."""
    if not colour:
        return {}
    # A domain, since legends of scales that are sorted would not become one.
    scale = alt.Scale(domain=_names(records, colour))
    return {"color": alt.Color(colour, type="nominal", scale=scale)}


def _each_hue(names: list[Any], ways: list[Any]) -> alt.Scale:
    """Every hue in the first way, then every hue in the second."""
    hues = len(PALETTES["light"])
    return alt.Scale(domain=names, range=[ways[i // hues % len(ways)] for i in range(len(names))])


def _horizontal(records: Records, x: str, title: str, log: bool) -> alt.X:
    """Points do not lie on the frame, and between whole numbers there are no ticks."""
    scale, axis = alt.Scale(zero=False, nice=False, padding=12), alt.Axis()
    if log:
        scale, axis = (
            alt.Scale(type="log", base=2, nice=False, padding=12),
            alt.Axis(values=sorted(_names(records, x)), format=".3~s", labelOverlap=True),
        )
    elif all(isinstance(record[x], int) for record in records):
        axis = alt.Axis(tickMinStep=1, format="d")
    return alt.X(x, type="quantitative", title=title, scale=scale, axis=axis)


def _vertical(zero: bool) -> alt.Scale:
    return alt.Scale(zero=True) if zero else alt.Scale(zero=False, padding=8)


def _has_intervals(records: Records) -> bool:
    return any(record.get("low") is not None for record in records)


def _tooltip(records: Records) -> list[alt.Tooltip]:
    """All that a record says: its value, its interval and what it is of."""
    names = dict.fromkeys(key for record in records for key in record)
    told = [name for name in names if any(record.get(name) is not None for record in records)]
    numbers = {name for name in told if any(isinstance(record.get(name), float) for record in records)}
    return [
        alt.Tooltip(name, type="quantitative", format=".4~g")
        if name in numbers
        else alt.Tooltip(name, type="nominal")
        for name in told
    ]


def specification(chart: Chart) -> dict[str, Any]:
    """As Vega-Lite has it, for the page, which brings colours and width."""
    found = chart.to_dict()
    found.pop("config")  # the theme's, which is for the SVG and the PDF
    return found


def sheet(panels: dict[str, Chart]) -> dict[str, Any]:
    """All panels side by side, for the SVG and the PDF."""
    titled = [
        panel.properties(
            title=name, width=320, height=HEIGHT if panel.height is alt.Undefined else panel.height
        )
        for name, panel in panels.items()
    ]
    sheet = alt.concat(*titled, columns=2).resolve_scale(
        color="independent", shape="independent", strokeDash="independent"
    )
    theme = {"font": "sans-serif", "range": {"category": PALETTES["light"]}} | THEME
    return sheet.configure(**theme).to_dict()
