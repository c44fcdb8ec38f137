"""Handlers of tasks. In a module of their own: worker processes must be able to import them."""

from __future__ import annotations

import os
import signal
import struct

from unstale_lab import processes
from unstale_lab.errors import StoreError


class NotPicklableError(Exception):
    def __init__(self, number):
        super().__init__(f"number {number}")
        self.callback = lambda: number


class NotUnpicklableError(Exception):
    def __init__(self, number, reason):
        super().__init__(f"number {number}: {reason}")


def raise_(error):
    raise error


def die_in_a_message(task, send):
    """Announces a message of 1 MB, sends 100 bytes of it, and is killed."""
    with processes._lock:
        os.write(processes._sender.fileno(), struct.pack("!i", 1_000_000) + b"x" * 100)
        os.kill(os.getpid(), signal.SIGKILL)


ACTIONS = {
    "square": lambda task, send: send(task**2),
    "raise not picklable": lambda task, send: raise_(NotPicklableError(task)),
    "raise not unpicklable": lambda task, send: raise_(NotUnpicklableError(task, "of course")),
    "raise a known error": lambda task, send: raise_(StoreError("the disk is full")),
    "send not picklable": lambda task, send: send(lambda: task),
    "exit": lambda task, send: raise_(SystemExit(0)),
    "exit at once": lambda task, send: os._exit(0),
    "die in a message": die_in_a_message,
    "die": lambda task, send: os.kill(os.getpid(), signal.SIGKILL),
}


class Handler:
    def __init__(self, action):
        self.action = action

    def __call__(self, task, send):
        send((os.getpid(), task))
        ACTIONS[self.action if task == 3 else "square"](task, send)


class MakeHandler:
    def __init__(self, action="square"):
        self.action = action

    def __call__(self):
        return Handler(self.action)
