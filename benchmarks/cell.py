"""One cell of a table: time, ratio and memory of several candidates on the same model and batches."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from data import Batch
from memory import MIB, allocated, peak, resident_growth, state_bytes
from steps import Candidate, Training, build, too_large, window_bytes
from timing import time_interleaved, warm_up
from torch import nn
from warmup import TooSlow, fill_history, fill_oracle

Row = dict[str, Any]


def measure(
    candidates: Sequence[Candidate], model: nn.Module, batches: Sequence[Batch], beta: float, seconds: float
) -> list[Row]:
    """Return one row per candidate, including skipped ones.

    Args:
        candidates: what to measure.
        model: copied for every candidate.
        batches: used in turn by every candidate.
        beta: momentum.
        seconds: for timing all candidates, and for the warm-up of each.
    """
    device = batches[0].reward.device
    _allocate_workspaces(model, batches, device)
    rows: dict[str, Row] = {}
    running: dict[str, Training] = {}
    for candidate in candidates:
        row: Row = dict(name=candidate.name, baseline=candidate.baseline, horizon=candidate.batches_remembered(beta))
        rows[candidate.name] = row
        full = window_bytes(candidate, model, batches, beta) if candidate.correction == "window" else 0
        reason = too_large(candidate, model, device, full)
        if reason is not None:
            row["skipped"] = reason
            continue
        candidate_model = copy.deepcopy(model)
        before = allocated(device)
        training = build(candidate, candidate_model, batches, beta)
        try:
            if candidate.correction == "oracle":
                row["warm_steps"] = fill_oracle(training, device, row["horizon"])
            else:
                row["warm_steps"] = fill_history(training, device, row["horizon"], full, seconds)
        except TooSlow as error:
            row["skipped"] = str(error)
            continue
        row.update(_memory(training, device, before))
        running[candidate.name] = training
    timings = time_interleaved({name: training.step for name, training in running.items()}, device, seconds)
    for name, timing in timings.items():
        rows[name].update(
            ms=timing.median * 1e3,
            quartiles_ms=[timing.low * 1e3, timing.high * 1e3],
            ratio=timing.median / timings[rows[name]["baseline"]].median,
            turns=timing.turns,
            steps_per_turn=timing.steps_per_turn,
        )
    return list(rows.values())


def _allocate_workspaces(model: nn.Module, batches: Sequence[Batch], device: torch.device) -> None:
    """Run a few steps, so that one-time allocations of libraries are not attributed to the first candidate."""
    warm_up(build(Candidate("SGD"), copy.deepcopy(model), batches, 0.9).step, device, steps=3, seconds=0)


def _memory(training: Training, device: torch.device, before: int) -> Row:
    found: Row = dict(state_mib=state_bytes(training.state()) / MIB)
    if device.type == "cuda":
        found["peak_mib"] = peak(training.step, device, before) / MIB
    else:
        growth = resident_growth(training.step)
        found["growth_mib"] = None if growth is None else growth / MIB
    return found
