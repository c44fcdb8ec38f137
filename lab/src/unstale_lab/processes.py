"""Processes that work for another."""

from __future__ import annotations

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Called by a worker, which then does not outlive the process that started it. A parent that is killed cannot tell,
    and a worker that waits for more to do would wait forever."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()  # returns at once if it is dead already
    os._exit(1)
