"""Figures on screen: a panel as the plain data that plotly.js draws. The page's script gives it the theme's colours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from ..drawing import Entry, entry_of, finite_line
from ..figures.base import Panel, Series

FEW = 24  # up to so many points, each has a marker
# plotly.js has names where matplotlib has letters.
SYMBOLS = {
    "o": "circle",
    "D": "diamond",
    "s": "square",
    "^": "triangle-up",
    "v": "triangle-down",
    "P": "cross",
    "X": "x",
    "<": "triangle-left",
    ">": "triangle-right",
    "h": "hexagon",
}


def chart(panel: Panel, entries: Sequence[Entry]) -> dict[str, Any]:
    """``data`` and ``layout`` of ``Plotly.newPlot``; each trace's ``meta`` says which entry of the legend it is."""
    traces = [trace for series in panel.series for trace in _traces(panel, series, entries)]
    # Lines come after all bands, so that no band covers a line.
    traces.sort(key=lambda trace: trace["meta"]["part"] != "band")
    return {
        "data": traces,
        "layout": {
            "xaxis": _axis(panel.x_label, panel.log_x),
            "yaxis": _axis(panel.y_label, panel.log_y),
        },
    }


def _axis(title: str, is_log: bool) -> dict[str, Any]:
    # 10k steps are easily read, a learning rate of 50µ is not.
    short = {"exponentformat": "none" if is_log else "B"}
    return {"title": {"text": _text(title)}, "type": "log" if is_log else "linear", **short}


def _traces(panel: Panel, series: Series, entries: Sequence[Entry]) -> list[dict[str, Any]]:
    place, line = entry_of(series, entries), finite_line(panel, series)
    entry = entries[place]
    spread = ""
    if len(series.low):
        spread = " [%{customdata[0]:.3g}, %{customdata[1]:.3g}]"
    main = {
        "x": line.x,
        "y": line.y,
        "name": _text(entry.label),
        "mode": "lines+markers" if len(line.x) <= FEW else "lines",
        "line": {"width": 2, "dash": "dash" if entry.dashed else "solid"},
        "marker": {"symbol": SYMBOLS[entry.style.marker], "size": 7},
        "hovertemplate": f"%{{y:.3g}}{spread}",
        "meta": _meta("line", place, entry),
    }
    if spread:
        known = dict(zip(series.x, zip(series.low, series.high, strict=True), strict=True))
        main["customdata"] = [[_number(end) for end in known[x]] for x in line.x]
    traces = [main]
    if line.band_x:
        outline = {"x": line.band_x + line.band_x[::-1], "y": line.high + line.low[::-1], "fill": "toself"}
        quiet = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
        traces.append(outline | quiet | {"meta": _meta("band", place, entry)})
    if line.end:
        cross = {"x": [line.end[0]], "y": [line.end[1]], "mode": "markers", "name": f"{main['name']} diverges"}
        look = {"marker": {"symbol": "x-thin", "size": 10, "line": {"width": 2.5}}, "hoverinfo": "skip"}
        traces.append(cross | look | {"meta": _meta("end", place, entry)})
    return traces


def _meta(part: str, place: int, entry: Entry) -> dict[str, Any]:
    return {"part": part, "entry": place, "light": entry.style.light, "dark": entry.style.dark}


def _number(value: float) -> float | str:
    """JSON has no infinities; the hover shows a string as it is."""
    return value if abs(value) < float("inf") else "∞"


def _text(text: str) -> str:
    """plotly.js reads a few tags in its texts: none of ours is one."""
    return escape(text, quote=False)
