"""Made-up records of figures, with errors and measurements that a test chooses."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from unstale_lab.experiment import Run
from unstale_lab.figures import find
from unstale_lab.records import Record

inf = math.inf
FLOORS = {"momentum": 0.06, "oracle": 0.035, "full": 0.04, "diagonal": 0.05, "default": 0.038}
Truth = Callable[[Run], float]


def floor(run: Run) -> float:
    return FLOORS.get(run.method, 0.06)


def noise(run: Run, name: str, size: float = 0.02) -> float:
    """Return a noise factor: one part shared by all methods of a seed and setting, and a smaller one per run."""
    common = random.Random(f"{replace(run, method='momentum', corrected_layers=()).id} {name} for all methods")
    return math.exp(common.gauss(0, 5 * size) + random.Random(f"{run.id} {name}").gauss(0, size))


def record(
    run: Run,
    error: float,
    drift: float = 0.01,
    early: float = 0.98,
    late: float = 0.8,
    training: float = 1.0,
    sampling: float = 0.0,
    score: float = 300.0,
    passes: float = 1e-3,
    correction: float = 1e-3,
    on_gpu: bool = True,
    **counts,
) -> Record:
    """Return a record that ends with ``error``, or diverges half-way if it is infinite.

    ``training`` is the ratio of the training error; ``sampling`` is added to errors against sampled returns.
    """
    at = np.linspace(0, run.steps, 51)
    way = at / run.steps
    end = error if math.isfinite(error) else 1.0
    own = {
        "evaluation": 2.5 * (end / 2.5) ** np.minimum(1, 2 * way) * noise(run, "evaluation"),
        "drift": drift * np.minimum(1, 50 * way) * noise(run, "drift"),
        "agreement": 1 - (1 - early + (early - late) * way) * noise(run, "agreement"),
    }
    own |= {"training": training * own["evaluation"], "agreement of batches": own["agreement"]}
    own["agreement if uncorrected"] = own["agreement"] - 0.1
    if "svhn" in run.problem:
        own |= {"training accuracy": 1 - own["training"] / 9, "evaluation accuracy": 1 - own["evaluation"] / 9}
    if "pacman" in run.problem:
        own |= {"truth": own["evaluation"], "evaluation": own["evaluation"] + sampling}
        own |= {"score": np.where(at > 0, score, math.nan), "evaluation score": np.full(51, score)}
        if "diagonal" in run.method or "window" in run.method:
            own |= {"bounded": 0.1 * way, "staleness": way}
    if "phases" in run.measure:
        times = {"seconds in passes": passes, "seconds in the correction": correction}
        own |= {("kernel " if on_gpu else "") + name: np.full(51, time) for name, time in times.items()}
    if not math.isfinite(error):
        own = {name: np.where(way > 0.5, inf, curve) for name, curve in own.items()}
    fields = {"parameters": 177, "numbers_kept": 177, "backward_passes": 1, "seconds": 1.0} | counts
    return Record(run, at, own, None if math.isfinite(error) else run.steps // 2, **fields)


def records(name: str, error: Truth = floor, scale: str = "quick", **more: Callable[[Run], float]) -> list[Record]:
    return [
        record(run, error(run), **{key: value(run) for key, value in more.items()}) for run in find(name).runs(scale)
    ]
