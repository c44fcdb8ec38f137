"""What a figure shows: panels of lines, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
