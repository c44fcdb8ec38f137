"""Measurements during control runs: the score, and the staleness of momentum."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple, Protocol

import unstale

BATCHES_PER_READING = 5  # past batches that are evaluated again for one reading of drift; all would take too long
MIN_UNMONITORED_RATIO = 3  # unmonitored iterations per monitored one: monitoring takes time
_END = object()


class Length(Protocol):
    """Settings with the length of a run."""

    @property
    def steps(self) -> int: ...


class Trainer(Protocol):
    """An algorithm that plays and learns in iterations."""

    optimizer: unstale.CorrectedAdam
    steps: int  # of all games together, so far
    seconds: float  # so far

    @property
    def settings(self) -> Length: ...

    @property
    def steps_per_iteration(self) -> int: ...

    @property
    def updates_per_iteration(self) -> int: ...

    def run(self) -> Generator[Any, None, None]:
        """Trains to the end of the run, and yields after every iteration."""

    def score(self) -> float:
        """The mean score of the last games; NaN before the first has finished."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Point(NamedTuple):
    """One point of a learning curve. What was not measured is NaN."""

    steps: int  # of all games together; each is 4 frames
    seconds: float  # of playing and learning
    score: float
    # See unstale.diagnostics.GroupReading. Both are 0 without correction: nothing is corrected, and nothing bounded.
    staleness: float
    bounded_share: float
    # See unstale.diagnostics.Drift.
    drift: float = math.nan
    agreement: float = math.nan
    stale_agreement: float = math.nan


def measured(trainer: Trainer, every: int) -> Iterator[Point]:
    """Trains to the end, and yields a point after every ``every`` iterations and after the last one.

    Drift is measured by monitoring the iterations before a point, as many as the memory of momentum has. They take
    longer, so that if points are close to one another, not every point has a value of drift.
    """
    horizon = unstale.paper_horizon(trainer.optimizer.momentum_beta)
    iterations = math.ceil(trainer.settings.steps / trainer.steps_per_iteration)
    monitored = math.ceil(horizon / trainer.updates_per_iteration)
    between_readings = min(iterations, every * math.ceil((1 + MIN_UNMONITORED_RATIO) * monitored / every))
    batches = min(horizon, between_readings * trainer.updates_per_iteration)
    training, monitor, last_point = trainer.run(), None, trainer.steps
    try:
        for iteration in range(trainer.steps // trainer.steps_per_iteration + 1, iterations + 1):
            to_reading = -iteration % between_readings
            if monitor is None and to_reading < monitored:
                monitor = unstale.diagnostics.DriftMonitor(
                    trainer.optimizer, horizon, every=max(1, batches // BATCHES_PER_READING)
                )
            if next(training, _END) is _END:  # the time limit
                break
            drift = None
            if monitor is not None and to_reading == 0:
                drift = monitor.read()
                monitor.close()
                monitor = None
            if iteration % every == 0 or iteration == iterations:
                last_point = trainer.steps
                yield _point(trainer, drift)
        if trainer.steps > last_point:
            yield _point(trainer, None)
    finally:
        if monitor is not None:
            monitor.close()
        training.close()


def _point(trainer: Trainer, drift: unstale.diagnostics.Drift | None) -> Point:
    (group,) = unstale.diagnostics.groups(trainer.optimizer)
    staleness, bounded_share = (0.0 if math.isnan(x) else x for x in (group.staleness, group.bounded_share))
    point = Point(trainer.steps, trainer.seconds, trainer.score(), staleness, bounded_share)
    if drift is None:
        return point
    return point._replace(drift=drift.drift, agreement=drift.agreement, stale_agreement=drift.stale_agreement)
