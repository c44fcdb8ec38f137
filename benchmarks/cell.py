"""One cell of a table: time, ratio and memory of several candidates on the same model and batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from data import Batch
from memory import MIB, allocated, peak, resident_growth, state_bytes
from steps import Candidate, Training, build, too_large, window_bytes
from timing import time_interleaved, warm_up
from torch import nn
from warmup import TooSlow, fill_history, fill_oracle, fill_slots

from unstale.corrections import ReservoirPlan

Row = dict[str, Any]


def measure(
    candidates: Sequence[Candidate],
    model: nn.Module,
    batches: Sequence[Batch],
    beta: float | None,
    seconds: float,
    steps_per_turn: int | None = None,
) -> list[Row]:
    """Return one row per candidate, including skipped ones.

    Args:
        candidates: what to measure.
        model: copied for every candidate.
        batches: used in turn by every candidate.
        beta: momentum; None for the default of each optimizer.
        seconds: for timing all candidates, and for the warm-up of each (but reservoirs are always filled).
        steps_per_turn: see ``time_interleaved``; memory is measured over as many steps.
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
            row["plan"] = chosen_plan(training)
            if row["plan"] is not None and row["plan"]["slots"] is not None:
                more, row["filled"] = fill_slots(training, device)
                row["warm_steps"] += more
        except TooSlow as error:
            row["skipped"] = str(error)
            continue
        row.update(_memory(_repeated(training.step, steps_per_turn or 1), training, device, before))
        running[candidate.name] = training
    timings = time_interleaved(
        {name: training.step for name, training in running.items()}, device, seconds, steps_per_turn=steps_per_turn
    )
    for name, timing in timings.items():
        rows[name].update(
            ms=timing.median * 1e3,
            quartiles_ms=[timing.low * 1e3, timing.high * 1e3],
            ratio=timing.median / timings[rows[name]["baseline"]].median,
            turns=timing.turns,
            steps_per_turn=timing.steps_per_turn,
        )
    return list(rows.values())


def chosen_plan(training: Training) -> dict[str, Any] | None:
    """Return what the optimizer decided at its first batch; None if there was nothing to decide.

    ``slots`` are of a reservoir, ``every`` is its number of steps between samples that enter, and ``beta`` the largest
    ``β`` of a memory that grows.
    """
    plan = training.group_state().get("plan")
    if plan is None:
        return None
    reservoir = None if plan["reservoir"] is None else ReservoirPlan(*plan["reservoir"])
    return dict(
        correction=plan["correction"],
        slots=None if reservoir is None else reservoir.slots,
        every=plan["every"] if reservoir is None else reservoir.every,
        beta=1 - 1 / plan["max_memory"],
        reason=plan["reason"],
    )


def _repeated(step: Callable[[], None], times: int) -> Callable[[], None]:
    def steps() -> None:
        for _ in range(times):
            step()

    return steps


def _allocate_workspaces(model: nn.Module, batches: Sequence[Batch], device: torch.device) -> None:
    """Run a few steps, so that one-time allocations of libraries are not attributed to the first candidate."""
    warm_up(build(Candidate("SGD"), copy.deepcopy(model), batches, 0.9).step, device, steps=3, seconds=0)


def _memory(steps: Callable[[], None], training: Training, device: torch.device, before: int) -> Row:
    found: Row = dict(state_mib=state_bytes(training.state()) / MIB)
    if device.type == "cuda":
        found["peak_mib"] = peak(steps, device, before) / MIB
    else:
        growth = resident_growth(steps)
        found["growth_mib"] = None if growth is None else growth / MIB
    return found
