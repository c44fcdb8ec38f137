"""Which finished runs count as diverged, besides those that the engine has stopped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..records import Record

ERRORS = ("evaluation", "training")  # curves
MAX_GROWTH = 10.0  # of the error, from before the first step to the end


def mark_explosion(record: Record) -> Record:
    """Return the record as diverged if its final errors are more than ``MAX_GROWTH`` times those before the first step.

    Both errors have to be, on the training distribution and on other states: with fixed targets, the latter can grow
    because a network overfits. Other curves, such as scores, say nothing about divergence.

    The engine stops a run when its TD error exceeds a fixed threshold, which an error that grows slowly may not reach.
    As in stopped runs, all curves are infinite from the first measurement after which the error stays that large.
    """
    growth = [_growth(record.curves[name]) for name in ERRORS if name in record.curves]
    if not growth or record.diverged_at is not None or not all(each[-1] > MAX_GROWTH for each in growth):
        return record
    start = max(int(np.flatnonzero(each <= MAX_GROWTH)[-1]) for each in growth) + 1
    curves = {name: np.where(np.arange(len(curve)) < start, curve, np.inf) for name, curve in record.curves.items()}
    return replace(record, curves=curves, diverged_at=int(record.at[start]))


def _growth(errors: np.ndarray) -> np.ndarray:
    """Return errors relative to the first one; 1 if that is 0."""
    return errors / errors[0] if errors[0] > 0 else np.ones(len(errors))
