"""Studies that compare tuned optimizers on several problems: their description as data, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np

from ...analysis.statistics import holm
from ...experiment import Run, grid
from ...methods import METHODS, has_growing_memory
from ...records import Record
from .tuned import Cell, Ratio, Setting, Sweep, Tuned, matched_cells, ratio, sweep, tune, worst_error

# "reference": plain optimizers with the same samples, the best of which all others are compared with; "peer": other
# known ways to a lower error; "ours": corrected.
Role = Literal["reference", "peer", "ours"]
# Fields of ``Run`` that do not tell contestants apart: what is tuned, and what a smaller scale reduces.
FREE_FIELDS = frozenset({"alpha", "beta", "seed", "steps", "width"})
# Fields of ``Run`` that only a correction reads, at their defaults.
UNCORRECTED = {name: getattr(Run(), name) for name in ("slots", "horizon", "trust", "corrected_layers")}

Key = tuple[Any, ...]  # values of all other fields


@dataclass(frozen=True)
class Setup:
    """A problem, and how its samples arrive."""

    label: str
    problem: str
    batch: int = 16
    n_step: int = 1
    steps: int = 5000

    @property
    def is_stream(self) -> bool:
        """Whether there is one transition per step."""
        return self.batch == 1


@dataclass(frozen=True)
class Contestant:
    """An optimizer with the settings that are tuned for it."""

    name: str
    label: str
    role: Role
    method: str = "adam"
    betas: tuple[float, ...] = (0.9,)
    settings: Mapping[str, Any] = field(default_factory=dict)  # of ``Run``
    batch_factor: int = 1  # more samples per step than the others
    only: Literal["", "stream", "batch"] = ""  # the setups that it takes part in; empty: all
    kind: str = ""  # of a reference: the best of each kind is also compared with
    is_drawn: bool = False  # in the panels

    @property
    def beta_grows(self) -> bool:
        """Whether β grows with training, so that ``betas`` have no meaning."""
        return has_growing_memory(Run(method=self.method))

    def takes_part_in(self, setup: Setup) -> bool:
        return not self.only or setup.is_stream == (self.only == "stream")

    def template(self, setup: Setup) -> Run:
        """Return a run of this contestant, with ``FREE_FIELDS`` at their defaults."""
        return Run(
            problem=setup.problem,
            n_step=setup.n_step,
            batch=setup.batch * self.batch_factor,
            method=self.method,
            **self.settings,
        )

    def runs(self, setup: Setup, **choices: Any) -> list[Run]:
        """Return runs with these values of ``FREE_FIELDS``; a list holds several values."""
        return [
            replace(self.template(setup), **{name: getattr(run, name) for name in choices}) for run in grid(**choices)
        ]


@dataclass(frozen=True)
class Study:
    """Contestants, the setups that they are compared in, and whom the findings are about."""

    setups: Sequence[Setup]
    contestants: Sequence[Contestant]
    headline: str  # name of the contestant that the findings are about


@dataclass(frozen=True)
class Entry:
    """A contestant in one setup."""

    contestant: Contestant
    sweep: Sweep
    tuned: Tuned

    @property
    def mean_error(self) -> float:
        """Mean final error over the test seeds."""
        return float(self.tuned.final.mean())

    @property
    def median_error(self) -> float:
        """Median final error over the test seeds."""
        return float(np.median(self.tuned.final))


@dataclass(frozen=True)
class SetupResult:
    """All contestants in one setup."""

    setup: Setup
    entries: dict[str, Entry]  # by name of the contestant
    worst_error: float  # what a diverged run counts as
    cells: list[tuple[Contestant, Cell]]  # corrected and uncorrected optimizer at equal α and β

    @property
    def reference(self) -> Entry:
        """The reference with the lowest mean final error on the test seeds, which favors the references."""
        return min(self._references(), key=_mean_error)

    def best_by_kind(self) -> dict[str, Entry]:
        """Return the reference with the lowest mean final error on the test seeds, for each kind."""
        kinds = dict.fromkeys(entry.contestant.kind for entry in self._references() if entry.contestant.kind)
        return {
            kind: min((entry for entry in self._references() if entry.contestant.kind == kind), key=_mean_error)
            for kind in kinds
        }

    def _references(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.contestant.role == "reference"]

    def ratio_to(self, other: Entry, entry: Entry) -> Ratio:
        """Compare the final errors of ``entry`` with those of ``other``."""
        return ratio(entry.tuned.final, other.tuned.final, self.worst_error)

    def ratio(self, entry: Entry) -> Ratio:
        """Compare the final errors of an entry with those of the reference."""
        return self.ratio_to(self.reference, entry)


def _mean_error(entry: Entry) -> float:
    return entry.mean_error


def results(study: Study, records: Sequence[Record]) -> list[SetupResult]:
    """Return the results of all setups and contestants that have records."""
    by_key: dict[Key, list[Record]] = {}
    for record in records:
        by_key.setdefault(_key(record.run), []).append(record)
    found = [_setup_result(study, setup, by_key) for setup in study.setups]
    return [result for result in found if result.entries]


def holm_p(found: Sequence[SetupResult]) -> dict[tuple[str, str], float]:
    """Return Holm's p of every corrected contestant against the reference, by setup and name, over all of them."""
    ps = {
        (result.setup.label, name): result.ratio(entry).p
        for result in found
        for name, entry in result.entries.items()
        if entry.contestant.role == "ours"
    }
    return dict(zip(ps, holm(list(ps.values())), strict=True))


def _key(run: Run) -> Key:
    return tuple(getattr(run, f.name) for f in fields(run) if f.name not in FREE_FIELDS)


def _setup_result(study: Study, setup: Setup, by_key: Mapping[Key, list[Record]]) -> SetupResult:
    entries: dict[str, Entry] = {}
    seen: set[frozenset[Run]] = set()  # at a smaller scale contestants may have the same runs; the first has them
    for contestant in study.contestants:
        records = _records_of(contestant, setup, by_key)
        same = frozenset(record.run for record in records)
        if same and same not in seen:
            seen.add(same)
            runs = sweep(records)
            entries[contestant.name] = Entry(contestant, runs, tune(runs))
    worst = worst_error([entry.sweep for entry in entries.values()]) if entries else 0.0
    return SetupResult(setup, entries, worst, _cells(setup, entries, worst, by_key))


def _records_of(contestant: Contestant, setup: Setup, by_key: Mapping[Key, list[Record]]) -> list[Record]:
    if not contestant.takes_part_in(setup):
        return []
    same = by_key.get(_key(contestant.template(setup)), [])
    return [record for record in same if record.run.beta in contestant.betas]


def _cells(
    setup: Setup, entries: Mapping[str, Entry], worst: float, by_key: Mapping[Key, list[Record]]
) -> list[tuple[Contestant, Cell]]:
    """Compare every corrected optimizer with the uncorrected one at the same α and β, each pair once."""
    cells: dict[tuple[Key, Setting], tuple[Contestant, Cell]] = {}
    for entry in entries.values():
        if entry.contestant.role != "ours":
            continue
        template = entry.contestant.template(setup)
        plain = replace(template, method="adam" if METHODS[template.method].adam else "momentum", **UNCORRECTED)
        uncorrected = by_key.get(_key(plain))
        if uncorrected:
            for cell in matched_cells(entry.sweep, sweep(uncorrected), worst):
                cells.setdefault((_key(template), (cell.alpha, cell.beta)), (entry.contestant, cell))
    return list(cells.values())
