"""What came of a run, as the engine gives it, the store keeps it and the figures read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .experiment import Run


@dataclass(frozen=True)
class Record:
    """What came of a run."""

    run: Run
    at: np.ndarray  # the steps after which it was measured, the first being 0
    curves: dict[str, np.ndarray]  # "evaluation" and "training" errors, measurements; ``inf`` once diverged
    diverged_at: int | None
    parameters: int
    numbers_kept: int  # what the optimizer remembers besides the parameters
    backward_passes: int  # per step
    seconds: float  # its share of what the steps of its batch took, without measuring
