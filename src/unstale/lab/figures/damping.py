"""Momentum read in two ways: damped, as the paper's text has it, and undamped, as much of its code does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..records import Record
from .base import Panel, Verdict
from .curves import against_panel, divergence_panels, learning_panels
from .layout import select

READINGS = {"damped, as the text has it": True, "undamped": False}


def panels(records: Sequence[Record]) -> list[Panel]:
    """Of each reading its learning curves, and where runs diverged or, if none did, what α does."""
    drawn = []
    for reading, damped in READINGS.items():
        own, name = select(records, damped=damped), reading.split(",")[0]
        drawn += learning_panels(own, name)
        drawn += divergence_panels(own, "alpha", name) or [against_panel(own, "alpha", about=name)]
    return drawn


def judged(verdict: Callable[[Sequence[Record], str], Verdict]) -> Callable[[Sequence[Record]], list[Verdict]]:
    """A verdict for each reading, of a function of records and the name of the reading."""
    return lambda records: [verdict(select(records, damped=damped), name) for name, damped in READINGS.items()]
