"""The data types of a figure: the runs it needs, the curves it draws, the claims it judges or the tables it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..experiment import Run, Scale
from ..records import Record as Record
from ..statistics import Comparison as Comparison

Outcome = Literal["holds", "does not hold", "inconclusive", "not run"]


@dataclass(frozen=True)
class Series:
    """One line with its confidence band."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    method: str = ""  # key of ``METHODS``; sets the style
    dashed: bool = False
    runs: int = 0
    diverged: int = 0


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Table:
    """A table of text cells; the first cell of a row is its heading."""

    title: str
    heading: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Verdict:
    """The result for one claim, or for one reading of it."""

    claim: int
    outcome: Outcome
    note: str  # effect, test and conclusion of every part, then further numbers
    effect: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None  # of the deciding test
    runs: int = 0
    diverged: int = 0
    reading: str = ""  # which interpretation or part of the claim this is, if there are several
    comparisons: Sequence[Comparison] = field(default=())


def _nothing(records: Sequence[Record]) -> list[Any]:
    return []


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, a claim without one, or a study of our own, which judges no claim."""

    name: str  # "fig3"
    title: str
    claims: tuple[int, ...]  # none for a study
    settings: str  # problem, network, hyper-parameters, seeds and steps, in words
    runs: Callable[[Scale], list[Run]]
    panels: Callable[[Sequence[Record]], list[Panel]]  # from the records of all ``runs``
    judge: Callable[[Sequence[Record]], list[Verdict]] = _nothing  # from the records of all ``runs``
    findings: Callable[[Sequence[Record]], list[str]] = _nothing  # of a study: sentences, the answer first
    tables: Callable[[Sequence[Record]], list[Table]] = _nothing  # of a study
    # What was measured, in plain words and without verdicts: the answer of a small run.
    measured: Callable[[Sequence[Record]], list[str]] = _nothing
    cut: str = ""  # what the scale "quick" leaves out, and why
