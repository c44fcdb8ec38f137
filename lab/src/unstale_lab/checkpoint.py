"""Checkpoints of training runs in progress: a killed process loses minutes of work, not hours."""

from __future__ import annotations

import hashlib
import io
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import unstale

from .errors import one_line
from .files import write_file
from .versions import RESULTS_VERSION

INTERVAL = 120.0  # seconds between checkpoints
FORMAT = "unstale-lab checkpoint 1"


class Checkpoint:
    """One file, written atomically: a header line, the SHA-256 of the rest, and a state saved with ``torch.save``.

    A file that does not match its digest, or belongs to another version, counts as absent: the run starts over.
    """

    def __init__(self, path: Path, warn: Callable[[str], None] = warnings.warn) -> None:
        self.path = path
        self.warn = warn
        self._saved = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the last checkpoint is older than ``INTERVAL`` seconds."""
        return time.monotonic() - self._saved > INTERVAL

    def save(self, state: dict[str, Any]) -> None:
        """Replaces the file."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        content = buffer.getvalue()
        write_file(self.path, _header(content) + content)
        self._saved = time.monotonic()

    def load(self, device: str) -> dict[str, Any] | None:
        """The saved state on that device; ``None``, with a warning, if the file cannot be used."""
        try:
            return self._load(device)
        except FileNotFoundError:
            return None
        except Exception as error:  # torch.load raises nearly any type
            self.warn(f"cannot use the checkpoint {self.path}: {one_line(error)}. Its run starts over.")
            return None

    def remove(self) -> None:
        """Deletes the file if it exists."""
        self.path.unlink(missing_ok=True)

    def _load(self, device: str) -> dict[str, Any]:
        with self.path.open("rb") as file:
            header, content = file.readline() + file.readline(), file.read()
        if header != _header(content):
            raise ValueError("it is damaged or belongs to another version")
        return torch.load(io.BytesIO(content), map_location=device, weights_only=True)


def _header(content: bytes) -> bytes:
    """The lines before the content. The digest covers the versions too."""
    version = f"{FORMAT}, results {RESULTS_VERSION}, unstale {unstale.__version__}\n".encode()
    return version + hashlib.sha256(version + content).hexdigest().encode() + b"\n"
