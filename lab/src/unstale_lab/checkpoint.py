"""A long training kept on disk while it goes on, so that one that is killed loses minutes and not hours."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import torch

import unstale

EVERY = 120.0  # seconds


class Checkpoint:
    """One file, which appears whole or not at all. One that cannot be read, or is another version's, counts as none:
    the work is done again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._saved = time.monotonic()

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._saved > EVERY

    def save(self, state: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(f".{os.getpid()}.unfinished")  # another process may be at the same work
        torch.save({"version": unstale.__version__, "state": state}, unfinished)
        unfinished.replace(self.path)
        self._saved = time.monotonic()

    def load(self, device: str) -> dict[str, Any] | None:
        """What was saved, on that device, or nothing."""
        try:
            found = torch.load(self.path, map_location=device, weights_only=True)
            return found["state"] if found["version"] == unstale.__version__ else None
        except (OSError, EOFError, RuntimeError, AttributeError, KeyError, TypeError, pickle.UnpicklingError):
            return None

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
