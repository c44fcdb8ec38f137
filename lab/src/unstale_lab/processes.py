"""Tasks in worker processes: the standard executor, with messages, and errors that name their cause."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from .errors import WorkerError, one_line

Send = Callable[[Any], None]
Handler = Callable[[Any, Send], None]  # handles one task, and may send messages to the main process
POLL_INTERVAL = 0.1  # seconds between two looks for messages


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
    messages, sender = context.Pipe(duplex=False)
    # Only this process has the other end. When it closes, for whatever reason, the workers exit.
    lifeline, held = context.Pipe(duplex=False)
    shared = (pickle.dumps(make_handler), sender, context.Lock(), lifeline)
    executor = ProcessPoolExecutor(jobs, context, _start_worker, shared)
    try:
        with _ignore_sigint():  # Ctrl-C reaches all processes of a terminal; only this one handles it
            # Plain pickle: that of torch.multiprocessing would share the memory of a GPU instead of copying it.
            futures = {executor.submit(_handle, pickle.dumps(task)) for task in tasks}
        sender.close()  # all workers have theirs, so that a message cut off by a kill ends, rather than blocks
        _follow(futures, messages, receive)
    except BrokenProcessPool:
        raise WorkerError(
            "a worker process was killed or exited early, perhaps for lack of memory. "
            "Run the command again, with fewer processes if it repeats."
        ) from None
    except BaseException:
        held.close()  # workers may be in the middle of long tasks
        raise
    finally:
        executor.shutdown(cancel_futures=True)
        for end in (messages, sender, lifeline, held):
            end.close()


def usable_cores() -> int:
    """The number of cores of this process. A container or a scheduler may allow fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _ignore_sigint() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _follow(unfinished: set[Future[None]], messages: Connection, receive: Send) -> None:
    """Receives messages until all tasks are done or one has failed."""
    while unfinished:
        done, unfinished = wait(unfinished, POLL_INTERVAL, FIRST_COMPLETED)
        for message in _arrived(messages):  # a task sends its messages before it is done
            receive(pickle.loads(message))
        for future in done:
            future.result()


def _arrived(messages: Connection) -> Iterator[bytes]:
    """The messages that can be read now."""
    while messages.poll():
        try:
            message = messages.recv_bytes()
        except (EOFError, OSError):  # all workers have exited, because one was killed
            raise BrokenProcessPool from None
        yield message


# What a worker process keeps from one task to the next.
_make_handler: bytes
_handler: Handler | None = None
_sender: Connection
_lock: Any


def _start_worker(make_handler: bytes, sender: Connection, lock: Any, lifeline: Connection) -> None:
    global _make_handler, _sender, _lock
    _make_handler, _sender, _lock = make_handler, sender, lock
    threading.Thread(target=_exit_with_parent, args=(lifeline,), daemon=True).start()


def _handle(task: bytes) -> None:
    global _handler
    try:
        if _handler is None:
            _handler = pickle.loads(_make_handler)()
        _handler(pickle.loads(task), _send)
    except BaseException as error:
        raise portable(error) from None


def _send(message: Any) -> None:
    content = pickle.dumps(message)
    with _lock:
        _sender.send_bytes(content)


def portable(error: BaseException) -> Exception:
    """The error with its traceback as a note; a ``RuntimeError`` with its text if it cannot be pickled."""
    note = "".join(["In a worker process:\n", *traceback.format_exception(error)])
    try:
        copy = pickle.loads(pickle.dumps(error))
        if not isinstance(copy, Exception):
            raise TypeError
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {one_line(error)}")
    copy.add_note(note)
    return copy


def _exit_with_parent(lifeline: Connection) -> None:
    """Ends this process when its parent ends or gives up. A killed parent cannot tell its workers to stop."""
    lifeline.poll(None)
    os._exit(1)
