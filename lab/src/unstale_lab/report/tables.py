"""The numbers behind a panel, for those who cannot see it or would rather read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..drawing import label
from ..figures.base import Panel
from .words import number

ROWS = 12


@dataclass(frozen=True)
class Table:
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    thinned: bool  # whether there are more points than rows


def panel_table(panel: Panel) -> Table:
    """A row for every x, or for ``ROWS`` of them, the first and the last included."""
    points = sorted({x for series in panel.series for x in series.x})
    kept = points
    if len(points) > ROWS:
        kept = [points[round(i * (len(points) - 1) / (ROWS - 1))] for i in range(ROWS)]
    columns = [dict(zip(series.x, series.y, strict=True)) for series in panel.series]
    return Table(
        heading=[panel.x_label, *(label(series) for series in panel.series)],
        rows=[[number(x), *(number(column.get(x)) for column in columns)] for x in kept],
        thinned=len(points) > ROWS,
    )


def panel_words(panel: Panel) -> str:
    """What a chart shows, in a sentence."""
    ends = ", ".join(f"{label(s)} {number(s.y[-1])}" for s in panel.series if len(s.y))
    return f"{panel.title}: {panel.y_label} against {panel.x_label}. At the right end: {ends}."
