"""Times the phases of a step: passes through the network, and the correction.

On a CPU the clock is read around each phase. On a GPU a profiler adds up the times of the kernels that a phase
launches: a small network computes faster than the CPU launches its kernels, so that a clock would measure the CPU.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

PASSES, CORRECTION = "seconds in passes", "seconds in the correction"
PHASES = (PASSES, CORRECTION)  # of a step, in this order; a method without correction has the first alone
OF_KERNELS = "kernel "  # what the names of kernel times begin with
WARMUP_STEPS = 20  # not timed: the first steps allocate memory and choose kernels
PROFILED_STEPS = 20  # a multiple of the steps between two updates of the dense correction's matrix


class PhaseTimer(ABC):
    """Mean seconds per step and run of each phase."""

    prefix = ""  # of the names under which the means are returned

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps = 0  # begun so far, warm-up included

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the body of a ``with`` statement as a phase of the current step."""
        if name == PASSES:
            self._steps += 1
        with self._timed(name):
            yield

    def means(self, runs: int) -> dict[str, Tensor]:
        """Return the mean seconds of each phase so far, ``[runs]``; NaN if none was timed.

        Runs of a batch are not timed apart: each has the same share. In sweeps, timed runs are trained alone.
        """
        shares = {self.prefix + name: mean / runs for name, mean in self._means().items()}
        return {name: torch.full((runs,), share, device=self._device) for name, share in shares.items()}

    @abstractmethod
    def _timed(self, name: str) -> Any:
        """Return a context that times its body as part of a phase."""

    @abstractmethod
    def _means(self) -> Mapping[str, float]: ...


class ClockTimer(PhaseTimer):
    """Reads the clock of the CPU."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        if self._steps > WARMUP_STEPS:
            self._seconds[name] += time.perf_counter() - started

    def _means(self) -> Mapping[str, float]:
        steps = self._steps - WARMUP_STEPS
        return {name: total / steps if total else math.nan for name, total in self._seconds.items()}


class KernelTimer(PhaseTimer):
    """Profiles ``PROFILED_STEPS`` steps after the warm-up and adds up the times of their kernels.

    The means are NaN until all of these steps are made. Kernels that autograd launches from a thread of its own are not
    seen; the engine uses autograd for second derivatives only.
    """

    prefix = OF_KERNELS

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._profiler: torch.profiler.profile | None = None
        self._found: Mapping[str, float] = dict.fromkeys(PHASES, math.nan)

    def _timed(self, name: str) -> Any:
        if name == PASSES and self._steps == WARMUP_STEPS + 1:
            activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            self._profiler = torch.profiler.profile(activities=activities)
            self._profiler.start()
        if name == PASSES and self._steps > WARMUP_STEPS + PROFILED_STEPS:
            self._stop()
        return torch.profiler.record_function(name)

    def _means(self) -> Mapping[str, float]:
        if self._steps == WARMUP_STEPS + PROFILED_STEPS:
            self._stop()
        return self._found

    def _stop(self) -> None:
        """Evaluate the profile, if it is still running."""
        if self._profiler is None:
            return
        torch.cuda.synchronize(self._device)
        self._profiler.stop()
        totals = kernel_seconds(self._profiler.events())
        self._found = {name: total / PROFILED_STEPS for name, total in totals.items()}
        self._profiler = None


def make_phase_timer(device: torch.device) -> PhaseTimer:
    """Return the timer for a device."""
    return KernelTimer(device) if device.type == "cuda" else ClockTimer(device)


def kernel_seconds(events: Iterable[Any]) -> dict[str, float]:
    """Return the sum of the times of the kernels that each phase launched; NaN if it launched none.

    Args:
        events: of a profiler. Each launch belongs to an operation of the CPU, and the operations to the phase around
            them. The phases themselves are listed as kernels, too, from their first kernel to their last, and skipped.
    """
    found: dict[str, float] = {}
    for event in events:
        if event.name in PHASES and event.device_type.name == "CPU":
            found[event.name] = found.get(event.name, 0.0) + _microseconds(event) / 1e6
    return {name: found.get(name) or math.nan for name in PHASES}


def _microseconds(event: Any) -> float:
    own = sum(kernel.duration for kernel in event.kernels if kernel.name not in PHASES)
    return own + sum(_microseconds(child) for child in event.cpu_children)
