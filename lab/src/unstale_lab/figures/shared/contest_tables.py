"""Tables of a study of tuned optimizers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...analysis.formatting import MISSING, format_interval, format_number, format_p, format_p_value
from ...analysis.panels import Table
from ...analysis.statistics import iqm
from ...claims.contrast import SIGNIFICANCE_LEVEL
from .contest import Contestant, Entry, SetupResult, Study, holm_p
from .contest_findings import PValues, describe_difference, describe_setup, sample_count
from .tuned import Cell, mean_interval

HEADING = [
    "optimizer",
    "α",
    "β",
    "samples",
    "final MSE [95 % CI]",
    "median",
    "IQM",
    "ratio to the best reference [95 % CI]",
    "p, paired",
    "p, Holm",
    "MSE over training",
    "diverged",
    "diverged in the search",
]


def tables(study: Study, found: Sequence[SetupResult]) -> list[Table]:
    """Return an overview, a table per setup, and the comparison at equal α and β."""
    ps = holm_p(found)
    return [
        _overview_table(study, found),
        _samples_table(study, found),
        *(Table(describe_setup(result), HEADING, _rows(result, ps)) for result in found),
        *_cells_tables(found),
    ]


def _overview_table(study: Study, found: Sequence[SetupResult]) -> Table:
    rows = [
        [contestant.label, *(_format_errors(result.entries.get(contestant.name)) for result in found)]
        for contestant in study.contestants
        if any(contestant.name in result.entries for result in found)
    ]
    return Table(
        "Final MSE, mean (median) over test seeds", ["optimizer", *(result.setup.label for result in found)], rows
    )


def _samples_table(study: Study, found: Sequence[SetupResult]) -> Table:
    rows = [
        [contestant.label, *(_format_samples_needed(result, contestant.name) for result in found)]
        for contestant in study.contestants
        if any(contestant.name in result.entries for result in found)
    ]
    return Table(
        "Samples until the mean error over test seeds reaches the best reference's final error",
        ["optimizer", *(f"{result.setup.label} ({result.reference.contestant.label})" for result in found)],
        rows,
    )


def _format_samples_needed(result: SetupResult, name: str) -> str:
    entry = result.entries.get(name)
    needed = samples_needed(result, entry) if entry is not None else None
    return MISSING if needed is None else f"{needed:,}"


def samples_needed(result: SetupResult, entry: Entry) -> int | None:
    """Return after how many samples the mean error is first at most the best reference's final error."""
    reached = np.flatnonzero(entry.tuned.curves.mean(axis=1) <= result.reference.mean_error)
    if not len(reached):
        return None
    return int(entry.tuned.at[reached[0]]) * result.setup.batch * entry.contestant.batch_factor


def _format_errors(entry: Entry | None) -> str:
    if entry is None:
        return MISSING
    return f"{format_number(entry.mean_error)} ({format_number(entry.median_error)})"


def _format_beta(entry: Entry) -> str:
    return "grows" if entry.contestant.beta_grows else format_number(entry.tuned.beta)


def _rows(result: SetupResult, ps: PValues) -> list[list[str]]:
    return [_row(result, entry, ps.get((result.setup.label, name))) for name, entry in result.entries.items()]


def _row(result: SetupResult, entry: Entry, p_holm: float | None) -> list[str]:
    tuned, compared = entry.tuned, result.ratio(entry)
    is_reference = entry is result.reference
    return [
        entry.contestant.label,
        format_number(tuned.alpha),
        _format_beta(entry),
        f"{sample_count(result.setup, entry):,}",
        f"{format_number(entry.mean_error)} {format_interval(mean_interval(tuned.final))}",
        format_number(entry.median_error),
        format_number(float(iqm(tuned.final[None, :]))),
        "1 (reference)" if is_reference else f"{format_number(compared.value)} {format_interval(compared.interval)}",
        MISSING if is_reference else format_p(compared.p),
        format_p(p_holm),
        format_number(float(tuned.area.mean())),
        f"{tuned.diverged} of {len(tuned.final)}",
        f"{tuned.grid_diverged} of {tuned.grid_runs}",
    ]


def _cells_tables(found: Sequence[SetupResult]) -> list[Table]:
    counts = [row for result in found for row in _cell_counts(result)]
    worse = [
        [
            result.setup.label,
            contestant.label,
            format_number(cell.alpha),
            _format_cell_beta(contestant, cell),
            describe_difference(cell),
            format_p(cell.ratio.p),
        ]
        for result in found
        for contestant, cell in result.cells
        if cell.is_worse
    ]
    tests = f"(p < {SIGNIFICANCE_LEVEL} in single tests)"
    counted = Table(
        f"Corrected and uncorrected optimizer at equal α and β {tests}; β 0.9 if that of the corrected one grows",
        ["setup", "corrected optimizer", "cells", "lower error", "higher error", "largest ratio"],
        counts,
    )
    listed = Table(
        f"Cells in which the corrected optimizer has a higher error {tests}",
        ["setup", "corrected optimizer", "α", "β", "difference", "p, paired"],
        worse,
    )
    return [table for table in (counted, listed) if table.rows]


def _cell_counts(result: SetupResult) -> list[list[str]]:
    by_contestant: dict[str, list[tuple[Contestant, Cell]]] = {}
    for contestant, cell in result.cells:
        by_contestant.setdefault(contestant.label, []).append((contestant, cell))
    return [
        [
            result.setup.label,
            label,
            str(len(cells)),
            str(sum(cell.is_better for _, cell in cells)),
            str(sum(cell.is_worse for _, cell in cells)),
            _describe_cell(*max(cells, key=lambda pair: pair[1].ratio.value)),
        ]
        for label, cells in by_contestant.items()
    ]


def _describe_cell(contestant: Contestant, cell: Cell) -> str:
    setting = f"α {format_number(cell.alpha)}"
    setting += "" if contestant.beta_grows else f", β {format_number(cell.beta)}"
    return f"{format_number(cell.ratio.value)}x at {setting} ({format_p_value(cell.ratio.p)})"


def _format_cell_beta(contestant: Contestant, cell: Cell) -> str:
    return "grows" if contestant.beta_grows else format_number(cell.beta)
