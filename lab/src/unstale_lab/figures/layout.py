"""Records in their places: for every line of a figure, settings by seeds, the same in the same place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..experiment import Run
from ..records import Record
from ..statistics import Array
from .base import METHODS

Line = Any  # hashable; what tells lines apart: the value of a field of ``Run``, or several fields' as a tuple
Fields = tuple[str, ...]


def select(records: Sequence[Record], **choices: Any) -> list[Record]:
    """The records whose runs have these values; a list is any of several."""
    return [record for record in records if _matches(record.run, choices)]


def without(records: Sequence[Record], **choices: Any) -> list[Record]:
    """The records that ``select`` would leave."""
    return [record for record in records if not _matches(record.run, choices)]


def _matches(run: Run, choices: dict[str, Any]) -> bool:
    several = {name: value if isinstance(value, list) else [value] for name, value in choices.items()}
    return all(getattr(run, name) in values for name, values in several.items())


@dataclass(frozen=True)
class Layout:
    """``places`` are, for each line, records by setting and seed. Lines are paired place by place."""

    settings: list[Run]  # without seed, and without what tells the lines apart
    at: Array
    places: dict[Line, list[list[Record]]]

    def curves(self, name: str = "evaluation") -> dict[Line, Array]:
        """``[steps, settings, seeds]`` for every line."""
        stacked = {
            line: np.array([[record.curves[name] for record in row] for row in rows], dtype=float)
            for line, rows in self.places.items()
        }
        return {line: np.moveaxis(curves, -1, 0) for line, curves in stacked.items()}

    def final(self, name: str = "evaluation") -> dict[str, Array]:
        """What the curves end with, ``[settings, seeds]``."""
        return {str(line): curves[-1] for line, curves in self.curves(name).items()}

    def along(self, name: str, start: float = 0.0, end: float = 1.0) -> dict[str, Array]:
        """The mean of the curves over a part of the training, ``[settings, seeds]``, without the point before it."""
        length = len(self.at) - 1
        part = slice(1 + int(start * length), 1 + max(int(start * length) + 1, int(end * length)))
        return {str(line): curves[part].mean(0) for line, curves in self.curves(name).items()}

    def worst(self, name: str = "evaluation", judged: Mapping[str, Array] | None = None) -> float:
        """What a diverged run counts as: the largest finite number of those ``judged``, by default what the curves end
        with, and of those before the first step, than which no divergence is better."""
        chosen = self.final(name) if judged is None else judged
        numbers = [*(curves[0] for curves in self.curves(name).values()), *chosen.values()]
        return max(float(own[np.isfinite(own)].max(initial=0.0)) for own in numbers)

    def values(self, field: str) -> list[Any]:
        """What a field of the runs is, setting by setting."""
        return [getattr(setting, field) for setting in self.settings]


def lay_out(records: Sequence[Record], by: Fields = ("method",)) -> Layout:
    """Records as lines told apart ``by`` these fields. Every line must have every setting with every seed."""
    shared = [field.name for field in fields(Run) if field.name not in (*by, "seed")]
    found: dict[Line, dict[tuple[Any, int], Record]] = {}
    for record in records:
        run = record.run
        values = tuple(getattr(run, name) for name in by)
        line = values[0] if len(values) == 1 else values
        found.setdefault(line, {})[tuple(getattr(run, name) for name in shared), run.seed] = record
    places = {place for line in found.values() for place in line}
    # Sorted, so that nothing depends on the order in which runs were made.
    settings, seeds = (sorted(set(column)) for column in zip(*places, strict=True))
    for line, own in found.items():
        if len(own) != len(settings) * len(seeds):
            raise ValueError(f"{line} has {len(own)} runs of {len(settings) * len(seeds)}: lines must be paired")
    return Layout(
        [Run(**dict(zip(shared, setting, strict=True))) for setting in settings],
        np.asarray(records[0].at, dtype=float),
        {
            line: [[own[setting, seed] for seed in seeds] for setting in settings]
            for line, own in sorted(found.items(), key=_place)
        },
    )


def _place(named: tuple[Line, Any]) -> tuple[int, Line]:
    """Where in the order of lines one is: methods as ``METHODS`` has them, others by their values."""
    line, _ = named
    return list(METHODS).index(line) if line in METHODS else 0, line
