"""Sweeps: the runs that are not in the store yet are computed by an engine, and stored batch by batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ..errors import SweepError, UserError, unknown
from ..experiment import Run
from ..processes import usable_cores
from ..store import Store
from .batch import Batch, Finished, Message, Steps
from .engines import Engine, LocalEngine
from .plan import plan
from .ray_engine import RayEngine

ENGINES = ("local", "ray")
Progress = Callable[[int, int, float], None]  # called with finished runs, steps, and the cost of these steps


def check_device(device: str) -> str:
    """The device, if it exists; a ``UserError`` otherwise."""
    kind, _, index = device.partition(":")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise UserError(f"unknown device {device!r}: choose cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("no GPU was found: choose --device cpu, or install a build of torch with CUDA")
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise UserError(f"there is no GPU {index}: they are numbered from 0, and there are {torch.cuda.device_count()}")
    return device


def make_engine(name: str, device: str, jobs: int, store: Path, address: str | None = None) -> Engine:
    """The engine of that name.

    Args:
        jobs: number of processes; 0: one per core, or one on a GPU.
        address: of a running Ray cluster; by default Ray is started for this sweep.
    """
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    if name == "ray":
        return RayEngine(device, jobs, address)
    if address is not None:
        raise UserError(f"--address {address} is that of a Ray cluster: add --engine ray")
    # The underscore hides the folder from tools that read a whole store.
    checkpoints = store / "_partial"
    processes = jobs or (usable_cores() if device == "cpu" else 1)
    return LocalEngine(check_device(device), processes, checkpoints)


def missing(runs: Sequence[Run], store: Store, device: str) -> list[list[Run]]:
    """The batches that remain to be computed, without the runs that are in the store."""
    have = store.ids()
    batches = ([run for run in batch if run.id not in have] for batch in plan(runs, device))
    return [batch for batch in batches if batch]


def run_batches(batches: Sequence[Batch], store: Store, engine: Engine, progress: Progress) -> None:
    """Computes every batch, and adds it to the store when it is finished, without runs that another process has added.

    Raises:
        SweepError: not all runs are in the store in the end.
    """

    def receive(message: Message) -> None:
        match message:
            case Finished(records, made):
                have = store.ids()
                new = [record for record in records if record.run.id not in have]
                if new:
                    store.add(new, made)
                progress(len(records), 0, 0.0)
            case Steps(count, cost):
                progress(0, count, cost)
            case str():
                store.warn(message)

    engine.run(batches, receive)
    have = store.ids()
    absent = [run.id for batch in batches for run in batch if run.id not in have]
    if absent:
        total = sum(map(len, batches))
        raise SweepError(
            f"{len(absent)} of {total} runs are not in the store {store.path}, for example {absent[0]}. "
            "Run the command again."
        )
