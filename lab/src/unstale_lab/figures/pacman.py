"""What the figures about the values of a MsPacman player have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..records import Record
from ..statistics import Array, iqm
from .agreement import cosines
from .base import METHODS, Panel, Series, Verdict
from .curves import ERROR, learning
from .grids import Grid, seeds
from .judging import Evidence, better, compared, conclude
from .layout import lay_out, select
from .words import typical

PLAY = Grid(
    paper={
        "problem": "ms_pacman",
        "network": "dqn",
        "width": 32,
        "batch": 32,
        "seed": seeds(20),
        "steps": 500_000,
        "precision": "tf32",
    },
    quick={"seed": seeds(5), "steps": 50_000},
    smoke={"width": 2, "batch": 4, "seed": seeds(2), "steps": 10},
)
MEASURED = PLAY.varied(paper={"measure": ("drift", "batch agreement", "trust")})
# Against which values errors are measured: means of many continuations; single sampled returns, as in the paper.
TRUTH, RETURNS = "truth", "evaluation"
AGAINST = {TRUTH: "against the truth", RETURNS: "against sampled returns"}
STEPS = "steps of 32 samples"
# What the true values are off by was taken off the error, which is therefore 0 only on average where a network is
# perfect, and can be negative. Nothing below this is told apart.
RESOLUTION = 0.01
RETURNS_VARY = "Sampled returns vary of themselves, and no network can get below their variance."
SURE = 0.01  # the paper's threshold
THE_PAPERS = ("adam_diagonal_literal", "adam")
IN_FULL = ("adam_window", "adam")  # which the paper could not afford
BY_WINDOW = "beyond the paper: the full correction, by window"


def resolved(records: Sequence[Record]) -> list[Record]:
    """Errors against the truth, no less than what can be told apart."""
    return [
        replace(record, curves=record.curves | {TRUTH: np.maximum(record.curves[TRUTH], RESOLUTION)})
        for record in records
    ]


def paired(records: Sequence[Record], curve: str, pairs: list[tuple[str, str]]) -> list[Evidence]:
    """What runs end with, paired by seed alone: methods have an α and a β of their own."""
    own = select(records, method=[method for pair in pairs for method in pair])
    layout = lay_out([replace(record, run=replace(record.run, alpha=0.0, beta=0.0)) for record in own])
    return compared(layout.final(curve), pairs, layout.worst(curve))


def ends(records: Sequence[Record], curve: str) -> dict[str, Array]:
    """What every method's runs end with."""
    return {method: lay_out(own).final(curve)[method] for method, own in _by_method(records).items()}


def late(records: Sequence[Record], curve: str) -> dict[str, Array]:
    """The mean over the second half of the training, of the methods that have the curve."""
    own = _by_method(_having(records, curve))
    return {method: lay_out(some).along(curve, 0.5)[method] for method, some in own.items()}


def each(records: Sequence[Record], curve: str, first: int = 0) -> list[Series]:
    """A line for each method that has the curve, with the settings and seeds that it has."""
    return _drawn(_having(records, curve), lambda own: learning(own, iqm, curve, first=first))


def error_panels(records: Sequence[Record]) -> list[Panel]:
    """Errors along training, against the truth and against sampled returns; and the former against time."""
    return [
        *(Panel(about, STEPS, ERROR, each(records, curve), log_y=True) for curve, about in AGAINST.items()),
        against_seconds(records),
    ]


def against_seconds(records: Sequence[Record]) -> Panel:
    """Time is that of all seeds side by side."""
    seeds = len({record.run.seed for record in records})

    def drawn(own: list[Record]) -> list[Series]:
        seconds = sum(record.seconds for record in own)
        steps = own[0].run.steps
        return [replace(line, x=[seconds * x / steps for x in line.x]) for line in learning(own, iqm, TRUTH)]

    title = f"{AGAINST[TRUTH]}, by time"
    return Panel(title, f"seconds, {seeds} seeds side by side", ERROR, _drawn(records, drawn), log_y=True)


def measured_panels(records: Sequence[Record]) -> list[Panel]:
    """What was measured beside errors."""
    agreement = _drawn(_having(records, "agreement of batches"), lambda own: cosines(own, "batches"))
    return [
        # Nothing has drifted before the first step, and 0 has no place on a logarithmic axis.
        Panel("drift", STEPS, "drift of target values", each(records, "drift", first=1), log_y=True),
        Panel("cosine, batches", STEPS, "cosine with the true gradient", agreement),
        Panel("the bound acted", STEPS, "share of steps", each(records, "bounded", first=1)),
        Panel("staleness", STEPS, "correction / momentum, norms", each(records, "staleness", first=1)),
    ]


def beats_adam(records: Sequence[Record], curve: str, pair: tuple[str, str], reading: str, note: str) -> Verdict:
    """Claim 11, of a pair of methods and one way to measure errors."""
    parts = [better(evidence, SURE) for evidence in paired(records, curve, [pair])]
    typically = typical(ends(records, curve), f"Interquartile means {AGAINST[curve]}")
    return conclude(11, parts, select(records, method=list(pair)), f"{typically} {note}", reading)


def in_full(records: Sequence[Record]) -> str:
    """How large what was corrected in full is; and drift, agreement and what the bound did, over the second half of the
    training."""
    [size] = {record.parameters for record in select(records, method=list(IN_FULL))}
    curves = {
        "drift": "drift",
        "agreement of batches": "cosine of corrected batches",
        "agreement if uncorrected": "uncorrected",
        "bounded": "share of steps in which the bound acted",
    }
    said = [typical(late(records, curve), what).rstrip(".") for curve, what in curves.items()]
    return f"The full correction of {size:,} parameters. In the second half: {'; '.join(said)}."


def _drawn(records: Sequence[Record], draw: Callable[[list[Record]], list[Series]]) -> list[Series]:
    return [series for own in _by_method(records).values() for series in draw(own)]


def _by_method(records: Sequence[Record]) -> dict[str, list[Record]]:
    own = {method: select(records, method=method) for method in METHODS}
    return {method: some for method, some in own.items() if some}


def _having(records: Sequence[Record], curve: str) -> list[Record]:
    return [record for record in records if curve in record.curves]
