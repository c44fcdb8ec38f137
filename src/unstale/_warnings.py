"""Warnings that point at the user's own line of code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

_PACKAGE = str(Path(__file__).parent)
_TORCH = str(Path(sys.modules["torch"].__file__ or "").parent) if "torch" in sys.modules else _PACKAGE


def user_stacklevel() -> int:
    """The ``stacklevel`` with which a warning of the caller names the line that called this library.

    Frames of the library and of torch (whose optimizers wrap ``step``) are passed over.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, _TORCH)):
        frame = frame.f_back
        level += 1
    return level


def warn_once(warned: set[str], topic: str, warn: Callable[[], None]) -> None:
    """Call ``warn`` unless the topic is among those that were ``warned`` about, to which it is added."""
    if topic not in warned:
        warned.add(topic)
        warn()
