"""Groups runs into batches that are trained together, and orders the batches.

The plan depends only on the requested runs and the kind of device, not on the store. A sweep that was killed and
started again therefore makes the same batches, and the same results, as one that was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from unstale.corrections import ReservoirPlan

from .. import methods, problems
from ..experiment import Run, unique
from . import control_training
from .architectures import build_network
from .control_training import is_control
from .corrections import make_plan
from .network import Network

# Small batches stay in the cache of a CPU, and lose little work when killed. A GPU needs large ones.
MAX_MACS_PER_STEP = {"cpu": 1e8, "cuda": 1e11}  # multiply-adds of a batch
# What the corrections of a batch store. Several processes share a GPU.
MAX_BYTES = {"cpu": 1 << 29, "cuda": 1 << 34}
BYTES_PER_NUMBER = {"float64": 8}  # otherwise 4


def plan(runs: Sequence[Run], device: str) -> list[list[Run]]:
    """Batches of runs of one shape, the most expensive first, so that the last ones to finish are short."""
    groups: dict[tuple, list[Run]] = {}
    for run in unique(runs):
        groups.setdefault(_shape(run), []).append(run)
    batches = [part for group in groups.values() for part in _split(group, device.split(":")[0])]
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
    exact = n * n * run.batch * 6 if method.second_order else 0
    # The constant stands for the overhead of operations.
    return passes + _correction_work(run, network) + exact + 20_000


def _correction_work(run: Run, network: Network) -> float:
    """Approximate number of multiply-adds per step of the correction itself."""
    n, correction = network.size, methods.METHODS[run.method].correction
    if methods.has_growing_memory(run):
        decided = make_plan(run, network)
        if decided["reservoir"] is not None:
            return 3 * ReservoirPlan(*decided["reservoir"]).slots * n
        return n * n * (2 + (run.batch + 6) / decided["every"])
    if correction in ("full", "layers"):
        return n * n * (run.batch + 8)
    return 3 * methods.horizon(run) * run.batch * n if correction == "window" else 0


def memory_bytes(run: Run) -> float:
    """Approximate number of bytes that the correction of a run stores."""
    if is_control(run):
        return 0
    network = build_network(run, problems.load(run.problem))
    n, correction = network.size, methods.METHODS[run.method].correction
    numbers = n * n if correction in ("full", "layers") else 0
    if correction == "window":
        numbers = methods.horizon(run) * run.batch * network.numbers_per_sample
    if methods.has_growing_memory(run):
        reservoir = make_plan(run, network)["reservoir"]
        numbers = n * n if reservoir is None else ReservoirPlan(*reservoir).slots * network.numbers_per_sample
    return numbers * BYTES_PER_NUMBER.get(run.precision, 4)


def _shape(run: Run) -> tuple:
    """The settings that runs of a batch share: all but seed, α and usually β.

    Control runs are trained alone. So are runs whose phases are timed, because runs of a batch overlap on a GPU.
    """
    if is_control(run) or "phases" in run.measure:
        return (run,)
    together = {"seed", "alpha"} if methods.has_one_beta(run) else {"seed", "alpha", "beta"}
    return tuple(getattr(run, f.name) for f in fields(run) if f.name not in together)


def _split(group: list[Run], device: str) -> list[list[Run]]:
    """Splits a group into parts of similar size, with at least two runs: one run costs as much as two.

    A part has one run if two would not fit into memory.
    """
    fitting = max(1, int(MAX_BYTES[device] / max(1.0, memory_bytes(group[0]))))
    most = min(fitting, max(2, int(MAX_MACS_PER_STEP[device] / _work(group[0]))))
    parts = max(1, len(group) // most, -(-len(group) // fitting))
    return [group[i * len(group) // parts : (i + 1) * len(group) // parts] for i in range(parts)]
