"""What a figure is: runs to make, curves to draw, claims to judge. Drawn and written elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..experiment import Run, Scale
from ..records import Record as Record
from ..statistics import Comparison as Comparison

Outcome = Literal["holds", "does not hold", "inconclusive", "not run"]

# In the order in which they are drawn and told, as the paper writes them.
METHODS = {
    "momentum": "μ",
    "oracle": "μ*",
    "full": "μ̂",
    "diagonal": "μ̂ diag",
    "default": "unstale (default)",
    "frozen": "frozen targets",
    "second_order": "μ̂ with second derivatives",
    "window": "μ̂ by window",
    # Divided by Adam's root, as √ says.
    "adam": "Adam",
    "adam_oracle": "μ*/√",
    "adam_dense": "μ̂/√",
    "adam_window": "μ̂/√ by window",
    "adam_diagonal_literal": "μ̂ diag/√, literal",
    "adam_diagonal": "μ̂ diag/√",
    "adam_frozen": "Adam, frozen targets",
    "adam_linearized": "Adam, samples' gradients found",
}


@dataclass(frozen=True)
class Series:
    """One line with its band."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    method: str = ""  # gives the line its colour
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
class Verdict:
    """What was measured of a claim."""

    claim: int
    outcome: Outcome
    note: str  # in words, with numbers
    effect: float | None = None
    interval: tuple[float, float] | None = None
    p: float | None = None  # of the test that decided
    runs: int = 0
    diverged: int = 0
    reading: str = ""  # where the claim can be read in several ways, or has several parts
    comparisons: Sequence[Comparison] = field(default=())


@dataclass(frozen=True)
class Figure:
    """``panels`` and ``judge`` see the records of the runs that ``runs`` asked for, all of them."""

    name: str  # "fig3"
    title: str
    claims: tuple[int, ...]
    settings: str  # in words: problem, network, what is varied, seeds, steps
    runs: Callable[[Scale], list[Run]]
    panels: Callable[[Sequence[Record]], list[Panel]]
    judge: Callable[[Sequence[Record]], list[Verdict]]
    cut: str = ""  # what of the settings the scale "quick" leaves out, and why, where that is what was published
