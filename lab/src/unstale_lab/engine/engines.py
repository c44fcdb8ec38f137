"""Engines compute batches of runs: in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from ..processes import run_tasks
from .batch import Batch, BatchRunner, Finished, Message, Receive, checkpoint_path


class Engine(Protocol):
    """Computes batches, somewhere. It knows nothing of the store."""

    def run(self, batches: Sequence[Batch], receive: Receive) -> None:
        """Computes every batch, and returns when all are finished.

        Args:
            receive: called in this process with steps, warnings, and the results of each batch, once.
        """


class LocalEngine:
    """Computes batches in ``jobs`` processes of this machine.

    Args:
        checkpoints: the folder of checkpoints of batches in progress.
    """

    def __init__(self, device: str, jobs: int, checkpoints: Path) -> None:
        self.device, self.jobs, self.checkpoints = device, jobs, checkpoints

    def run(self, batches: Sequence[Batch], receive: Receive) -> None:
        """Computes every batch. A batch whose results were received needs no checkpoint any more."""

        def receive_and_clean(message: Message) -> None:
            receive(message)
            if isinstance(message, Finished):
                batch = [record.run for record in message.records]
                checkpoint_path(batch, self.checkpoints).unlink(missing_ok=True)

        run_tasks(partial(BatchRunner, self.device, self.checkpoints), batches, self.jobs, receive_and_clean)
