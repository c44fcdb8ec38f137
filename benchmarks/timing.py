"""Times several training steps in alternation.

The speed of a machine drifts. All candidates run in one process and take turns of a few steps, so that drift affects
all of them alike. Medians over the turns are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil

import torch

Step = Callable[[], None]

MIN_TURN_SECONDS = 0.01  # so that clock noise is negligible
SLOW_STEP_SECONDS = 3.0  # slower steps are repeated only a few times


@dataclass(frozen=True)
class Timing:
    """Seconds per step: median and quartiles over turns."""

    median: float
    low: float
    high: float
    turns: int
    steps_per_turn: int


def time_interleaved(
    steps: Mapping[str, Step],
    device: torch.device,
    seconds: float,
    rounds: int = 40,
    steps_per_turn: int | None = None,
) -> dict[str, Timing]:
    """Time ``steps`` in turns after their warm-up, for about ``seconds`` in total.

    A slow step skips some of the rounds, so that it does not take more than its share, but has at least five turns, or
    three if one step takes longer than ``SLOW_STEP_SECONDS``.

    Args:
        steps: what to time.
        device: where the steps run.
        seconds: for all turns of all steps.
        rounds: the largest number of turns.
        steps_per_turn: length of a turn, for steps whose work repeats with this period. Default: as many steps as
            take ``MIN_TURN_SECONDS``, but at most 50.
    """
    share = seconds / len(steps)
    if steps_per_turn is None:
        once = {name: min(timed(step, device) for _ in range(2)) for name, step in steps.items()}
        length = {name: min(50, max(1, round(MIN_TURN_SECONDS / once[name]))) for name in steps}
    else:
        once = {name: timed(step, device, min(steps_per_turn, 20)) for name, step in steps.items()}
        length = dict.fromkeys(steps, steps_per_turn)
    every: dict[str, int] = {}
    for name in steps:
        turns = int(share / (once[name] * (length[name] + 1)))
        every[name] = ceil(rounds / min(rounds, max(3 if once[name] > SLOW_STEP_SECONDS else 5, turns)))
    found: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds):
        for name, step in steps.items():
            if number % every[name]:
                continue
            if once[name] < SLOW_STEP_SECONDS / 10:
                step()  # untimed: bring this candidate's data back into the cache
            found[name].append(timed(step, device, length[name]))
    return {name: _summary(found[name], length[name]) for name in steps}


def timed(step: Step, device: torch.device, repeat: int = 1) -> float:
    """Return seconds per step of ``repeat`` consecutive steps."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(repeat):
        step()
    synchronize(device)
    return (time.perf_counter() - start) / repeat


def warm_up(step: Step, device: torch.device, steps: int, seconds: float, min_steps: int = 3) -> int:
    """Run ``steps`` steps, or as many as fit into ``seconds`` (but at least ``min_steps``), and return how many."""
    start, done = time.perf_counter(), 0
    while done < min_steps or (done < steps and time.perf_counter() - start < seconds):
        step()
        synchronize(device)
        done += 1
    return done


def synchronize(device: torch.device) -> None:
    """Wait for the device; does nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _summary(times: list[float], steps_per_turn: int) -> Timing:
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return Timing(median, low, high, len(times), steps_per_turn)
