"""Results on disk: a directory of Parquet files, one per finished batch of runs.

A row is a run: its id, its settings, its curves, and its provenance. Any tool that reads Parquet reads the directory,
for example ``pandas.read_parquet("runs/store")``. Files are written atomically and never changed, so processes share a
store without locks, and a killed process loses only the batch that it was computing. ``Store.export`` writes files of
another kind, to be published: the runs of a figure, with curves in single precision.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from . import batch_file
from .batch_file import PROVENANCE, DamagedFileError, OtherVersionError, OutdatedResultsError
from .errors import StoreError
from .experiment import Run
from .files import remove_stale_temporaries, require_writable, write_file
from .methods import results_version
from .provenance import provenance
from .records import Record


@dataclass(frozen=True)
class StoredRun:
    """A run of the store and its provenance: the columns of ``PROVENANCE``."""

    record: Record
    provenance: dict[str, str]


@dataclass(frozen=True)
class Origin:
    """The provenance of several runs: the distinct values of each column of ``PROVENANCE``, sorted."""

    values: dict[str, tuple[str, ...]]
    runs: int
    seconds: float  # of all runs together


class Store:
    """The runs in a directory, which is created when the first batch is added.

    Every file is verified when it is first read. A damaged file is renamed, never deleted, and reported to ``warn``;
    its runs then count as not run. If two files hold different results for one run, the first file by name counts.
    """

    def __init__(self, path: str | os.PathLike[str], warn: Callable[[str], None] = warnings.warn) -> None:
        self.path = Path(path)
        self.warn = warn
        self._ids: dict[Path, list[str]] = {}
        self._reported: set[tuple[Path, ...]] = set()
        if self.path.exists() and not self.path.is_dir():
            raise StoreError(f"the store {self.path} is a file; it must be a folder")

    def add(self, records: Sequence[Record], made: Mapping[str, str] | None = None) -> Path:
        """Writes a batch of runs as one file and returns its path. A file of the same runs stays as it is.

        Args:
            made: the ``provenance`` of the runs. Default: that of this machine's CPU.
        """
        if not records:
            raise ValueError("there are no records to add")
        path = self.path / _file_name([record.run for record in records])
        content = batch_file.encode(records, provenance("cpu") if made is None else made)
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            remove_stale_temporaries(self.path)
            write_file(path, content, overwrite=False)
        return path

    def export(self, runs: Iterable[Run], to: Store, name: str) -> Path | None:
        """Copies those of the runs that ``to`` lacks, as one new file.

        Curves are in single precision, unless a run was computed in double precision.

        Args:
            name: what the name of the file contains: ``"fig3"`` for ``batch-fig3-....parquet``.

        Returns:
            The path of the file, or ``None`` if ``to`` lacks no run.

        Raises:
            StoreError: a run is not in this store, or ``to`` holds other results for it.
        """
        requested = {run.id: run for run in runs}
        there = dict(to._rows(requested.__contains__))
        here = dict(self._rows(requested.__contains__))
        for id in here.keys() & there.keys():
            if not batch_file.same_results(here[id], there[id]):
                raise StoreError(f"{self.path} and {to.path} hold different results for run {id}")
        wanted = {id: run for id, run in requested.items() if id not in there}
        found = {id: self._stored(wanted[id], here[id]) for id in wanted.keys() & here.keys()}
        if missing := wanted.keys() - found.keys():
            raise StoreError(f"{len(missing)} of {len(wanted)} runs are not in {self.path}, for example {min(missing)}")
        if not found:
            return None
        rows = [found[id] for id in wanted]
        is_double = any(row.record.run.precision == "float64" for row in rows)
        records, provenances = [row.record for row in rows], [row.provenance for row in rows]
        content = batch_file.encode_rows(records, provenances, pa.float64() if is_double else pa.float32())
        path = to.path / _file_name([*wanted.values()], f"{name}-")
        with to._writing():
            to.path.mkdir(parents=True, exist_ok=True)
            write_file(path, content, overwrite=False)
        if missing := wanted.keys() - Store(to.path, to.warn).ids():
            raise StoreError(
                f"{path} exists and lacks {len(missing)} of these runs: delete it, or choose another store"
            )
        return path

    def require_writable(self) -> None:
        """Raises ``StoreError`` now, rather than in ``add`` after the first runs have been computed."""
        with self._writing():
            require_writable(self.path)

    def ids(self) -> set[str]:
        """The ids of all runs."""
        return {id for path in self._files() for id in self._ids_of(path)}

    def load(self, runs: Iterable[Run]) -> dict[Run, Record]:
        """The records of those of the runs that are in the store, in the given order."""
        wanted = {run.id: run for run in runs}
        found = {id: batch_file.record_of(wanted[id], row) for id, row in self._rows(wanted.__contains__)}
        return {run: found[id] for id, run in wanted.items() if id in found}

    def find(self, prefix: str) -> StoredRun:
        """The one run whose id starts with the prefix."""
        rows = dict(self._rows(lambda id: id.startswith(prefix)))
        if not rows:
            raise StoreError(f"no run in the store {self.path} has an id that begins with {prefix!r}")
        if len(rows) > 1:
            some = ", ".join(sorted(rows)[:4]) + (", ..." if len(rows) > 4 else "")
            raise StoreError(f"{len(rows)} runs have ids that begin with {prefix!r}: {some}. Give more characters.")
        (row,) = rows.values()
        return self._stored(batch_file.run_of(row), row)

    def provenance(self, runs: Iterable[Run]) -> Origin:
        """The provenance of those of the runs that are in the store, and the seconds that they took."""
        wanted = {run.id for run in runs}
        rows = [row for _, row in self._rows(wanted.__contains__)]
        values = {name: tuple(sorted({row[name] for row in rows} - {""})) for name in PROVENANCE}
        return Origin(values, len(rows), sum(row["seconds"] for row in rows))

    def check(self) -> int:
        """Verifies every file again, also those read before, and returns the number of runs."""
        self._ids.clear()
        paths: dict[str, list[Path]] = {}
        for path in self._files():
            for id in self._ids_of(path):
                paths.setdefault(id, []).append(path)
        repeated = {id for id, files in paths.items() if len(files) > 1}
        if repeated:
            for _ in self._rows(repeated.__contains__):  # compares them
                pass
        return len(paths)

    @staticmethod
    def _stored(run: Run, row: Mapping[str, Any]) -> StoredRun:
        return StoredRun(batch_file.record_of(run, row), {name: row[name] for name in PROVENANCE})

    def _rows(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Ids and rows, each id once: if several files have it, that of the first by name."""
        first: dict[str, tuple[Path, dict[str, Any]]] = {}
        for path in self._files():
            chosen = [wanted(id) for id in self._ids_of(path)]
            table = self._read(path) if any(chosen) else None
            if table is None:
                continue
            for row in batch_file.rows(table.filter(chosen)):
                if row["id"] in first:
                    self._compare(*first[row["id"]], path, row)
                else:
                    first[row["id"]] = path, row
                    yield row["id"], row

    def _compare(self, path: Path, row: Mapping[str, Any], other: Path, other_row: Mapping[str, Any]) -> None:
        """Warns, once for two files, if they hold different results for one run."""
        if (path, other) not in self._reported and not batch_file.same_results(row, other_row):
            self._reported.add((path, other))
            self.warn(
                f"{other} and {path.name} hold different results for run {row['id']}; those of {path.name} are used. "
                "Delete the file that is wrong."
            )

    def _ids_of(self, path: Path) -> list[str]:
        """The ids in a file, which is read and verified once: files never change."""
        if path not in self._ids:
            table = self._read(path)
            if table is None:
                return []
            self._ids[path] = table["id"].to_pylist()
        return self._ids[path]

    def _files(self) -> list[Path]:
        try:
            return sorted(path for path in self.path.iterdir() if path.match("batch-*.parquet"))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"cannot read the store {self.path}: {_reason(error)}") from error

    def _read(self, path: Path) -> pa.Table | None:
        """A verified file; ``None`` if it is damaged or outdated, or was renamed by another process."""
        try:
            with path.open("rb") as file:  # kept open, so that its inode is not reused
                try:
                    return batch_file.decode(file.read())
                except OtherVersionError as error:
                    raise StoreError(f"{path} {error}") from error
                except OutdatedResultsError as error:
                    if (path,) not in self._reported:
                        self._reported.add((path,))
                        self.warn(f"{path} is not used, and its runs count as not run: {error}")
                    return None
                except DamagedFileError as error:
                    self._set_aside(path, os.fstat(file.fileno()), str(error))
                    return None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {_reason(error)}") from error
        except MemoryError as error:
            raise StoreError(f"there is not enough memory to read {path}") from error

    def _set_aside(self, path: Path, seen: os.stat_result, damage: str) -> None:
        """Renames a damaged file, unless another process has renamed or replaced it."""
        try:
            if not os.path.samestat(path.stat(), seen):
                return
            # The underscore hides the file from tools that read a whole directory.
            aside = _reserve(path.with_name(f"_{path.name}.damaged"))
            try:
                path.replace(aside)
            except OSError:
                aside.unlink()
                raise
        except FileNotFoundError:
            return
        except OSError as error:
            self.warn(f"{path} is damaged ({damage}) and cannot be renamed: {_reason(error)}")
        else:
            self.warn(f"{path} is damaged ({damage}). It is now {aside.name}, and its runs count as not run.")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot write to the store {self.path}: {_reason(error)}") from error


def _file_name(runs: Sequence[Run], prefix: str = "") -> str:
    """The same for the same runs. Results of another version have another name, so that both can be stored."""
    digest = hashlib.sha256(" ".join(sorted(run.id for run in runs)).encode()).hexdigest()[:12]
    version = max(results_version(run) for run in runs)
    return f"batch-{prefix}{'' if version == 1 else f'v{version}-'}{digest}.parquet"


def _reserve(path: Path) -> Path:
    """A new, empty file with this name, or with a number appended if the name is taken."""
    for number in itertools.count(1):
        free = path if number == 1 else path.with_name(f"{path.name}-{number}")
        with contextlib.suppress(FileExistsError):
            free.touch(exist_ok=False)
            break
    return free


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
