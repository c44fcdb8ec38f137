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

    A file that does not match its digest, or belongs to another version or key, counts as absent: the run starts over.

    Args:
        key: what the numbers of the run depend on besides the versions, for example its data and device.
    """

    def __init__(self, path: Path, warn: Callable[[str], None] = warnings.warn, key: str = "") -> None:
        self.path = path
        self.warn = warn
        self.key = key
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
        header = self._header()
        write_file(self.path, header + _digest(header, content) + content)
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
            header, digest, content = file.readline(), file.readline(), file.read()
        if digest != _digest(header, content):
            raise ValueError("it is damaged or has another format")
        if header != self._header():
            found, wanted = header.decode().strip(), self._header().decode().strip()
            raise ValueError(f"it belongs to {found!r}, not {wanted!r}")
        return torch.load(io.BytesIO(content), map_location=device, weights_only=True)

    def _header(self) -> bytes:
        """The first line."""
        versions = f"{FORMAT}, results {RESULTS_VERSION}, unstale {unstale.__version__}"
        return ", ".join(filter(None, [versions, self.key])).encode() + b"\n"


def _digest(header: bytes, content: bytes) -> bytes:
    """The second line. The digest covers the header too."""
    digest = hashlib.sha256(header)
    digest.update(content)
    return digest.hexdigest().encode() + b"\n"
