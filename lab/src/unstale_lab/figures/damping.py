"""Momentum read in two ways: damped, as the paper's text has it, and undamped, as much of its code does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..records import Record
from .base import Panel, Verdict
from .curves import against_panel, divergence_panels, learning_panels
from .layout import select

UNDAMPED = "undamped"
READINGS = {"damped, as the text has it": True, UNDAMPED: False}


def read(records: Sequence[Record], reading: str) -> tuple[list[Record], str]:
    """The records of a reading, and its short name."""
    return select(records, damped=READINGS[reading]), reading.split(",")[0]


def panels(records: Sequence[Record]) -> list[Panel]:
    """Of each reading its learning curves, and where runs diverged or, if none did, what α does."""
    drawn = []
    for reading in READINGS:
        own, name = read(records, reading)
        drawn += learning_panels(own, name)
        drawn += divergence_panels(own, "alpha", name) or [against_panel(own, "alpha", about=name)]
    return drawn


def judged(verdict: Callable[[Sequence[Record], str], Verdict]) -> Callable[[Sequence[Record]], list[Verdict]]:
    """A verdict for each reading that there are runs of, of a function of records and the name of the reading."""

    def judge(records: Sequence[Record]) -> list[Verdict]:
        each = {reading: read(records, reading)[0] for reading in READINGS}
        return [verdict(own, reading) for reading, own in each.items() if own]

    return judge
