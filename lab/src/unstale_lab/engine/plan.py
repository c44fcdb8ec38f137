"""Groups runs into batches that are trained together, and orders the batches.

The plan depends only on the requested runs and the kind of device, not on the store. A sweep that was killed and
started again therefore makes the same batches, and the same results, as one that was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from .. import methods, problems
from ..experiment import Run, unique
from . import control_training
from .architectures import build_network
from .control_training import is_control

# Small batches stay in the cache of a CPU, and lose little work when killed. A GPU needs large ones.
MAX_MACS_PER_STEP = {"cpu": 1e8, "cuda": 1e11}  # multiply-adds of a batch


def plan(runs: Sequence[Run], device: str) -> list[list[Run]]:
    """Batches of runs of one shape, the most expensive first, so that the last ones to finish are short."""
    groups: dict[tuple, list[Run]] = {}
    for run in unique(runs):
        groups.setdefault(_shape(run), []).append(run)
    batches = [part for group in groups.values() for part in _split(group, MAX_MACS_PER_STEP[device.split(":")[0]])]
    return sorted(batches, key=lambda batch: -sum(cost(run) for run in batch))


def cost(run: Run) -> float:
    """Approximate number of multiply-adds of a run."""
    return run.steps * _work(run)


def _work(run: Run) -> float:
    """Approximate number of multiply-adds per step."""
    if is_control(run):
        return control_training.macs_per_step(run)
    network = build_network(run, problems.load(run.problem))
    n, method = network.size, methods.METHODS[run.method]
    passes = 4 * run.batch * network.macs * (methods.horizon(run) if method.correction == "oracle" else 1)
    matrix = n * n * (run.batch + 8) if method.correction in ("full", "layers") else 0
    window = 3 * methods.horizon(run) * run.batch * n if method.correction == "window" else 0
    exact = n * n * run.batch * 6 if method.second_order else 0
    return passes + matrix + window + exact + 20_000  # the constant stands for the overhead of operations


def _shape(run: Run) -> tuple:
    """The settings that runs of a batch share: all but seed, α and usually β. Control runs are trained alone."""
    if is_control(run):
        return (run,)
    together = {"seed", "alpha"} if methods.has_one_beta(run) else {"seed", "alpha", "beta"}
    return tuple(getattr(run, f.name) for f in fields(run) if f.name not in together)


def _split(group: list[Run], limit: float) -> list[list[Run]]:
    """Splits a group into parts of similar size, with at least two runs: one run costs as much as two."""
    parts = max(1, len(group) // max(2, int(limit / _work(group[0]))))
    return [group[i * len(group) // parts : (i + 1) * len(group) // parts] for i in range(parts)]
