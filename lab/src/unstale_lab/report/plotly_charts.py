"""Interactive plots: a panel as data for plotly.js. The page's script applies the colours of the theme."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from ..analysis.panels import Panel, Series
from .drawing import LegendEntry, entry_index, finite_line

MAX_POINTS_WITH_MARKERS = 24
# matplotlib marker → plotly.js symbol.
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


def chart(panel: Panel, entries: Sequence[LegendEntry]) -> dict[str, Any]:
    """Return ``data`` and ``layout`` for ``Plotly.newPlot``; ``meta`` of a trace has the index of its legend entry."""
    traces = [trace for series in panel.series for trace in _traces(panel, series, entries)]
    # Bands first, so that no band covers a line.
    traces.sort(key=lambda trace: trace["meta"]["part"] != "band")
    return {
        "data": traces,
        "layout": {
            "xaxis": _axis(panel.x_label, panel.log_x),
            "yaxis": _axis(panel.y_label, panel.log_y),
        },
    }


def _axis(title: str, is_log: bool) -> dict[str, Any]:
    # 10k steps are readable, a learning rate of 50µ is not.
    exponent = {"exponentformat": "none" if is_log else "B"}
    return {"title": {"text": _text(title)}, "type": "log" if is_log else "linear", **exponent}


def _traces(panel: Panel, series: Series, entries: Sequence[LegendEntry]) -> list[dict[str, Any]]:
    index, line = entry_index(series, entries), finite_line(panel, series)
    entry = entries[index]
    spread = ""
    if len(series.low):
        spread = " [%{customdata[0]:.3g}, %{customdata[1]:.3g}]"
    main = {
        "x": line.x,
        "y": line.y,
        "name": _text(entry.label),
        "mode": "lines+markers" if len(line.x) <= MAX_POINTS_WITH_MARKERS else "lines",
        "line": {"width": 2, "dash": "dash" if entry.dashed else "solid"},
        "marker": {"symbol": SYMBOLS[entry.style.marker], "size": 7},
        "hovertemplate": f"%{{y:.3g}}{spread}",
        "meta": _meta("line", index, entry),
    }
    if spread:
        bands = dict(zip(series.x, zip(series.low, series.high, strict=True), strict=True))
        main["customdata"] = [[_number(end) for end in bands[x]] for x in line.x]
    traces = [main]
    if line.band_x:
        outline = {"x": line.band_x + line.band_x[::-1], "y": line.high + line.low[::-1], "fill": "toself"}
        style = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
        traces.append(outline | style | {"meta": _meta("band", index, entry)})
    if line.end:
        cross = {"x": [line.end[0]], "y": [line.end[1]], "mode": "markers", "name": f"{main['name']} diverges"}
        style = {"marker": {"symbol": "x-thin", "size": 10, "line": {"width": 2.5}}, "hoverinfo": "skip"}
        traces.append(cross | style | {"meta": _meta("end", index, entry)})
    return traces


def _meta(part: str, index: int, entry: LegendEntry) -> dict[str, Any]:
    return {"part": part, "entry": index, "light": entry.style.light, "dark": entry.style.dark}


def _number(value: float) -> float | str:
    """Return infinities as strings: JSON has none, and the hover text shows strings unchanged."""
    return value if abs(value) < float("inf") else "∞"


def _text(text: str) -> str:
    """Escape tags, which plotly.js would interpret."""
    return escape(text, quote=False)
