"""Times of several training steps, measured side by side.

A machine's speed drifts: clocks, caches, neighbours. So all candidates run in one process and take turns, a few steps
each, round after round, and whatever drifts hits all of them alike. Medians over the turns are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

import torch

Step = Callable[[], None]

TURN = 0.01  # seconds that a turn of a quick step should last, to drown the clock's own noise
SLOW = 3.0  # seconds from which a single step counts as slow, and is repeated only a few times


@dataclass(frozen=True)
class Timing:
    """Seconds per step: median and quartiles over turns."""

    median: float
    low: float
    high: float
    turns: int
    steps_per_turn: int


def interleaved(steps: Mapping[str, Step], device: torch.device, seconds: float, rounds: int = 40) -> dict[str, Timing]:
    """Time warm ``steps`` in turns, for about ``seconds`` in all.

    A slow step sits out some of the rounds, so as not to take more than its share, but has at least five turns, or
    three if one step takes longer than ``SLOW``.
    """
    share = seconds / len(steps)
    once = {name: min(timed(step, device) for _ in range(2)) for name, step in steps.items()}
    length = {name: min(50, max(1, round(TURN / once[name]))) for name in steps}
    every: dict[str, int] = {}
    for name in steps:
        turns = int(share / (once[name] * (length[name] + 1)))
        every[name] = ceil(rounds / min(rounds, max(3 if once[name] > SLOW else 5, turns)))
    found: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        for name, step in steps.items():
            if number % every[name]:
                continue
            if once[name] < SLOW / 10:
                step()  # untimed: bring this candidate's memory back into the caches
            found[name].append(timed(step, device, length[name]))
    return {name: _summary(found[name], length[name]) for name in steps}


def timed(step: Step, device: torch.device, repeat: int = 1) -> float:
    """Seconds per step of ``repeat`` steps in a row."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeat):
        step()
    synchronize(device)
    return (time.perf_counter() - start) / repeat


def warm_up(step: Step, device: torch.device, wanted: int, seconds: float, least: int = 3) -> int:
    """Run ``wanted`` steps, or as many as fit into ``seconds`` (but at least ``least``), and return how many."""
    start, done = time.perf_counter(), 0
    while done < least or (done < wanted and time.perf_counter() - start < seconds):
        step()
        synchronize(device)
        done += 1
    return done


def synchronize(device: torch.device) -> None:
    """Wait for the device; a CPU is never behind."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _summary(times: list[float], steps_per_turn: int) -> Timing:
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return Timing(median, low, high, len(times), steps_per_turn)
