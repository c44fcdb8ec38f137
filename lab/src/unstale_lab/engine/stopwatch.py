"""How long steps take."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

BEGINNING = 20  # steps on a GPU in which work is compiled, tried out and recorded


class Stopwatch:
    """Times steps; on a GPU not the first of a process."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._untimed = BEGINNING if device.type == "cuda" else 0
        self._seconds, self._steps = 0.0, 0

    def time(self, advance: Callable[[int], None], count: int) -> None:
        """Makes so many steps."""
        untimed = min(count, self._untimed)
        self._untimed -= untimed
        advance(untimed)
        self._synchronize()
        started = time.perf_counter()
        advance(count - untimed)
        self._synchronize()
        self._seconds += time.perf_counter() - started
        self._steps += count - untimed

    def seconds_of(self, steps: int) -> float:
        """What so many steps take, by those that were timed."""
        return steps * self._seconds / max(1, self._steps)

    def state(self) -> tuple[float, int]:
        return self._seconds, self._steps

    def load_state(self, state: tuple[float, int]) -> None:
        self._seconds, self._steps = state

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
