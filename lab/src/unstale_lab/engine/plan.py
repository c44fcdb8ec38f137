"""Which runs are stepped together, and in which order.

The plan depends on the runs asked for and the kind of device alone, never on what is in the store: so a sweep that was
killed and started again makes the same batches, and the same numbers, as one that was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from .. import methods, problems
from ..experiment import Run, unique
from .architectures import build_network as network_of
from .control_training import is_control
from .control_training import macs_per_step as control_work

# What one batch may weigh. Small ones on a CPU stay in its cache and lose little when killed; a GPU wants them large.
LIMITS = {"cpu": 1e8, "cuda": 1e11}  # multiply-adds a step


def plan(runs: Sequence[Run], device: str) -> list[list[Run]]:
    """Batches of runs of one shape, the most expensive first, so that the last to finish are short."""
    groups: dict[tuple, list[Run]] = {}
    for run in unique(runs):
        groups.setdefault(_shape(run), []).append(run)
    batches = [part for group in groups.values() for part in _cut(group, LIMITS[device.split(":")[0]])]
    return sorted(batches, key=lambda batch: -sum(cost(run) for run in batch))


def cost(run: Run) -> float:
    """Multiply-adds of a run, roughly."""
    return run.steps * _work(run)


def _work(run: Run) -> float:
    """Multiply-adds of a step, roughly."""
    if is_control(run):
        return control_work(run)
    network = network_of(run, problems.load(run.problem))
    n, method = network.size, methods.METHODS[run.method]
    passes = 4 * run.batch * network.macs * (methods.horizon(run) if method.correction == "oracle" else 1)
    matrix = n * n * (run.batch + 8) if method.correction in ("full", "layers") else 0
    window = 3 * methods.horizon(run) * run.batch * n if method.correction == "window" else 0
    exact = n * n * run.batch * 6 if method.second_order else 0
    return passes + matrix + window + exact + 20_000  # the last for what an operation costs however small it is


def _shape(run: Run) -> tuple:
    """What runs must have in common: all but seed and α, and mostly β. One that plays games shares with nobody."""
    if is_control(run):
        return (run,)
    together = {"seed", "alpha"} if methods.has_one_beta(run) else {"seed", "alpha", "beta"}
    return tuple(getattr(run, f.name) for f in fields(run) if f.name not in together)


def _cut(group: list[Run], limit: float) -> list[list[Run]]:
    """Parts of about the same size, of two runs at least: one alone costs as much."""
    parts = max(1, len(group) // max(2, int(limit / _work(group[0]))))
    return [group[i * len(group) // parts : (i + 1) * len(group) // parts] for i in range(parts)]
