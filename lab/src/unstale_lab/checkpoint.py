"""Checkpoints of training runs in progress: a killed process loses minutes of work, not hours."""

from __future__ import annotations

import hashlib
import io
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

import unstale

from .errors import one_line
from .files import atomic_write
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
        self._warned = False

    @property
    def is_due(self) -> bool:
        """Whether the last checkpoint is older than ``INTERVAL`` seconds."""
        return time.monotonic() - self._saved > INTERVAL

    def save(self, state: dict[str, Any]) -> None:
        """Replaces the file. If it cannot be written, warns once: the last checkpoint stays, and the run goes on."""
        self._saved = time.monotonic()
        try:
            self._save(state)
        except OSError as error:
            if not self._warned:
                self.warn(f"cannot write the checkpoint {self.path}: {error.strerror or error}. Its run goes on.")
            self._warned = True

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

    def _save(self, state: dict[str, Any]) -> None:
        header = self._header()
        with atomic_write(self.path) as file:
            file.write(header + _line(hashlib.sha256()))
            content = _HashedFile(file, hashlib.sha256(header))
            torch.save(state, cast(BinaryIO, content))
            if content.error is not None:
                raise content.error
            file.seek(len(header))
            file.write(_line(content.digest))

    def _load(self, device: str) -> dict[str, Any]:
        with self.path.open("rb") as file:
            header, digest, content = file.readline(), file.readline(), file.read()
        expected = hashlib.sha256(header)
        expected.update(content)
        if digest != _line(expected):
            raise ValueError("it is damaged or has another format")
        if header != self._header():
            found, wanted = header.decode().strip(), self._header().decode().strip()
            raise ValueError(f"it belongs to {found!r}, not {wanted!r}")
        return torch.load(io.BytesIO(content), map_location=device, weights_only=True)

    def _header(self) -> bytes:
        """The first line."""
        versions = f"{FORMAT}, results {RESULTS_VERSION}, unstale {unstale.__version__}"
        return ", ".join(filter(None, [versions, self.key])).encode() + b"\n"


class _HashedFile:
    """Writes to a file, and hashes what it writes, so that no copy of a large state is in memory.

    Keeps the first ``OSError`` instead of raising it, because ``torch.save`` would raise another error in its place.
    """

    def __init__(self, file: BinaryIO, digest: hashlib._Hash) -> None:
        self.file, self.digest = file, digest
        self.error: OSError | None = None

    def write(self, data: memoryview) -> int:
        self.digest.update(data)
        try:
            if self.error is None:
                self.file.write(data)
        except OSError as error:
            self.error = error
        return len(data)

    def flush(self) -> None:
        """Nothing: the file is flushed when it is complete."""


def _line(digest: hashlib._Hash) -> bytes:
    """The second line of a file: a digest of the first line and the state."""
    return digest.hexdigest().encode() + b"\n"
