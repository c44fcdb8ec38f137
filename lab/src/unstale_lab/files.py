"""Atomic writes: a file appears complete under its name, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MAX_TEMPORARY_AGE = 24 * 60 * 60  # seconds; older temporary files were left by killed processes


@contextlib.contextmanager
def atomic_write(path: Path, *, overwrite: bool = True) -> Iterator[BinaryIO]:
    """Opens a temporary file beside ``path`` for writing, and renames it to ``path`` if the block succeeds.

    The content is on disk before the name is. Missing parent directories are created.

    Args:
        overwrite: replace an existing file. If ``False``, an existing file stays and the new content is discarded.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            temporary.replace(path)
        else:
            _link(temporary, path)
        _sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_file(path: Path, content: bytes, *, overwrite: bool = True) -> Path:
    """Writes ``content`` atomically and returns ``path``.

    A process whose clock is wrong may remove the temporary file as stale. Then it is written once more.
    """
    try:
        _write_once(path, content, overwrite)
    except FileNotFoundError:
        _write_once(path, content, overwrite)
    return path


def _write_once(path: Path, content: bytes, overwrite: bool) -> None:
    with atomic_write(path, overwrite=overwrite) as file:
        file.write(content)


def require_writable(directory: Path) -> None:
    """Raises ``OSError`` if files cannot be created and filled in the directory. Creates the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    probe = _temporary(directory / "probe")
    try:
        with probe.open("xb") as file:
            file.write(b"a full disk creates files but cannot fill them")
    finally:
        probe.unlink(missing_ok=True)


def remove_stale_temporaries(directory: Path) -> None:
    """Removes temporary files of killed processes: those that are old by the clock of this machine."""
    for path in directory.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > MAX_TEMPORARY_AGE:
                path.unlink()


def _temporary(path: Path) -> Path:
    """A unique hidden name: tools that read a whole directory skip names that begin with a dot."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def _link(temporary: Path, path: Path) -> None:
    """Gives a finished file its name unless the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        # The file system has no hard links. If another process wins the race, one of the two files remains.
        if not path.exists():
            temporary.rename(path)


def _sync_directory(path: Path) -> None:
    """Makes new names in a directory survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
