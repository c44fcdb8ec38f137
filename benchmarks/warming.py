"""Bringing a candidate to where its steps cost what they cost for the rest of a training."""

from __future__ import annotations

from memory import state_bytes
from steps import Training
from timing import synchronize, timed, warm_up
from torch import device as Device

LEAST = 10  # steps for candidates that remember no batches
FILL_SECONDS = 40.0


class TooSlow(Exception):
    """A candidate cannot be brought there in time. The message says why, for the table."""


def warm(training: Training, device: Device, horizon: int, full: int, seconds: float) -> int:
    """Make as many steps as batches are remembered, or as fit into ``seconds``, and return how many.

    Timing a window before it is full is fair only if it is gone through as a whole all the same: its state must have
    its ``full`` size in bytes by then.
    """
    steps = warm_up(training.step, device, max(LEAST, horizon), seconds)
    if steps < horizon and state_bytes(training.state()) < 0.98 * full:
        raise TooSlow(f"filling its {horizon} batches takes over {seconds:.0f} s")
    return steps


def fill(training: Training, device: Device, horizon: int) -> int:
    """Fill an oracle's memory, unless the first tenth shows that it would take longer than ``FILL_SECONDS``."""
    part = horizon // 10
    training.fill()
    first = timed(training.fill, device)
    for _ in range(part):
        training.fill()
    growth = (timed(training.fill, device) - first) / (part + 1)
    seconds = horizon * first + growth * horizon**2 / 2
    if seconds > FILL_SECONDS:
        raise TooSlow(f"filling its {horizon} batches would take {seconds:.0f} s")
    for _ in range(horizon - part - 3):
        training.fill()
    training.step()
    synchronize(device)
    return horizon
