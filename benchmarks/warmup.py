"""Warm-up: brings a candidate into its steady state before it is timed."""

from __future__ import annotations

import time

from memory import state_bytes
from steps import Training
from timing import synchronize, timed, warm_up
from torch import device as Device

MIN_WARMUP_STEPS = 10  # for candidates without a horizon
MAX_FILL_SECONDS = 40.0  # of an oracle
MAX_SLOT_FILL_SECONDS, MAX_SLOT_FILL_STEPS = 120.0, 5000


class TooSlow(Exception):
    """The warm-up of a candidate takes too long. The message goes into the table."""


def fill_history(training: Training, device: Device, horizon: int, full: int, seconds: float) -> int:
    """Make as many steps as the horizon, or as fit into ``seconds``, and return how many.

    A window may be timed before it is full only if its state already has its ``full`` size in bytes, because then a
    step processes all of it.

    Raises:
        TooSlow: if neither is reached in time.
    """
    steps = warm_up(training.step, device, max(MIN_WARMUP_STEPS, horizon), seconds)
    if steps < horizon and state_bytes(training.state()) < 0.98 * full:
        raise TooSlow(f"filling its {horizon} batches takes over {seconds:.0f} s")
    return steps


def fill_slots(training: Training, device: Device, seconds: float = MAX_SLOT_FILL_SECONDS) -> tuple[int, float]:
    """Make steps until every slot of a reservoir has a sample, within ``seconds`` and ``MAX_SLOT_FILL_STEPS``.

    Returns:
        The number of steps, and the share of slots that have a sample.
    """
    start, steps, filled = time.perf_counter(), 0, 0.0
    while filled < 1 and steps < MAX_SLOT_FILL_STEPS and (not steps or time.perf_counter() - start < seconds):
        for _ in range(100):
            training.step()
        steps += 100
        filled = float((training.group_state()["memory"]["weight"] != 0).double().mean())
    return steps, filled


def fill_oracle(training: Training, device: Device, horizon: int) -> int:
    """Fill an oracle's history, unless the first tenth shows that it would take longer than ``MAX_FILL_SECONDS``."""
    part = horizon // 10
    training.fill()
    first = timed(training.fill, device)
    for _ in range(part):
        training.fill()
    growth = (timed(training.fill, device) - first) / (part + 1)
    seconds = horizon * first + growth * horizon**2 / 2
    if seconds > MAX_FILL_SECONDS:
        raise TooSlow(f"filling its {horizon} batches would take {seconds:.0f} s")
    for _ in range(horizon - part - 3):
        training.fill()
    training.step()
    synchronize(device)
    return horizon
