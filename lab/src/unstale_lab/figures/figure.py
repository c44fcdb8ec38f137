"""The type of a figure: the runs it needs, the panels it draws, the claims it judges or the tables it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..analysis.panels import Panel, Table
from ..claims.verdict import Verdict
from ..experiment import Run, Scale
from ..records import Record


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
    large_cut: str = ""  # the same for the scale "large"
