"""Drivers that are killed at each stage of a commit, and two at once on one store.

A program: ``python killed_driver.py FOLDER kill_at_every_stage`` forks a driver for each stage. The driver works on its
own store in the folder, and kills itself with SIGKILL when it comes to that stage of its second commit.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from sweep_samples import batches, finish, small_runs

from unstale_lab import checkpoint, files, problems
from unstale_lab.engine import batch as batch_module
from unstale_lab.engine import engines
from unstale_lab.store import Store

RUNS = small_runs()
TWO_DRIVERS = "two drivers"
WITH_CHECKPOINT = "before the checkpoint is removed"


def killed_at(module: object, name: str, when: str, count: int = 2) -> Callable[[], None]:
    """Replaces a function by one that kills this process before or after its ``count``-th call."""

    def patch() -> None:
        function, calls = getattr(module, name), []

        def die_at(*args, **kwargs):
            calls.append(name)
            if when == "before" and len(calls) == count:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*args, **kwargs)
            if when == "after" and len(calls) == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(module, name, die_at)

    return patch


def killed_while_writing() -> None:
    """Writes half of the second file, and kills this process."""
    write, calls = files.atomic_write, []

    def half(path, *, overwrite=True):
        calls.append(path)
        if len(calls) == 2:
            temporary = files._temporary(path)
            temporary.write_bytes(b"PAR1 and half of the rest")
            os.kill(os.getpid(), signal.SIGKILL)
        return write(path, overwrite=overwrite)

    files.atomic_write = half


def killed_with_a_checkpoint() -> None:
    """Kills this process when it removes the checkpoint of the second batch; every batch has one."""
    checkpoint.INTERVAL = -1.0
    killed_at(engines, "checkpoint_path", "before")()


# A commit syncs the file, then links it, then syncs the directory, then removes the temporary name.
STAGES = {
    "before the commit": killed_at(Store, "add", "before"),
    "before the temporary file": killed_at(files, "_temporary", "before"),
    "in the middle of the temporary file": killed_while_writing,
    "before the file is synced": killed_at(os, "fsync", "before", 3),
    "after the file is synced": killed_at(os, "fsync", "after", 3),
    "before the file has its name": killed_at(files, "_link", "before"),
    "after the file has its name": killed_at(files, "_link", "after"),
    "before the directory is synced": killed_at(files, "_sync_directory", "before"),
    "after the directory is synced": killed_at(files, "_sync_directory", "after"),
    "after the commit": killed_at(Store, "add", "after"),
    WITH_CHECKPOINT: killed_with_a_checkpoint,
}


def fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def kill_at_every_stage(folder: Path) -> None:
    for stage, patch in STAGES.items():
        _, status = os.waitpid(fork(lambda: (patch(), finish(RUNS, folder / stage))), 0)  # noqa: B023  it has ended
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(f"the driver was not killed {stage}: status {status}")


def two_at_once(folder: Path) -> None:
    drivers = [fork(lambda: finish(RUNS, folder / TWO_DRIVERS)) for _ in range(2)]
    if any(os.waitpid(driver, 0)[1] for driver in drivers):
        sys.exit("two drivers on one store: one failed")


if __name__ == "__main__":
    batch_module.provenance("cpu")  # these are done once, for all
    for batch in batches(RUNS):
        problems.load(batch[0].problem)
    {work.__name__: work for work in (kill_at_every_stage, two_at_once)}[sys.argv[2]](Path(sys.argv[1]))
