"""Prints how long the whole paper and the studies take on 1, 10 and 100 CPU workers, by the cost model of the sweeps.

python tools/cluster_cost.py            # some minutes

The speed of one worker is measured on figure 3, and checked on figure 10, which is then predicted. Both have steps cut
to STEPS. Figures that need data or a GPU (images and games) are left out. Writes benchmarks/results/cluster_cost.md.
"""

from __future__ import annotations

import heapq
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

from unstale_lab.engine import training
from unstale_lab.engine.batch import Batch, BatchRunner
from unstale_lab.engine.plan import cost, plan
from unstale_lab.experiment import Run
from unstale_lab.figures import FIGURES, find
from unstale_lab.provenance import machine
from unstale_lab.reproduce import runs_of

PAGE = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "cluster_cost.md"
WORKERS = (1, 10, 100)
STEPS = 20
SAMPLE = 8  # batches of a figure, spread evenly over its plan


def main() -> None:
    measured_cost, measured_s = measure(sample("fig3"))
    speed = measured_cost / measured_s
    check_cost, check_s = measure(sample("fig10"))
    predicted_s = check_cost / speed
    rows = []
    for name, runs in {"the paper": classic(True), "the studies": classic(False)}.items():
        batches = plan(runs, "cpu")
        times = [hours(batches, speed, workers) for workers in WORKERS]
        longest = max(batch_cost(batch) for batch in batches) / speed / 3600
        cells = " | ".join(f"{time:,.1f}" for time in times)
        rows.append(f"| {name} | {len(runs):,} | {len(batches):,} | {longest:.2f} | {cells} |")
    heads = " | ".join(f"hours, {workers} worker{'s' * (workers > 1)}" for workers in WORKERS)
    page = f"""# Cost of the paper and the studies on a cluster

`python tools/cluster_cost.py`, {datetime.now(UTC).date()}: {machine()}, load {os.getloadavg()[0]:.1f} at the end.

One worker is one core. Its speed, measured on {SAMPLE} batches of figure 3 with {STEPS} steps, is {speed / 1e9:.2f}
billion multiply-adds of the cost model per CPU second. \
(CPU time, because the machine has other jobs.) \
Figure 10, {SAMPLE} batches of {STEPS} steps, was then predicted to
take {predicted_s:.1f} s; it took {check_s:.1f} s, {check_s / predicted_s:.2f} times as long. Hours below have errors
of this kind. Batches start in the order of the plan, the most expensive first. \
Left out, because they need data or a GPU:
{", ".join(left_out()) or "none"}.

| | runs | batches | longest batch, hours | {heads} |
| --- | --- | --- | --- | {" | ".join("---" for _ in WORKERS)} |
{chr(10).join(rows)}
"""
    print(page)
    if "--print" not in sys.argv:
        PAGE.write_text(page)


def sample(figure: str) -> list[Batch]:
    batches = plan([replace(run, steps=STEPS) for run in find(figure).runs("paper")], "cpu")
    return batches[:: max(1, len(batches) // SAMPLE)][:SAMPLE]


def measure(batches: Sequence[Batch]) -> tuple[float, float]:
    """Cost and CPU seconds of the batches in this process, after one batch that warms it up."""
    # So short runs would mostly be evaluated. The paper's have 100 steps between evaluations.
    with tempfile.TemporaryDirectory() as folder, patch.object(training, "EVALUATIONS_PER_RUN", 1):
        runner = BatchRunner("cpu", Path(folder))
        runner(batches[-1], lambda message: None)
        start = time.process_time()
        for batch in batches:
            runner(batch, lambda message: None)
        return sum(map(batch_cost, batches)), time.process_time() - start


def batch_cost(batch: Batch) -> float:
    return cost(batch[0]) * len(batch)  # runs of a batch have one shape


def needs_data(name: str) -> bool:
    return any(run.problem.startswith(("svhn", "ms_pacman")) for run in FIGURES[name].runs("smoke"))


def left_out() -> list[str]:
    return [name for name in FIGURES if needs_data(name)]


def classic(is_paper: bool) -> list[Run]:
    """The runs of the figures of the paper, or of the studies, that need no data."""
    return runs_of([f for f in FIGURES.values() if bool(f.claims) == is_paper and not needs_data(f.name)], "paper")


def hours(batches: Sequence[Batch], speed: float, workers: int) -> float:
    """When the last worker is done, if each takes the next batch when it is free."""
    free = [0.0] * workers
    for batch in batches:
        heapq.heappush(free, heapq.heappop(free) + batch_cost(batch) / speed)
    return max(free) / 3600


if __name__ == "__main__":
    main()
