"""A small sweep for tests of faults, and the comparison of its results with those of a sweep left alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import torch

from unstale_lab.batch_file import PROVENANCE
from unstale_lab.engine.plan import plan
from unstale_lab.engine.sweep import make_engine, missing, run_batches
from unstale_lab.experiment import Run
from unstale_lab.store import Store


def small_runs(steps: int = 20) -> list[Run]:
    """Eight runs in four batches."""
    return [
        Run(width=width, batch=4, steps=steps, method=method, seed=seed)
        for width in (4, 6)
        for method in ("momentum", "diagonal")
        for seed in (0, 1)
    ]


def batches(runs: Sequence[Run]) -> list[list[Run]]:
    return plan(runs, "cpu")


def finish(runs: Sequence[Run], path: Path, warn=lambda text: None) -> None:
    """Computes what the store lacks, in this process."""
    store = Store(path, warn)
    run_batches(missing(runs, store, "cpu"), store, make_engine("local", "cpu", 1, path), lambda *news: None)
    torch.set_flush_denormal(False)


def table(path: Path) -> tuple[dict[str, str], int]:
    """Everything of every run, but for where and when it was made, as text, in which floats have all their digits."""
    files = sorted(path.glob("batch-*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).drop_columns([*PROVENANCE, "seconds"]).to_pylist()]
    return {row["id"]: repr(row) for row in rows}, len(rows)
