"""The pool of worker processes: every task is done, or there is an error."""

from __future__ import annotations

import os

import pytest
from process_samples import MakeHandler

from unstale_lab.errors import StoreError, WorkerError
from unstale_lab.processes import run_tasks


@pytest.mark.parametrize("jobs", [1, 2, 9])
def test_every_task_is_handled_once(jobs):
    received = []
    run_tasks(MakeHandler(), range(6), jobs, received.append)
    assert sorted(message for message in received if isinstance(message, int)) == [n**2 for n in range(6)]
    started = [message for message in received if isinstance(message, tuple)]
    assert sorted(task for _, task in started) == list(range(6))
    assert (jobs == 1) == ({pid for pid, _ in started} == {os.getpid()})


def test_no_tasks():
    run_tasks(MakeHandler(), [], 4, pytest.fail)


@pytest.mark.parametrize(
    "action, error, message",
    [
        ("raise not picklable", RuntimeError, "NotPicklableError: number 3"),
        ("raise not unpicklable", RuntimeError, "NotUnpicklableError: number 3: of course"),
        ("raise a known error", StoreError, "the disk is full"),
        ("send not picklable", Exception, "pickle"),
        ("exit", RuntimeError, "SystemExit: 0"),
        ("exit at once", WorkerError, "a worker process was killed or exited early"),
        ("die", WorkerError, "a worker process was killed or exited early"),
        ("die in a message", WorkerError, "a worker process was killed or exited early"),
    ],
)
def test_a_task_that_fails_is_an_error(action, error, message):
    with pytest.raises(error, match=message) as caught:
        run_tasks(MakeHandler(action), range(5), 2, lambda message: None)
    if error is not WorkerError:
        (note,) = caught.value.__notes__
        assert "In a worker process" in note and "process_samples.py" in note


def test_an_error_of_the_receiver_ends_the_workers():
    with pytest.raises(ZeroDivisionError):
        run_tasks(MakeHandler(), range(5), 2, lambda message: 1 / 0)
