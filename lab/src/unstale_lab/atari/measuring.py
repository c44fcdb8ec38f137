"""Measuring along a run, whichever algorithm learns: the score, and how stale momentum is."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple, Protocol

import unstale

WATCHED_BATCHES = 5  # in one reading of drift: to look again at every batch that momentum remembers would take long
OVER = object()
UNWATCHED = 3  # turns for each one that is watched, at least: being watched takes time


class Length(Protocol):
    """Of the settings, what says how long a run is."""

    @property
    def steps(self) -> int: ...


class Trainer(Protocol):
    """Who plays and learns in turns."""

    optimizer: unstale.CorrectedAdam
    steps: int  # of all games together, so far
    seconds: float  # so far

    @property
    def settings(self) -> Length: ...

    @property
    def steps_a_turn(self) -> int: ...

    @property
    def updates_a_turn(self) -> int: ...

    def run(self) -> Generator[Any, None, None]:
        """To the end of the run, with something to iterate over after every turn."""

    def score(self) -> float:
        """The mean of the last games; not a number before the first is over."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Point(NamedTuple):
    """One point of a learning curve. What was not measured is not a number."""

    steps: int  # of all games together; each is 4 frames
    seconds: float  # spent in playing and learning
    score: float
    staleness: float  # and the next: see unstale.diagnostics.GroupReading
    bounded_share: float
    # See unstale.diagnostics.Drift.
    drift: float = math.nan
    agreement: float = math.nan
    stale_agreement: float = math.nan


def measured(trainer: Trainer, every: int) -> Iterator[Point]:
    """Trains to the end, be it that of the steps or of the time, with a point after ``every`` so many turns and after
    the last. For drift, the turns before a
    point are watched, as many as momentum remembers. They take longer, so not every point has it where points are
    close."""
    horizon = unstale.paper_horizon(trainer.optimizer.momentum_beta)
    turns = math.ceil(trainer.settings.steps / trainer.steps_a_turn)
    watched = math.ceil(horizon / trainer.updates_a_turn)
    between_readings = min(turns, every * math.ceil((1 + UNWATCHED) * watched / every))
    batches = min(horizon, between_readings * trainer.updates_a_turn)
    learning, monitor, told = trainer.run(), None, trainer.steps
    try:
        for turn in range(trainer.steps // trainer.steps_a_turn + 1, turns + 1):
            to_reading = -turn % between_readings
            if monitor is None and to_reading < watched:
                monitor = unstale.diagnostics.Monitor(
                    trainer.optimizer, horizon, every=max(1, batches // WATCHED_BATCHES)
                )
            if next(learning, OVER) is OVER:  # by the clock
                break
            drift = None
            if monitor is not None and to_reading == 0:
                drift = monitor.read()
                monitor.close()
                monitor = None
            if turn % every == 0 or turn == turns:
                told = trainer.steps
                yield _point(trainer, drift)
        if trainer.steps > told:
            yield _point(trainer, None)
    finally:
        if monitor is not None:
            monitor.close()
        learning.close()


def _point(trainer: Trainer, drift: unstale.diagnostics.Drift | None) -> Point:
    (group,) = unstale.diagnostics.read(trainer.optimizer)
    point = Point(trainer.steps, trainer.seconds, trainer.score(), group.staleness, group.bounded_share)
    if drift is None:
        return point
    return point._replace(drift=drift.drift, agreement=drift.agreement, stale_agreement=drift.stale_agreement)
