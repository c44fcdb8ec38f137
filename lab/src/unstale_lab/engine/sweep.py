"""A sweep: whatever of it is not in the store yet is run, batch by batch, in as many processes as asked for."""

from __future__ import annotations

import hashlib
import multiprocessing
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .. import problems
from ..checkpoint import Checkpoint
from ..experiment import Run
from ..problems.base import PictureProblem
from ..processes import end_with_parent
from ..provenance import provenance
from ..store import Store
from .control_training import ControlTraining as Control
from .control_training import is_control
from .plan import cost, plan
from .training import Training

Progress = Callable[[int, int, float], None]  # runs finished, steps made, what they cost


class SweepError(RuntimeError):
    """The sweep cannot go on; the message is one line, and what was finished is in the store."""


def device_words(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"


def check_device(device: str) -> str:
    """The device as torch spells it; a ``SweepError`` where there is none such."""
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise SweepError(f"unknown device {device!r}: choose cpu or cuda")
    if kind == "cuda" and not torch.cuda.is_available():
        raise SweepError("no GPU was found: choose --device cpu, or install a build of torch with CUDA")
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise SweepError(
            f"there is no GPU {index}: they are numbered from 0, and there are {torch.cuda.device_count()}"
        )
    return device


def missing(runs: Sequence[Run], store: Store, device: str) -> list[list[Run]]:
    """The batches still to be run, without the runs that the store has."""
    have = store.ids()
    batches = ([run for run in batch if run.id not in have] for batch in plan(runs, device))
    return [batch for batch in batches if batch]


def run_batches(batches: Sequence[Sequence[Run]], store: Store, device: str, jobs: int, progress: Progress) -> None:
    """Run every batch and put it into the store as soon as it is finished."""
    jobs = min(jobs, len(batches))
    if jobs <= 1:
        made = prepare(device)
        for batch in batches:
            _run_batch(batch, store, device, made, progress)
        return
    context = multiprocessing.get_context("spawn")
    tasks, news = context.Queue(), context.Queue()
    for batch in batches:
        tasks.put(batch)
    for _ in range(jobs):
        tasks.put(None)
    workers = [context.Process(target=_work, args=(tasks, news, store.path, device), daemon=True) for _ in range(jobs)]
    try:
        with _deaf_to_interrupts():  # Ctrl-C reaches all of a terminal's processes; workers leave it to this one
            for worker in workers:
                worker.start()
        _follow(workers, news, progress)
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.kill()
                worker.join()


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _follow(workers: Sequence[Any], news: Any, progress: Progress) -> None:
    """Pass on what the workers tell, until all have finished or one has failed."""
    while True:
        gone = [worker for worker in workers if not worker.is_alive()]
        try:
            told = news.get(timeout=0.2)
        except queue.Empty:
            failed = [worker.exitcode for worker in gone if worker.exitcode]
            if failed:
                raise SweepError(f"a worker process was stopped from outside (exit code {failed[0]})") from None
            if len(gone) == len(workers):
                return
            continue
        if isinstance(told, Exception):
            raise told
        progress(*told)


def _work(tasks: Any, news: Any, path: Any, device: str) -> None:
    """A worker: takes batches until there are none. It does not outlive the process that started it."""
    end_with_parent()
    try:
        made = prepare(device)
        store = Store(path)
        while (batch := tasks.get()) is not None:
            _run_batch(batch, store, device, made, lambda *told: news.put(told))
    except Exception as error:
        news.put(error)


def prepare(device: str) -> dict[str, str]:
    """One thread a process: numbers then do not depend on how many cores there are. Returns where runs are made, asked
    now: the checkout may move on while they run."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # diverging runs are full of them, and they are slow
    return provenance(device_words(device))


def _run_batch(batch: Sequence[Run], store: Store, device: str, made: dict[str, str], progress: Progress) -> None:
    whole = sum(cost(run) for run in batch)
    trainer = Control(batch[0], device) if is_control(batch[0]) else Training(batch, device)
    checkpoint = _checkpoint(batch, store)
    records = trainer.run(lambda steps: progress(0, steps, whole * steps / (len(batch) * batch[0].steps)), checkpoint)
    store.add(records, made | {"data": _data(batch[0])})
    checkpoint.remove()
    progress(len(batch), 0, 0.0)


def _data(run: Run) -> str:
    """What tells the data that a run learned from apart from other data of the same name."""
    problem = None if is_control(run) else problems.load(run.problem)
    return problem.fingerprint() if isinstance(problem, PictureProblem) else ""


def _checkpoint(batch: Sequence[Run], store: Store) -> Checkpoint:
    """Where a batch under way is kept. The underscore hides it from tools that read all of a folder."""
    ids = " ".join(sorted(run.id for run in batch))
    return Checkpoint(store.path / "_partial" / f"{hashlib.sha256(ids.encode()).hexdigest()[:12]}.pt")
