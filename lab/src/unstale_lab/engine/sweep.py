"""Sweeps: the runs that are not in the store yet are computed, batch by batch, in several processes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from .. import problems
from ..checkpoint import Checkpoint
from ..errors import SweepError, UserError
from ..experiment import Run
from ..problems.problem import ImageProblem
from ..processes import Send, run_tasks
from ..provenance import provenance
from ..store import Store
from .control_training import ControlTraining, is_control
from .plan import cost, plan
from .training import Training

Progress = Callable[[int, int, float], None]  # called with finished runs, steps, and the cost of these steps


def device_name(device: str) -> str:
    """The name of the GPU, or ``"cpu"``."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"


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


def missing(runs: Sequence[Run], store: Store, device: str) -> list[list[Run]]:
    """The batches that remain to be computed, without the runs that are in the store."""
    have = store.ids()
    batches = ([run for run in batch if run.id not in have] for batch in plan(runs, device))
    return [batch for batch in batches if batch]


def run_batches(batches: Sequence[Sequence[Run]], store: Store, device: str, jobs: int, progress: Progress) -> None:
    """Computes every batch, and adds it to the store when it is finished.

    Raises:
        SweepError: not all runs are in the store in the end.
    """

    def receive(message: tuple[int, int, float] | str) -> None:
        if isinstance(message, str):
            store.warn(message)
        else:
            progress(*message)

    run_tasks(partial(BatchRunner, store.path, device), batches, jobs, receive)
    have = store.ids()
    absent = [run.id for batch in batches for run in batch if run.id not in have]
    if absent:
        total = sum(map(len, batches))
        raise SweepError(
            f"{len(absent)} of {total} runs are not in the store {store.path}, for example {absent[0]}. "
            "Run the command again."
        )


def prepare(device: str) -> dict[str, str]:
    """Configures torch for this process, and returns the provenance of its runs.

    One thread per process, so that results do not depend on the number of cores. The provenance is read at the start:
    the checkout may change while runs are computed.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # diverging runs are full of denormals, which are slow
    return provenance(device_name(device))


class BatchRunner:
    """Computes batches of runs in one process, and adds them to the store."""

    def __init__(self, store: Path, device: str) -> None:
        self.store, self.device = store, device
        self.made = prepare(device)

    def __call__(self, batch: Sequence[Run], send: Send) -> None:
        """Sends progress as tuples and warnings as strings."""
        store = Store(self.store, send)
        total = sum(cost(run) for run in batch)
        trainer = ControlTraining(batch[0], self.device) if is_control(batch[0]) else Training(batch, self.device)
        checkpoint = Checkpoint(_checkpoint_path(batch, store), send)
        records = trainer.run(lambda steps: send((0, steps, total * steps / (len(batch) * batch[0].steps))), checkpoint)
        store.add(records, self.made | {"data": _data_fingerprint(batch[0])})
        checkpoint.remove()
        send((len(batch), 0, 0.0))


def _data_fingerprint(run: Run) -> str:
    """The fingerprint of the data files of a run; empty if its problem needs none."""
    problem = None if is_control(run) else problems.load(run.problem)
    return problem.fingerprint() if isinstance(problem, ImageProblem) else ""


def _checkpoint_path(batch: Sequence[Run], store: Store) -> Path:
    """The underscore hides the directory from tools that read a whole store."""
    ids = " ".join(sorted(run.id for run in batch))
    return store.path / "_partial" / f"{hashlib.sha256(ids.encode()).hexdigest()[:12]}.pt"
