"""Which finished runs count as diverged, besides those that the engine has stopped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..records import Record

MAX_GROWTH = 10.0  # of the error, from before the first step to the end


def mark_explosion(record: Record) -> Record:
    """Return the record as diverged if its final error is more than ``MAX_GROWTH`` times that before the first step.

    The engine stops a run when its TD error exceeds a fixed threshold, which an error that grows slowly may not reach.
    As in stopped runs, all curves are infinite from the first measurement after which the error stays that large.
    """
    errors = record.curves.get("evaluation")
    if errors is None or record.diverged_at is not None or not errors[-1] > MAX_GROWTH * errors[0]:
        return record
    start = int(np.flatnonzero(errors <= MAX_GROWTH * errors[0])[-1]) + 1
    curves = {name: np.where(np.arange(len(curve)) < start, curve, np.inf) for name, curve in record.curves.items()}
    return replace(record, curves=curves, diverged_at=int(record.at[start]))
