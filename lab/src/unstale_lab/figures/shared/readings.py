"""The two readings of a figure: as described in the paper's text, and as the authors' code ran it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...analysis.curves import divergence_panels, iqm_panel, paper_panel, sensitivity_panel
from ...analysis.panels import Panel
from ...analysis.run_table import select
from ...claims.verdict import READING_NAMES, READINGS, Reading, Verdict
from ...records import Record
from .grids import PAPER_METHODS, Choices, Grid

# The authors measured errors on the states of training batches.
ERROR_CURVES: dict[Reading, str] = {"text": "evaluation", "code": "training"}


def as_authors_ran(grid: Grid, quick: Choices | None = None, smoke: Choices | None = None, **more: Any) -> Grid:
    """Return the grid of the authors' code: its conventions, the paper's methods, and other choices.

    Args:
        grid: as described in the text.
        quick: what the scale "quick" reduces among ``more``.
        smoke: what the scale "smoke" reduces among ``more``.
        more: the authors' choices.
    """
    return grid.vary(paper={"method": PAPER_METHODS, "convention": "code", **more}, quick=quick, smoke=smoke)


def by_reading(records: Sequence[Record]) -> dict[Reading, list[Record]]:
    """Return the records of each reading that has some."""
    groups = {reading: select(records, convention=reading) for reading in READINGS}
    return {reading: group for reading, group in groups.items() if group}


def each_reading(
    verdict: Callable[[Sequence[Record], Reading], Verdict],
) -> Callable[[Sequence[Record]], list[Verdict]]:
    """Return a function that judges each reading of which there are records."""
    return lambda records: [verdict(group, reading) for reading, group in by_reading(records).items()]


def reading_prefix(reading: Reading) -> str:
    """Return what the titles of further panels begin with: nothing for the text's reading."""
    return "" if reading == "text" else READING_NAMES[reading]


def titled(title: str, reading: Reading) -> str:
    """Return the title of a panel, with the reading unless it is that of the text.

    >>> titled("Figure 3", "text"), titled("Figure 3", "code")
    ('Figure 3', 'Figure 3, as the authors ran it')
    """
    return title if reading == "text" else f"{title}, {READING_NAMES[reading]}"


def overview_panels(
    records: Sequence[Record], title: str, field: str = "alpha", methods: Sequence[str] = tuple(PAPER_METHODS)
) -> list[Panel]:
    """Return panels like the paper's; then robust means, sensitivity to a hyper-parameter and divergences."""
    groups = by_reading(records)
    first = [
        paper_panel(group, titled(title, reading), methods, ERROR_CURVES[reading]) for reading, group in groups.items()
    ]
    further = [panel for reading, group in groups.items() for panel in _further_panels(group, reading, field)]
    return [*first, *further]


def _further_panels(records: Sequence[Record], reading: Reading, field: str) -> list[Panel]:
    prefix = reading_prefix(reading)
    several = len({getattr(record.run, field) for record in records}) > 1
    return [
        iqm_panel(records, ERROR_CURVES[reading], prefix),
        *([sensitivity_panel(records, field, prefix=prefix, curve=ERROR_CURVES[reading])] if several else []),
        *divergence_panels(records, field, prefix),
    ]
