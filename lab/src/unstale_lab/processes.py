"""A pool of worker processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from .errors import WorkerError, one_line

Send = Callable[[Any], None]
Handler = Callable[[Any, Send], None]  # handles one task, and may send messages to the main process
_MESSAGE, _DONE, _FAILED, _FINISHED = range(4)


def run_tasks(make_handler: Callable[[], Handler], tasks: Sequence[Any], jobs: int, receive: Send) -> None:
    """Handles every task, in up to ``jobs`` processes, and returns when all are done.

    With one job, or one task, everything happens in this process. Otherwise ``make_handler``, tasks and messages are
    pickled. No worker outlives this call, nor a killed main process.

    Args:
        make_handler: called once per process.
        receive: called in this process with every message of a handler.

    Raises:
        WorkerError: a worker was killed, or exited early.
        Exception: whatever a handler raised, with the traceback of the worker as a note.
    """
    jobs = min(jobs, len(tasks))
    if jobs <= 1:
        handle = make_handler()
        for task in tasks:
            handle(task, receive)
        return
    context = multiprocessing.get_context("spawn")
    pending, outcomes = context.Queue(), context.Queue()
    pending.cancel_join_thread()  # tasks that nobody handles do not keep this process alive
    # Plain pickle: that of torch.multiprocessing would share the memory of a GPU instead of copying it.
    for task in tasks:
        pending.put(pickle.dumps(task))
    for _ in range(jobs):
        pending.put(None)
    arguments = (pickle.dumps(make_handler), pending, outcomes)
    workers = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(jobs)]
    try:
        with _ignore_sigint():  # Ctrl-C reaches all processes of a terminal; only this one handles it
            for worker in workers:
                worker.start()
        _follow(workers, outcomes, len(tasks), receive)
        for worker in workers:
            worker.join()
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.kill()
                worker.join()


@contextmanager
def _ignore_sigint() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _follow(workers: Sequence[Any], outcomes: Any, unfinished: int, receive: Send) -> None:
    """Receives messages until all tasks are done or one has failed."""
    finished: set[int] = set()  # workers that said that they are done
    while unfinished:
        exited = [worker for worker in workers if not worker.is_alive()]
        try:
            kind, value = pickle.loads(outcomes.get(timeout=0.2))
        except queue.Empty:
            killed = [worker.exitcode for worker in exited if worker.exitcode]
            if killed:
                raise WorkerError(
                    f"a worker process was killed (exit code {killed[0]}), perhaps for lack of memory. "
                    "Run the command again, with fewer processes if it repeats."
                ) from None
            # One that exits in the middle may hold the lock of the queue: the others could wait for it forever.
            if any(worker.pid not in finished for worker in exited):
                raise WorkerError(
                    f"worker processes exited with {unfinished} tasks left. Run the command again."
                ) from None
            continue
        if kind == _FAILED:
            raise value
        if kind == _DONE:
            unfinished -= 1
        elif kind == _FINISHED:
            finished.add(value)
        else:
            receive(value)


def _work(make_handler: bytes, pending: Any, outcomes: Any) -> None:
    """The main function of a worker: handles tasks until there are none."""
    _exit_with_parent()

    def send(kind: int, value: Any) -> None:
        # Pickled here: the thread of the queue would drop what cannot be pickled.
        outcomes.put(pickle.dumps((kind, value)))

    try:
        handle = pickle.loads(make_handler)()
        while (task := pending.get()) is not None:
            handle(pickle.loads(task), partial(send, _MESSAGE))
            send(_DONE, None)
        send(_FINISHED, os.getpid())
    except BaseException as error:
        send(_FAILED, _portable(error))


def _portable(error: BaseException) -> BaseException:
    """The error, or a ``RuntimeError`` with its text if it cannot be pickled and unpickled."""
    note = "".join(["In a worker process:\n", *traceback.format_exception(error)])
    try:
        copy = pickle.loads(pickle.dumps(error))
        if not isinstance(copy, Exception):
            raise TypeError
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {one_line(error)}")
    copy.add_note(note)
    return copy


def _exit_with_parent() -> None:
    """Ends this process when its parent ends. A killed parent cannot tell its workers to stop."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()  # returns at once if the parent has already ended
    os._exit(1)
