"""One cell of a table: some candidates on the same model and batches, their times, ratios and memory."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from data import Batch
from memory import MIB, allocated, peak, resident_growth, state_bytes
from steps import Candidate, Training, build, too_large, window_bytes
from timing import interleaved, timed, warm_up
from torch import nn

WARM = 10  # steps before anything is measured, for candidates that remember no batches
WARM_SECONDS = 3.0
FILL_SECONDS = 40.0

Row = dict[str, Any]


def measure(
    candidates: Sequence[Candidate], model: nn.Module, batches: Sequence[Batch], beta: float, seconds: float
) -> list[Row]:
    """A row a candidate, skipped ones included. ``seconds`` is what timing may take, apart from warming up."""
    device = batches[0].reward.device
    _prime(model, batches, device)
    rows: dict[str, Row] = {}
    running: dict[str, Training] = {}
    for candidate in candidates:
        row: Row = dict(name=candidate.name, baseline=candidate.baseline, horizon=candidate.remembers(beta))
        rows[candidate.name] = row
        expected_bytes = window_bytes(candidate, model, batches, beta) if candidate.correction == "window" else 0
        reason = too_large(candidate, model, device, expected_bytes)
        if reason is None:
            own = copy.deepcopy(model)
            before = allocated(device)
            training = build(candidate, own, batches, beta)
            reason = _warm(training, candidate, beta, device, row, expected_bytes)
        if reason is not None:
            row["skipped"] = reason
            continue
        running[candidate.name] = training
        row["state_mib"] = state_bytes(training.state()) / MIB
        if device.type == "cuda":
            row["peak_mib"] = peak(training.step, device, before) / MIB
        else:
            growth = resident_growth(training.step)
            row["growth_mib"] = None if growth is None else growth / MIB
    timings = interleaved({name: training.step for name, training in running.items()}, device, seconds)
    for name, timing in timings.items():
        rows[name].update(
            ms=timing.median * 1e3,
            quartiles_ms=[timing.low * 1e3, timing.high * 1e3],
            ratio=timing.median / timings[rows[name]["baseline"]].median,
            turns=timing.turns,
            steps_per_turn=timing.steps_per_turn,
        )
    return list(rows.values())


def _warm(
    training: Training, candidate: Candidate, beta: float, device: torch.device, row: Row, expected_bytes: int
) -> str | None:
    """Warm a candidate up and fill what it remembers. A reason to skip it, if that takes too long."""
    horizon = candidate.remembers(beta)
    if candidate.correction != "oracle":
        row["warm_steps"] = warm_up(training.step, device, max(WARM, horizon), WARM_SECONDS)
        # Timing a window that is not full is fair only if it is gone through as a whole all the same.
        if row["warm_steps"] < horizon and state_bytes(training.state()) < 0.98 * expected_bytes:
            return f"filling its {horizon} batches takes too long"
        return None
    training.fill()
    first = timed(training.fill, device)
    part = horizon // 10
    for _ in range(part):
        training.fill()
    slope = (timed(training.fill, device) - first) / (part + 1)
    seconds = horizon * first + slope * horizon**2 / 2
    if seconds > FILL_SECONDS:
        return f"filling its {horizon} batches would take {seconds:.0f} s"
    for _ in range(horizon - part - 3):
        training.fill()
    training.step()
    row["warm_steps"] = horizon
    return None


def _prime(model: nn.Module, batches: Sequence[Batch], device: torch.device) -> None:
    """Let libraries allocate their workspaces before the first candidate could be blamed for them."""
    warm_up(build(Candidate("SGD"), copy.deepcopy(model), batches, 0.9).step, device, 3, 0)
