"""Arranges records as arrays ``[settings, seeds]``, one per line of a figure, paired element by element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..experiment import Run
from ..methods import METHODS
from ..records import Record
from .statistics import Array

Line = Any  # hashable key of a line: the value of one field of ``Run``, or a tuple of several fields' values
Fields = tuple[str, ...]


def select(records: Sequence[Record], **choices: Any) -> list[Record]:
    """Return the records whose runs have these field values; a list allows any of its values."""
    return [record for record in records if _matches(record.run, choices)]


def without(records: Sequence[Record], **choices: Any) -> list[Record]:
    """Return the records that ``select`` would leave out."""
    return [record for record in records if not _matches(record.run, choices)]


def _matches(run: Run, choices: dict[str, Any]) -> bool:
    allowed = {name: value if isinstance(value, list) else [value] for name, value in choices.items()}
    return all(getattr(run, name) in values for name, values in allowed.items())


@dataclass(frozen=True)
class RunTable:
    """Records by line, setting and seed. The same position in two lines is a pair."""

    settings: list[Run]  # seed and the fields that distinguish lines at their defaults
    at: Array  # steps of the measurements
    records: dict[Line, list[list[Record]]]

    def curves(self, name: str = "evaluation") -> dict[Line, Array]:
        """Return the curves, ``[steps, settings, seeds]`` for every line."""
        stacked = {
            line: np.array([[record.curves[name] for record in row] for row in rows], dtype=float)
            for line, rows in self.records.items()
        }
        return {line: np.moveaxis(curves, -1, 0) for line, curves in stacked.items()}

    def final(self, name: str = "evaluation") -> dict[str, Array]:
        """Return the last values of the curves, ``[settings, seeds]``."""
        return {str(line): curves[-1] for line, curves in self.curves(name).items()}

    def mean_over(self, name: str, start: float = 0.0, end: float = 1.0) -> dict[str, Array]:
        """Return the mean of the curves over a share of the training, ``[settings, seeds]``, without step 0."""
        length = len(self.at) - 1
        part = slice(1 + int(start * length), 1 + max(int(start * length) + 1, int(end * length)))
        return {str(line): curves[part].mean(0) for line, curves in self.curves(name).items()}

    def worst_error(self, name: str = "evaluation", judged: Mapping[str, Array] | None = None) -> float:
        """Return the error that a diverged run counts as.

        It is the largest finite error among those ``judged`` (by default the final ones) and those before the first
        step, so that diverging is never better than not training.
        """
        chosen = self.final(name) if judged is None else judged
        arrays = [*(curves[0] for curves in self.curves(name).values()), *chosen.values()]
        return max(float(array[np.isfinite(array)].max(initial=0.0)) for array in arrays)

    def values(self, field: str) -> list[Any]:
        """Return the value of a field of ``Run`` for every setting."""
        return [getattr(setting, field) for setting in self.settings]


def tabulate(records: Sequence[Record], by: Fields = ("method",)) -> RunTable:
    """Arrange records as lines that differ in the fields ``by``.

    Raises:
        ValueError: if a line lacks a combination of setting and seed that another line has.
    """
    shared = [field.name for field in fields(Run) if field.name not in (*by, "seed")]
    found: dict[Line, dict[tuple[Any, int], Record]] = {}
    for record in records:
        run = record.run
        values = tuple(getattr(run, name) for name in by)
        line = values[0] if len(values) == 1 else values
        found.setdefault(line, {})[tuple(getattr(run, name) for name in shared), run.seed] = record
    cells = {cell for line in found.values() for cell in line}
    # Sorted, so that nothing depends on the order in which runs were made.
    settings, seeds = (sorted(set(column)) for column in zip(*cells, strict=True))
    for line, runs in found.items():
        if len(runs) != len(settings) * len(seeds):
            raise ValueError(f"{line} has {len(runs)} runs of {len(settings) * len(seeds)}: lines must be paired")
    return RunTable(
        [Run(**dict(zip(shared, setting, strict=True))) for setting in settings],
        np.asarray(records[0].at, dtype=float),
        {
            line: [[runs[setting, seed] for seed in seeds] for setting in settings]
            for line, runs in sorted(found.items(), key=_sort_key)
        },
    )


def _sort_key(item: tuple[Line, Any]) -> tuple[int, Line]:
    """Sort methods as in ``METHODS``, other lines by their values."""
    line, _ = item
    return list(METHODS).index(line) if line in METHODS else 0, line
