"""The result of a run, as the engine returns it, the store holds it, and the figures read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .experiment import Run


@dataclass(frozen=True)
class Record:
    """The result of a run."""

    run: Run
    at: np.ndarray  # the steps after which it was measured, starting with 0
    curves: dict[str, np.ndarray]  # "evaluation" and "training" errors, measurements; ``inf`` after divergence
    diverged_at: int | None
    parameters: int
    numbers_kept: int  # size of the optimizer state, without the parameters
    backward_passes: int  # per step
    seconds: float  # the run's share of the time of its batch, without measurements
