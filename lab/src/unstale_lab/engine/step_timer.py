"""Measures how long training steps take."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

WARMUP_STEPS = 20  # on a GPU: compilation, autotuning and CUDA-graph capture happen in them


class StepTimer:
    """Times training steps. On a GPU the first ``WARMUP_STEPS`` of a process are not timed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._untimed = WARMUP_STEPS if device.type == "cuda" else 0
        self._seconds, self._steps = 0.0, 0

    def run(self, advance: Callable[[int], None], count: int) -> None:
        """Make ``count`` steps with ``advance`` and time those after the warm-up."""
        untimed = min(count, self._untimed)
        self._untimed -= untimed
        advance(untimed)
        self._synchronize()
        started = time.perf_counter()
        advance(count - untimed)
        self._synchronize()
        self._seconds += time.perf_counter() - started
        self._steps += count - untimed

    def estimate(self, steps: int) -> float:
        """Return the seconds that ``steps`` steps take, extrapolated from the timed ones."""
        return steps * self._seconds / max(1, self._steps)

    def state(self) -> tuple[float, int]:
        """Return the timed seconds and steps, for a checkpoint."""
        return self._seconds, self._steps

    def load_state(self, state: tuple[float, int]) -> None:
        self._seconds, self._steps = state

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
