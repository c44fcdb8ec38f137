"""Times the phases of a step: passes through the network, and the correction."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

PASSES, CORRECTION = "seconds in passes", "seconds in the correction"
WARMUP_STEPS = 20  # not timed: the first steps allocate memory and choose kernels


class PhaseTimer:
    """Mean seconds per step of each phase since the last ``pop``. The device is synchronized around every phase."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._entered = dict.fromkeys((PASSES, CORRECTION), 0)  # how often a phase began, warm-up included
        self._seconds: dict[str, list[float]] = {phase: [] for phase in self._entered}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the body of a ``with`` statement as a phase of the current step."""
        self._synchronize()
        started = time.perf_counter()
        yield
        self._synchronize()
        self._entered[name] += 1
        if self._entered[name] > WARMUP_STEPS:
            self._seconds[name].append(time.perf_counter() - started)

    def pop(self, runs: int) -> dict[str, Tensor]:
        """Return the mean seconds of each phase, the same for all ``[runs]``, and start over; NaN if none was timed."""
        means = {name: sum(each) / len(each) if each else math.nan for name, each in self._seconds.items()}
        for seconds in self._seconds.values():
            seconds.clear()
        return {name: torch.full((runs,), mean, device=self._device) for name, mean in means.items()}

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
