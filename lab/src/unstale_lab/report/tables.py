"""The data of a panel as a table and as a sentence, for accessibility."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis.formatting import format_number
from ..analysis.panels import Panel
from .drawing import panel_title, series_label

MAX_ROWS = 12


@dataclass(frozen=True)
class PanelTable:
    """A table of text cells."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    thinned: bool  # whether some points were left out


def panel_table(panel: Panel) -> PanelTable:
    """Return a table with one row per x, at most ``MAX_ROWS``, including the first and the last."""
    points = sorted({x for series in panel.series for x in series.x})
    kept = points
    if len(points) > MAX_ROWS:
        kept = [points[round(i * (len(points) - 1) / (MAX_ROWS - 1))] for i in range(MAX_ROWS)]
    columns = [dict(zip(series.x, series.y, strict=True)) for series in panel.series]
    return PanelTable(
        title=panel_title(panel),
        heading=[panel.x_label, *(series_label(series) for series in panel.series)],
        rows=[[format_number(x), *(format_number(column.get(x)) for column in columns)] for x in kept],
        thinned=len(points) > MAX_ROWS,
    )


def distinct_comparisons(parts: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the comparisons of parts of a verdict, each once: several parts may rest on one comparison."""
    found = [part["comparison"] for part in parts if part["comparison"]]
    return [comparison for i, comparison in enumerate(found) if comparison not in found[:i]]


def describe_panel(panel: Panel) -> str:
    """Describe a chart in a sentence."""
    ends = ", ".join(f"{series_label(s)} {format_number(s.y[-1])}" for s in panel.series if len(s.y))
    return f"{panel_title(panel)}: {panel.y_label} over {panel.x_label}. Last values: {ends}."
