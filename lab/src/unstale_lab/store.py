"""Results on disk: a folder of Parquet files, one for each finished batch of runs.

A row is a run: its id, its settings, its curves, and where it was made. Any tool that reads Parquet reads the folder,
``pandas.read_parquet("runs/store")`` being one. A file appears whole or not at all, and is never written again, so
processes share a store without locks, and one that is killed loses no more than the batch it was at.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import secrets
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from . import batch_file
from .batch_file import PROVENANCE, DamagedFile, OtherVersion
from .experiment import Run
from .provenance import provenance
from .records import Record

DAY = 24 * 60 * 60


class StoreError(RuntimeError):
    """The store cannot be read or written; the message is one line, and nothing in the store was harmed."""


@dataclass(frozen=True)
class Found:
    """A run of the store, and where it was made: the columns of ``PROVENANCE``."""

    record: Record
    provenance: dict[str, str]


@dataclass(frozen=True)
class Origin:
    """Where a number of runs were made: the different values of each column of ``PROVENANCE``, in order."""

    values: dict[str, tuple[str, ...]]
    runs: int
    seconds: float  # of all runs together


class Store:
    """The runs kept in a folder. It need not exist before something is added.

    A damaged file is set aside under another name, never deleted, and reported to ``warn``; its runs are absent then.
    """

    def __init__(self, path: str | os.PathLike[str], warn: Callable[[str], None] = warnings.warn) -> None:
        self.path = Path(path)
        self.warn = warn
        self._known: dict[Path, list[str]] = {}
        if self.path.exists() and not self.path.is_dir():
            raise StoreError(f"the store {self.path} is a file; it must be a folder")

    def add(self, records: Sequence[Record], made: Mapping[str, str] | None = None) -> Path:
        """Keeps a batch of runs as one file, and returns it. Where these very runs are kept already, they stay.

        ``made`` is the ``provenance`` of the runs; that of this machine's CPU unless given.
        """
        if not records:
            raise ValueError("there are no records to add")
        ids = sorted(record.run.id for record in records)
        name = f"batch-{hashlib.sha256(' '.join(ids).encode()).hexdigest()[:12]}.parquet"
        content = batch_file.encode(records, provenance("cpu") if made is None else made)
        with self._writing():
            self._remove_leftovers()
            self._publish(content, self.path / name)
        return self.path / name

    def require_writable(self) -> None:
        """Raises now the ``StoreError`` that ``add`` would raise once the first runs have been computed."""
        with self._writing():
            probe = _temporary(self.path / "batch-probe")
            try:
                with probe.open("xb") as file:
                    file.write(b"a full disk makes files, and fills none")
            finally:
                probe.unlink(missing_ok=True)

    def ids(self) -> set[str]:
        """The ids of all runs there are."""
        return {id for path in self._files() for id in self._ids_of(path)}

    def load(self, runs: Iterable[Run]) -> dict[Run, Record]:
        """The records of those of the runs that are there, in the order asked for."""
        asked = {run.id: run for run in runs}
        rows = self._rows(asked.__contains__)
        found = {id: batch_file.record_of(asked[id], row) for id, row in rows}
        return {run: found[id] for id, run in asked.items() if id in found}

    def find(self, prefix: str) -> Found:
        """The one run whose id begins so."""
        rows = dict(self._rows(lambda id: id.startswith(prefix)))
        if not rows:
            raise StoreError(f"no run in the store {self.path} has an id that begins with {prefix!r}")
        if len(rows) > 1:
            some = ", ".join(sorted(rows)[:4]) + (", …" if len(rows) > 4 else "")
            raise StoreError(f"{len(rows)} runs have ids that begin with {prefix!r}: {some}; give more of it")
        (row,) = rows.values()
        return Found(batch_file.record_of(batch_file.run_of(row), row), {name: row[name] for name in PROVENANCE})

    def provenance(self, runs: Iterable[Run]) -> Origin:
        """Where those of the runs that are there were made, and how long they took."""
        asked = {run.id for run in runs}
        rows = [row for _, row in self._rows(asked.__contains__, ["id", "seconds", *PROVENANCE])]
        values = {name: tuple(sorted({row[name] for row in rows} - {""})) for name in PROVENANCE}
        return Origin(values, len(rows), sum(row["seconds"] for row in rows))

    def check(self) -> int:
        """Reads every file to its end, so that those damaged are set aside now; returns how many runs are sound."""
        sound = (table for path in self._files() if (table := self._read(path, None)) is not None)
        return len({id for table in sound for id in table["id"].to_pylist()})

    def _rows(
        self, wanted: Callable[[str], bool], columns: list[str] | None = None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Ids and rows, each id once: if several files have it, that of the first by name."""
        seen: set[str] = set()
        for path in self._files():
            chosen = [wanted(id) for id in self._ids_of(path)]
            whole = self._read(path, columns) if any(chosen) else None
            if whole is None:
                continue
            for row in batch_file.rows(whole.filter(chosen)):
                if row["id"] not in seen:
                    seen.add(row["id"])
                    yield row["id"], row

    def _ids_of(self, path: Path) -> list[str]:
        """The ids in a file, read once: a file that is there never changes."""
        if path not in self._known:
            table = self._read(path, ["id"])
            if table is None:
                return []
            self._known[path] = table["id"].to_pylist()
        return self._known[path]

    def _files(self) -> list[Path]:
        try:
            return sorted(path for path in self.path.iterdir() if path.match("batch-*.parquet"))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"cannot read the store {self.path}: {_reason(error)}") from error

    def _read(self, path: Path, columns: list[str] | None) -> pa.Table | None:
        """One file; nothing if it is damaged, or was set aside by another process."""
        try:
            with path.open("rb") as file:
                seen = os.fstat(file.fileno())
                try:
                    return batch_file.decode(file, columns)
                except OtherVersion as error:
                    raise StoreError(f"{path} {error}") from error
                except DamagedFile as damage:
                    self._set_aside(path, seen, str(damage))
                    return None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {_reason(error)}") from error

    def _set_aside(self, path: Path, seen: os.stat_result, damage: str) -> None:
        """Renames a damaged file, unless another process has done so, or has put a sound one in its place."""
        if not os.path.samestat(path.stat(), seen):
            return
        try:
            # The underscore hides it from tools that read all of a folder.
            aside = _reserve(path.with_name(f"_{path.name}.damaged"))
            try:
                path.replace(aside)
            except OSError:
                aside.unlink()
                raise
        except FileNotFoundError:
            return
        except OSError as error:
            self.warn(f"{path} is damaged ({damage}) and could not be set aside: {_reason(error)}")
        else:
            self.warn(f"{path} is damaged ({damage}); it is now {aside.name}, and its runs count as not run")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Makes the folder, and one line of whatever the disk has against it or what follows."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            yield
        except OSError as error:
            raise StoreError(f"cannot write to the store {self.path}: {_reason(error)}") from error

    def _publish(self, content: bytes, path: Path) -> None:
        """Writes under a temporary name, and gives the file its own once it is on the disk."""
        temporary = _temporary(path)
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _name(temporary, path)
            _sync_folder(self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def _remove_leftovers(self) -> None:
        """Temporary files of processes that were killed; not those that may still be written to."""
        for path in self.path.glob(".batch-*.tmp"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > DAY:
                    path.unlink()


def _temporary(path: Path) -> Path:
    """What a file is called until it is whole. The dot hides it from tools that read all of a folder."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def _name(temporary: Path, path: Path) -> None:
    """Gives a finished file its name, unless there is one of that name."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        # A disk without hard links. Should another process be as quick as this one, it has written the same runs.
        if not path.exists():
            temporary.rename(path)


def _reserve(path: Path) -> Path:
    """A new, empty file of this name, or with a number after it where the name is taken."""
    for number in itertools.count(1):
        free = path if number == 1 else path.with_name(f"{path.name}-{number}")
        with contextlib.suppress(FileExistsError):
            free.touch(exist_ok=False)
            break
    return free


def _sync_folder(path: Path) -> None:
    """Makes new names in a folder outlive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
