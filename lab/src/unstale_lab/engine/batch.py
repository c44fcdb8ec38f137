"""One batch of runs, computed in the process that calls it: the same for every engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from .. import problems
from ..checkpoint import Checkpoint
from ..experiment import Run
from ..problems.problem import ImageProblem
from ..provenance import provenance
from ..records import Record
from .control_training import ControlTraining, is_control
from .plan import cost
from .training import Training

Batch = Sequence[Run]


@dataclass(frozen=True)
class Steps:
    """Steps of a batch that were made, and their cost."""

    count: int
    cost: float


@dataclass(frozen=True)
class Finished:
    """The results of a batch, and their provenance."""

    records: list[Record]
    made: dict[str, str]


Message = Steps | Finished | str  # a string is a warning
Receive = Callable[[Message], None]


def prepare(device: str) -> dict[str, str]:
    """Configures torch for this process, and returns the provenance of its runs.

    One thread per process, so that results do not depend on the number of cores. The provenance is read at the start:
    the checkout may change while runs are computed.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # diverging runs are full of denormals, which are slow
    return provenance(device_name(device))


def device_name(device: str) -> str:
    """The name of the GPU, or ``"cpu"``."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"


class BatchRunner:
    """Computes batches of runs in one process.

    Args:
        checkpoints: the folder of checkpoints. That of a finished batch stays, for the caller to remove.
    """

    def __init__(self, device: str, checkpoints: Path) -> None:
        self.device, self.checkpoints = device, checkpoints
        self.made = prepare(device)

    def __call__(self, batch: Batch, send: Receive) -> None:
        """Sends steps, warnings, and in the end the results."""
        total = sum(cost(run) for run in batch)
        trainer = ControlTraining(batch[0], self.device) if is_control(batch[0]) else Training(batch, self.device)
        made = self.made | {"data": _data_fingerprint(batch[0])}
        records = trainer.run(
            lambda steps: send(Steps(steps, total * steps / (len(batch) * batch[0].steps))),
            Checkpoint(checkpoint_path(batch, self.checkpoints), send, checkpoint_key(made, self.device)),
        )
        send(Finished(records, made))


def checkpoint_path(batch: Batch, folder: Path) -> Path:
    """The checkpoint of a batch: the same for the same runs."""
    ids = " ".join(sorted(run.id for run in batch))
    return folder / f"{hashlib.sha256(ids.encode()).hexdigest()[:12]}.pt"


def checkpoint_key(made: Mapping[str, str], device: str) -> str:
    """What a run that continues has to share with the one that was interrupted, for the same numbers."""
    return f"torch {made['torch_version']}, {device.partition(':')[0]}, data {made['data'] or 'none'}"


def _data_fingerprint(run: Run) -> str:
    """The fingerprint of the data files of a run; empty if its problem needs none."""
    problem = None if is_control(run) else problems.load(run.problem)
    return problem.fingerprint() if isinstance(problem, ImageProblem) else ""
