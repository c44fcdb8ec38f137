"""One cell of a table: some candidates on the same model and batches, their times, ratios and memory."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from data import Batch
from memory import MIB, allocated, peak, resident_growth, state_bytes
from steps import Candidate, Training, build, too_large, window_bytes
from timing import interleaved, warm_up
from torch import nn
from warming import TooSlow, fill, warm

Row = dict[str, Any]


def measure(
    candidates: Sequence[Candidate], model: nn.Module, batches: Sequence[Batch], beta: float, seconds: float
) -> list[Row]:
    """A row a candidate, skipped ones included. ``seconds`` is what timing may take, and warming up each candidate."""
    device = batches[0].reward.device
    _prime(model, batches, device)
    rows: dict[str, Row] = {}
    running: dict[str, Training] = {}
    for candidate in candidates:
        row: Row = dict(name=candidate.name, baseline=candidate.baseline, horizon=candidate.remembers(beta))
        rows[candidate.name] = row
        full = window_bytes(candidate, model, batches, beta) if candidate.correction == "window" else 0
        reason = too_large(candidate, model, device, full)
        if reason is not None:
            row["skipped"] = reason
            continue
        own = copy.deepcopy(model)
        before = allocated(device)
        training = build(candidate, own, batches, beta)
        try:
            if candidate.correction == "oracle":
                row["warm_steps"] = fill(training, device, row["horizon"])
            else:
                row["warm_steps"] = warm(training, device, row["horizon"], full, seconds)
        except TooSlow as error:
            row["skipped"] = str(error)
            continue
        row.update(_memory(training, device, before))
        running[candidate.name] = training
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


def _prime(model: nn.Module, batches: Sequence[Batch], device: torch.device) -> None:
    """Let libraries allocate their workspaces before the first candidate could be blamed for them."""
    warm_up(build(Candidate("SGD"), copy.deepcopy(model), batches, 0.9).step, device, wanted=3, seconds=0)


def _memory(training: Training, device: torch.device, before: int) -> Row:
    found: Row = dict(state_mib=state_bytes(training.state()) / MIB)
    if device.type == "cuda":
        found["peak_mib"] = peak(training.step, device, before) / MIB
    else:
        growth = resident_growth(training.step)
        found["growth_mib"] = None if growth is None else growth / MIB
    return found
