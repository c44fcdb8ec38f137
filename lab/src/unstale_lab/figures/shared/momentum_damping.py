"""Two readings of momentum: damped, as in the paper's text, and undamped, as in much of the authors' code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...analysis.curves import divergence_panels, learning_panels, sensitivity_panel
from ...analysis.panels import Panel
from ...analysis.run_table import select
from ...claims.verdict import Verdict
from ...records import Record

DAMPED, UNDAMPED = "damped", "undamped"
READINGS = {DAMPED: True, UNDAMPED: False}  # value of ``Run.damped``
READING_NAMES = {DAMPED: "damped, as in the paper's text", UNDAMPED: "undamped"}


def select_reading(records: Sequence[Record], reading: str) -> list[Record]:
    """Return the records of a reading."""
    return select(records, damped=READINGS[reading])


def panels(records: Sequence[Record]) -> list[Panel]:
    """Return, for each reading, learning curves and divergence rates (or, if no run diverged, sensitivity to α)."""
    found = []
    for reading in READINGS:
        selected = select_reading(records, reading)
        found += learning_panels(selected, reading)
        found += divergence_panels(selected, "alpha", reading) or [sensitivity_panel(selected, "alpha", prefix=reading)]
    return found


def judge_readings(verdict: Callable[[Sequence[Record], str], Verdict]) -> Callable[[Sequence[Record]], list[Verdict]]:
    """Return a judge that gives one verdict for each reading that has runs.

    Args:
        verdict: from records and the name of the reading to a verdict.
    """

    def judge(records: Sequence[Record]) -> list[Verdict]:
        by_reading = {reading: select_reading(records, reading) for reading in READINGS}
        return [verdict(group, READING_NAMES[reading]) for reading, group in by_reading.items() if group]

    return judge
