"""The two readings of a figure: as described in the paper's text, and as the authors' code ran it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...analysis.curves import divergence_panels, iqm_panel, paper_panel, sensitivity_panel
from ...analysis.panels import Panel
from ...analysis.run_table import select, tabulate
from ...claims.contrast import MAX_DIVERGENCE_RATE, format_levels, learning_rates
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
    records: Sequence[Record], title: str, methods: Sequence[str] = tuple(PAPER_METHODS)
) -> list[Panel]:
    """Return panels like the paper's; then robust means, errors and divergences over the learning rate."""
    groups = by_reading(records)
    first = [
        paper_panel(group, titled(title, reading), methods, ERROR_CURVES[reading]) for reading, group in groups.items()
    ]
    stable = [panel for reading, group in groups.items() for panel in _stable_panels(group, reading, title, methods)]
    further = [panel for reading, group in groups.items() for panel in _further_panels(group, reading)]
    return [*first, *stable, *further]


def _stable_panels(records: Sequence[Record], reading: Reading, title: str, methods: Sequence[str]) -> list[Panel]:
    """Return the paper's panel at the learning rates at which no method diverges in more than a quarter of its runs.

    All methods are averaged over the same settings there. No panel if these are all learning rates, or none.
    """
    rated, symbol = _by_effective_rate(select(records, method=list(methods)))
    shares = {rate: _largest_divergence_rate(select(rated, alpha=rate)) for rate in {r.run.alpha for r in rated}}
    stable = [rate for rate, share in shares.items() if share <= MAX_DIVERGENCE_RATE]
    if len(stable) in (0, len(shares)):
        return []
    where = format_levels(symbol, stable, list(shares))
    return [
        paper_panel(select(rated, alpha=stable), titled(f"{title} at {where}", reading), methods, ERROR_CURVES[reading])
    ]


def _largest_divergence_rate(records: Sequence[Record]) -> float:
    return max(float(np.isinf(errors).mean()) for errors in tabulate(records).final().values())


def _by_effective_rate(records: Sequence[Record]) -> tuple[list[Record], str]:
    """Return the records with the learning rates that verdicts are about, and their symbol."""
    settings = tabulate(records).settings
    rates, symbol = learning_rates(tabulate(records))
    by_setting = {(s.alpha, s.beta): rate for s, rate in zip(settings, rates, strict=True)}
    return [replace(r, run=replace(r.run, alpha=by_setting[r.run.alpha, r.run.beta])) for r in records], symbol


def _further_panels(records: Sequence[Record], reading: Reading) -> list[Panel]:
    prefix = reading_prefix(reading)
    records, symbol = _by_effective_rate(records)
    several = len({record.run.alpha for record in records}) > 1
    over_rate = [
        *([sensitivity_panel(records, "alpha", prefix=prefix, curve=ERROR_CURVES[reading])] if several else []),
        *divergence_panels(records, "alpha", prefix),
    ]
    return [
        iqm_panel(records, ERROR_CURVES[reading], prefix),
        *(replace(panel, x_label=f"learning rate {symbol}") for panel in over_rate),
    ]
