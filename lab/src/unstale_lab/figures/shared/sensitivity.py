"""Errors over a hyper-parameter, which the paper shows without a conclusion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...analysis.curves import divergence_panels, mean, sensitivity_panel
from ...analysis.formatting import format_number, label
from ...analysis.panels import Panel
from ...analysis.run_table import select, tabulate
from ...analysis.statistics import Array, iqm
from ...analysis.trends import by_level, levels
from ...claims.judging import shown
from ...claims.verdict import Reading, Verdict
from ...records import Record
from .grids import PAPER_METHODS
from .readings import ERROR_CURVES, by_reading, reading_prefix, titled


def sensitivity_panels(records: Sequence[Record], field: str, title: str) -> list[Panel]:
    """Return panels like the paper's; then interquartile means and divergence rates over the field."""
    groups = by_reading(records)
    first = [_paper_panel(group, reading, field, title) for reading, group in groups.items()]
    further = [
        panel
        for reading, group in groups.items()
        for panel in (
            sensitivity_panel(group, field, prefix=reading_prefix(reading), curve=ERROR_CURVES[reading]),
            *divergence_panels(group, field, reading_prefix(reading)),
        )
    ]
    return [*first, *further]


def _paper_panel(records: Sequence[Record], reading: Reading, field: str, title: str) -> Panel:
    panel = sensitivity_panel(select(records, method=PAPER_METHODS), field, mean, curve=ERROR_CURVES[reading])
    return Panel(titled(title, reading), panel.x_label, panel.y_label, panel.series, panel.log_x, log_y=True)


def show_sensitivity(claim: int, records: Sequence[Record], field: str, symbol: str) -> list[Verdict]:
    """Describe the best value of the field for each method.

    Args:
        claim: number of the claim.
        records: runs of all methods.
        field: name of the hyper-parameter in ``Run``.
        symbol: its symbol in texts.
    """
    verdicts = []
    for reading, group in by_reading(records).items():
        selected = select(group, method=PAPER_METHODS)
        table = tabulate(selected)
        values = levels(table, field).ravel()
        errors = {m: by_level(table, final, field) for m, final in table.final(ERROR_CURVES[reading]).items()}
        best = [_describe_best(method, by_value, values, symbol) for method, by_value in errors.items()]
        ranges = [_describe_range(method, by_value, values, symbol) for method, by_value in errors.items()]
        why = f"Lowest error (IQM): {'; '.join(best)}."
        verdicts.append(shown(claim, why, selected, " ".join(ranges), reading))
    return verdicts


def _describe_best(method: str, errors: Array, values: Array, symbol: str) -> str:
    typical = iqm(errors)
    best = int(np.argmin(typical))
    if np.isinf(typical[best]):
        return f"{label(method)} diverges"
    return f"{label(method)} {format_number(typical[best])} at {symbol} = {values[best]:g}"


def _describe_range(method: str, errors: Array, values: Array, symbol: str) -> str:
    """Describe the errors at both ends of the field, and the range within twice the lowest error."""
    typical = iqm(errors)
    if np.isinf(typical).all():
        return f"{label(method)}: more than a quarter of the runs diverged at every value."
    near = values[typical <= 2 * typical.min()]
    ends = f"{format_number(typical[0])} at {values[0]:g} to {format_number(typical[-1])} at {values[-1]:g}"
    diverged = int(np.isinf(errors).sum())
    counts = f" {diverged:,} of {errors.size:,} runs diverged." if diverged else ""
    within = f"within twice the lowest error from {symbol} = {near.min():g} to {near.max():g}"
    return f"{label(method)}: {ends}; {within}.{counts}"
