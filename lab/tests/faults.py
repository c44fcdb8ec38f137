"""Faults of sweeps, tried on real processes and files, and what they do to the results.

Every function here makes a fault happen, continues as a user would, and compares the final results with those of a
sweep left alone. ``tools/fault_table.py`` makes a table of them.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import killed_driver
import torch
from atari_samples import recording
from loopback_cluster import LoopbackCluster
from sweep_samples import batches, finish, small_runs, table

from unstale_lab import files
from unstale_lab.atari.tape import Tape
from unstale_lab.checkpoint import Checkpoint
from unstale_lab.engine import ray_engine
from unstale_lab.engine.batch import Batch, Finished, Message, Receive, checkpoint_path
from unstale_lab.engine.ray_engine import RayEngine
from unstale_lab.engine.sweep import make_engine, missing, run_batches
from unstale_lab.errors import DataError, StoreError, WorkerError
from unstale_lab.experiment import Run
from unstale_lab.store import Store

RUNS = small_runs()
DAY = 24 * 60 * 60.0
Event = Callable[[], object]


@dataclass
class Outcome:
    """How often a fault was tried, and what became of the runs."""

    tried: int = 0
    lost: int = 0  # runs that are absent in the end
    doubled: int = 0  # runs that are there more than once
    silent: int = 0  # runs with other numbers, and damage that nobody reported

    def count(self, path: Path, undisturbed: dict[str, str], reported: bool = True) -> None:
        """Adds one try, by the store that it led to."""
        rows, number = table(path)
        self.tried += 1
        self.lost += len(undisturbed.keys() - rows.keys())
        self.doubled += number - len(rows)
        self.silent += sum(rows[id] != undisturbed[id] for id in rows) + (not reported)


def driver_killed(folder: Path, undisturbed: dict[str, str]) -> Outcome:
    """The driver is killed at each stage of a commit."""
    run_drivers(folder, killed_driver.kill_at_every_stage)
    outcome = Outcome()
    for stage in killed_driver.STAGES:
        assert len(table(folder / stage)[0]) < len(undisturbed)  # it was in the middle
        assert stage != killed_driver.WITH_CHECKPOINT or list(folder.glob(f"{stage}/_partial/*.pt"))
        finish(RUNS, folder / stage)
        outcome.count(folder / stage, undisturbed)
    return outcome


def two_drivers(folder: Path, undisturbed: dict[str, str]) -> Outcome:
    """Two drivers work on one store at the same time."""
    run_drivers(folder, killed_driver.two_at_once)
    outcome = Outcome()
    outcome.count(folder / killed_driver.TWO_DRIVERS, undisturbed)
    return outcome


def run_drivers(folder: Path, work: Callable[[Path], None]) -> None:
    """Calls a function of ``killed_driver`` in a new process, which it may fork."""
    program = [sys.executable, killed_driver.__file__, str(folder), work.__name__]
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    subprocess.run(program, check=True, env={**os.environ, "PYTHONPATH": path})


def overlapping_drivers(folder: Path, undisturbed: dict[str, str]) -> Outcome:
    """Two drivers have overlapping requests, and different batches. One begins and ends while the other runs."""
    path, outcome = folder / "store", Outcome()
    waiting = [batches(RUNS[1:6])]  # the first and the last batch are halves of those of RUNS
    engine = make_engine("local", "cpu", 1, path)

    def another_driver(finished_runs: int, steps: int, cost: float) -> None:
        if finished_runs and waiting:
            run_batches(waiting.pop(), Store(path), engine, lambda *news: None)

    run_batches(batches(RUNS), Store(path), engine, another_driver)
    torch.set_flush_denormal(False)
    outcome.count(path, undisturbed)
    return outcome


def worker_killed(folder: Path, undisturbed: dict[str, str]) -> Outcome:
    """A worker process of the local engine is killed when the first batch is finished."""
    store, alive = Store(folder / "store"), []

    def kill_one(finished_runs: int, steps: int, cost: float) -> None:
        if finished_runs and not alive:
            alive.extend(multiprocessing.active_children())
            alive[0].kill()

    try:
        run_batches(batches(RUNS), store, make_engine("local", "cpu", 2, store.path), kill_one)
        reported = False
    except WorkerError:
        reported = True
    finish(RUNS, store.path)
    outcome = Outcome()
    outcome.count(store.path, undisturbed, reported)
    return outcome


@contextmanager
def full_disk(stage: str) -> Iterator[None]:
    """A disk that has no space left at that stage of a commit."""

    open_file = Path.open

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open_or_fail(path: Path, mode: str = "r", *args: object, **kwargs: object) -> object:
        return fail() if "x" in mode else open_file(path, mode, *args, **kwargs)

    def open_result(path: Path, mode: str = "r", *args: object, **kwargs: object) -> object:
        return fail() if "x" in mode and ".pt." in path.name else open_file(path, mode, *args, **kwargs)

    module, name, function = {
        "open": (Path, "open", open_or_fail),
        "checkpoint": (Path, "open", open_result),
        "write": (os, "fsync", fail),  # buffered writes fail at the latest then
        "name": (os, "link", fail),
    }[stage]
    with patch.object(module, name, function):
        yield


def disk_full(folder: Path, undisturbed: dict[str, str]) -> Outcome:
    """The disk is full when a file is created, when it is written, and when it gets its name.

    Also when there is no space for checkpoints, although there is for results: then no second command is needed.
    """
    outcome = Outcome()
    for stage in ("open", "write", "name"):
        path = folder / stage
        finish(RUNS[:2], path)
        reported = False
        with full_disk(stage):
            try:
                finish(RUNS, path)
            except StoreError as error:
                reported = "No space left" in str(error)
        finish(RUNS, path)
        outcome.count(path, undisturbed, reported and not list(path.glob(".*")))
    warnings: list[str] = []
    with full_disk("checkpoint"), patch("unstale_lab.checkpoint.INTERVAL", -1.0):
        finish(RUNS, folder / "checkpoint", warnings.append)
    outcome.count(folder / "checkpoint", undisturbed, any("No space left" in warning for warning in warnings))
    return outcome


def damaged(content: bytes, number: int) -> bytes:
    """The content, cut off (even numbers) or with one flipped bit (odd numbers), elsewhere for every number."""
    at = random.Random(number).randrange(len(content))
    if number % 2 == 0:
        return content[:at]
    return content[:at] + bytes([content[at] ^ 1 << number // 2 % 8]) + content[at + 1 :]


def store_damaged(folder: Path, undisturbed: dict[str, str], tries: int = 20) -> Outcome:
    """A file of the store is cut, or one of its bits is flipped."""
    outcome, path = Outcome(), folder / "store"
    finish(RUNS, path)
    for number in range(tries):
        victim = sorted(path.glob("batch-*.parquet"))[number % 4]
        victim.write_bytes(damaged(victim.read_bytes(), number))
        warnings: list[str] = []
        finish(RUNS, path, warnings.append)
        outcome.count(path, undisturbed, any("is damaged" in warning for warning in warnings))
    return outcome


def checkpoint_damaged(folder: Path, undisturbed: dict[str, str], tries: int = 20) -> Outcome:
    """The checkpoint of a batch in progress is cut, or one of its bits is flipped."""
    outcome, path, runs = Outcome(), folder / "store", batches(RUNS)[0]
    engine = make_engine("local", "cpu", 1, path)

    def interrupt(finished_runs: int, steps: int, cost: float) -> None:
        if checkpoint.exists():
            raise KeyboardInterrupt

    checkpoint = checkpoint_path(runs, path / "_partial")
    with patch("unstale_lab.checkpoint.INTERVAL", -1.0):
        try:
            run_batches([runs], Store(path), engine, interrupt)
        except KeyboardInterrupt:
            content = checkpoint.read_bytes()
    for number in range(tries):
        where = folder / str(number)
        file = checkpoint_path(runs, where / "_partial")
        file.parent.mkdir(parents=True)
        file.write_bytes(damaged(content, number))
        warnings: list[str] = []
        finish(runs, where, warnings.append)
        of_batch = {run.id: undisturbed[run.id] for run in runs}
        outcome.count(where, of_batch, any("cannot use the checkpoint" in warning for warning in warnings))
    assert Checkpoint(path=file).load("cpu") is None
    torch.set_flush_denormal(False)
    return outcome


def recording_damaged(folder: Path, undisturbed: dict[str, str], tries: int = 60) -> Outcome:
    """A recording is cut, or one of its bits is flipped."""
    outcome, path = Outcome(), folder / "recording.tape"
    recording().save(path)
    assert Tape.load(path).fingerprint() == recording().fingerprint()
    content = path.read_bytes()
    for number in range(tries):
        path.write_bytes(damaged(content, number))
        outcome.tried += 1
        try:
            Tape.load(path)
            outcome.silent += 1
        except DataError:
            pass
    return outcome


@contextmanager
def in_the_middle_of_a_commit(event: Event) -> Iterator[None]:
    """Makes an event happen when a temporary file is complete, but has no name yet; once."""
    link, waiting = os.link, [event]

    def link_later(source: Path, target: Path) -> None:
        if waiting:
            waiting.pop()()
        link(source, target)

    with patch("os.link", link_later):
        yield


def clock_jumps(folder: Path, undisturbed: dict[str, str]) -> Outcome:
    """The clock of the system jumps at every reading, by up to a year, back or forth.

    Meanwhile another driver, whose clock is right, is in the middle of a commit.
    """
    outcome = Outcome()
    for seed in range(3):
        numbers, now, path = random.Random(seed), time.time, folder / str(seed)

        def three_commands(numbers: random.Random = numbers, now: Event = now, path: Path = path) -> None:
            with patch("time.time", lambda: now() + numbers.uniform(-365, 365) * DAY):
                for count in (2, 4, 6):
                    finish(RUNS[:count], path)

        with in_the_middle_of_a_commit(three_commands):
            finish(RUNS, path)
        outcome.count(path, undisturbed)
    return outcome


def old_temporary_is_not_a_result(folder: Path, undisturbed: dict[str, str]) -> Outcome:
    """The clock jumps forward while another driver writes: its temporary file is removed as if it were old."""
    outcome, path, tomorrow = Outcome(), folder / "store", time.time() + 2 * DAY

    def remove() -> None:
        with patch("time.time", lambda: tomorrow):
            files.remove_stale_temporaries(path)
        assert not list(path.glob(".*.tmp"))

    with in_the_middle_of_a_commit(remove):
        finish(RUNS, path)
    outcome.count(path, undisturbed)
    return outcome


# Ray: on a cluster of two nodes.

FATAL_SIGNALS = {1: signal.SIGKILL, 2: signal.SIGTERM}  # by the index of the batch


def die_in_the_middle(index: int, batch: Sequence[Run], *rest: Any) -> object:
    """The task of the Ray engine, but the first workers of two batches end at their first measurement.

    One is killed, the other is asked to stop, as by ``ray stop`` on its node.
    """

    class Deadly(ray_engine._Reporter):
        def __call__(self, message: Message) -> None:
            marker = ray_engine.scratch_folder() / f"killed-{index}"
            if index in FATAL_SIGNALS and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), FATAL_SIGNALS[index])
            super().__call__(message)

    ray_engine._Reporter = Deadly
    return compute(index, batch, *rest)


def save_checkpoints(index: int, batch: Sequence[Run], *rest: Any) -> object:
    """The task of the Ray engine, but every batch has a checkpoint."""
    with patch("unstale_lab.checkpoint.INTERVAL", -1.0):
        return compute(index, batch, *rest)


def fail_while_another_runs(index: int, batch: Sequence[Run], *rest: Any) -> object:
    """The task of the Ray engine, but the first fails when the driver knows of the second, which outlasts it."""

    class Waiting(ray_engine._Reporter):
        def __call__(self, message: Message) -> None:
            super().__call__(message)
            while not (ray_engine.scratch_folder() / "failed").exists():
                time.sleep(0.01)

    ray_engine.REPORT_INTERVAL = -1.0
    if index == 0:
        while not (ray_engine.scratch_folder() / "begun").exists():
            time.sleep(0.01)
        raise DataError("the first batch failed")
    ray_engine._Reporter = Waiting
    return compute(index, batch, *rest)


def hang_on_the_second_node(index: int, batch: Sequence[Run], *rest: Any) -> object:
    """The task of the Ray engine, but on any node except the head it waits until it is killed.

    The head leaves batches to the other node until that has one.
    """
    import ray

    hangs = ray_engine.scratch_folder() / "hangs"
    if not ray.util.get_node_ip_address().endswith(".2"):
        hangs.touch()
        signal.pause()
    while index and not hangs.exists():
        time.sleep(0.01)
    return compute(index, batch, *rest)


compute = ray_engine._compute


def ray_sweep(
    cluster: LoopbackCluster, path: Path, task: object = compute, fault: Event = lambda: None
) -> list[Message]:
    """A sweep on the cluster, with an event when the first batch is finished; all messages that were received."""
    messages: list[Message] = []

    class Recorded(RayEngine):
        def run(self, batches: Sequence[Batch], receive: Receive) -> None:
            def record(message: Message) -> None:
                receive(message)
                messages.append(message)
                if isinstance(message, Finished) and sum(isinstance(m, Finished) for m in messages) == 1:
                    fault()

            super().run(batches, record)

    scratch = path / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    with patch.dict(os.environ, {"UNSTALE_SCRATCH": str(scratch)}), patch.object(ray_engine, "_compute", task):
        store = Store(path)
        left = missing(RUNS, store, "cpu")
        run_batches(left, store, Recorded("cpu", address=cluster.address), lambda *news: None)
    return messages


def ray_worker_killed(cluster: LoopbackCluster, path: Path) -> list[Message]:
    """A Ray worker is killed in the middle of a batch, and another is asked to stop."""
    messages = ray_sweep(cluster, path, die_in_the_middle, lambda: None)
    assert all((path / "scratch" / f"killed-{index}").exists() for index in FATAL_SIGNALS)
    return messages


def ray_node_killed(cluster: LoopbackCluster, path: Path) -> list[Message]:
    """A whole node is killed while it computes a batch."""

    def kill() -> None:
        while not (path / "scratch" / "hangs").exists():
            time.sleep(0.01)
        cluster.kill(len(cluster.nodes) - 1)

    return ray_sweep(cluster, path, hang_on_the_second_node, kill)


def wait_for_another_driver(index: int, batch: Sequence[Run], *rest: Any) -> object:
    """The task of the Ray engine, but every batch except the first waits until another driver has taken over."""
    while index and not (ray_engine.scratch_folder() / "another driver").exists():
        time.sleep(0.01)
    return compute(index, batch, *rest)


DRIVER = "import faults, pathlib, sys; faults.drive(sys.argv[1], pathlib.Path(sys.argv[2]))"


def drive(address: str, path: Path) -> None:
    """A sweep that stops after its first batch, until its process is killed."""
    os.environ["UNSTALE_SCRATCH"] = str(path / "scratch")
    with patch.object(ray_engine, "_compute", wait_for_another_driver):
        run_batches(batches(RUNS), Store(path), RayEngine("cpu", address=address), lambda *news: None)


def ray_driver_killed(cluster: LoopbackCluster, path: Path) -> list[Message]:
    """The driver is killed while its tasks run, and another finishes the sweep."""
    (path / "scratch").mkdir(parents=True)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, cluster.address, str(path)], env=cluster.environment)
    try:
        while not list(path.glob("batch-*.parquet")) and driver.poll() is None:
            time.sleep(0.01)
    finally:
        driver.kill()
    assert driver.wait() == -signal.SIGKILL
    (path / "scratch" / "another driver").touch()
    return ray_sweep(cluster, path, wait_for_another_driver)


def running_tasks(cluster: LoopbackCluster) -> list[int]:
    """The processes of the cluster that compute a batch now."""
    found = []
    for process in (process for node in range(len(cluster.nodes)) for process in cluster.processes(node)):
        with suppress(OSError):
            if "ray::_compute" in Path(f"/proc/{process}/cmdline").read_text(errors="replace"):
                found.append(process)
    return found
