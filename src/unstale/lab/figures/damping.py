"""Momentum read in two ways: damped, as the paper's text has it, and undamped, as much of its code does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..records import Record
from .base import Panel, Verdict
from .curves import divergence_panels, learning_panels
from .layout import select

READINGS = {"damped, as the text has it": True, "undamped": False}


def panels(records: Sequence[Record]) -> list[Panel]:
    """Learning curves of each reading, and its divergences."""
    parts = {name.split(",")[0]: select(records, damped=damped) for name, damped in READINGS.items()}
    curves = [panel for name, own in parts.items() for panel in learning_panels(own, name)]
    return curves + [panel for name, own in parts.items() for panel in divergence_panels(own, "alpha", name)]


def judged(verdict: Callable[[Sequence[Record], str], Verdict]) -> Callable[[Sequence[Record]], list[Verdict]]:
    """A verdict for each reading, of a function of records and the name of the reading."""
    return lambda records: [verdict(select(records, damped=damped), name) for name, damped in READINGS.items()]
