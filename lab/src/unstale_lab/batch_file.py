"""What a file of the store holds: Parquet, a row for each run.

Parquet knows of a column its name and type. Here each also says which part of a run it is (``PART``), so that a setting
which only a later version knows is not taken for a curve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, BinaryIO, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .experiment import Run
from .records import Record

VERSION = "1"
VERSION_KEY = b"unstale.store"
PART = b"unstale.part"

ARROW_TYPES = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    tuple[int, ...]: pa.list_(pa.int64()),
    tuple[str, ...]: pa.list_(pa.string()),
}
SETTINGS = {name: ARROW_TYPES[kind] for name, kind in get_type_hints(Run).items()}
RESULTS = {
    "at": pa.list_(pa.int32()),
    "diverged_at": pa.int64(),
    "parameters": pa.int64(),
    "numbers_kept": pa.int64(),
    "backward_passes": pa.int64(),
    "seconds": pa.float64(),
}
PROVENANCE = ("unstale_version", "torch_version", "python_version", "machine", "device", "commit", "data", "finished")
LATER = {"data"}  # columns that files of an earlier version lack
# In every file, null where not measured, because many tools take the columns of the first file for those of all.
USUAL_CURVES = ("evaluation", "training", "drift", "agreement", "agreement of batches", "agreement if uncorrected")
CURVE = pa.list_(pa.float64())


class DamagedFile(Exception):
    """The file is not what was once written."""


class OtherVersion(Exception):
    """The file is sound, and not for this program."""


def encode(records: Sequence[Record], made: Mapping[str, str]) -> bytes:
    """The content of a file: the same for the same records, apart from where and when they were made."""
    curves = dict.fromkeys([*USUAL_CURVES, *sorted({name for record in records for name in record.curves})])
    taken = {"id", *SETTINGS, *RESULTS, *PROVENANCE} & set(curves)
    if taken:
        raise ValueError(f"a curve cannot be named {min(taken)!r}: it is a column of the store")
    here = {**dict.fromkeys(PROVENANCE, ""), **made, "finished": datetime.now(UTC).isoformat(timespec="seconds")}
    columns = [
        _column("id", "id", pa.string(), [record.run.id for record in records]),
        *(_column("run", name, kind, [getattr(r.run, name) for r in records]) for name, kind in SETTINGS.items()),
        *(_column("result", name, kind, [getattr(r, name) for r in records]) for name, kind in RESULTS.items()),
        *(_column("curve", name, CURVE, [r.curves.get(name) for r in records]) for name in curves),
        *(_column("provenance", name, pa.string(), [here[name]] * len(records)) for name in PROVENANCE),
    ]
    schema = pa.schema([field for field, _ in columns], metadata={VERSION_KEY: VERSION.encode()})
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays([values for _, values in columns], schema=schema)
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def decode(file: BinaryIO, columns: list[str] | None = None) -> pa.Table:
    """A file as a table, with the columns asked for, by default all. Raises ``DamagedFile`` and ``OtherVersion``."""
    try:
        parquet = pq.ParquetFile(file, page_checksum_verification=True)
        _check(parquet.schema_arrow)
        return parquet.read(columns, use_threads=False)
    except (pa.ArrowException, ValueError) as error:
        raise DamagedFile(_first_line(error)) from error
    except OSError as error:
        if error.errno is not None:  # the disk's; Arrow's own, about the content, have no number
            raise
        raise DamagedFile(_first_line(error)) from error


def rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows by column, the curves together under ``"curves"``, as arrays."""
    curves = [field.name for field in table.schema if _part(field) == b"curve"]
    for place, row in enumerate(table.drop_columns(curves).to_pylist()):
        measured = {name: table[name][place] for name in curves}
        yield {
            **dict.fromkeys(LATER, ""),
            **row,
            "curves": {name: curve.values.to_numpy() for name, curve in measured.items() if curve.is_valid},
        }


def run_of(row: Mapping[str, Any]) -> Run:
    """The run of a row; settings that an older file lacks are at their defaults."""
    settings: dict[str, Any] = {}
    for name in SETTINGS.keys() & row.keys():
        settings[name] = tuple(row[name]) if isinstance(row[name], list) else row[name]
    return Run(**settings)


def record_of(run: Run, row: Mapping[str, Any]) -> Record:
    """What a row says of its run."""
    results = {name: row[name] for name in RESULTS} | {"at": np.array(row["at"], dtype=int)}
    return Record(run=run, curves=row["curves"], **results)


def _column(part: str, name: str, kind: pa.DataType, values: list[Any]) -> tuple[pa.Field, pa.Array]:
    return pa.field(name, kind, metadata={PART: part.encode()}), pa.array(values, kind)


def _part(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(PART)


def _check(schema: pa.Schema) -> None:
    """That a file is one of ours, and no later than we are."""
    version = (schema.metadata or {}).get(VERSION_KEY, b"").decode()
    if version not in ("", VERSION):
        raise OtherVersion(f"is of version {version} of the store, and this program reads version {VERSION}")
    unknown = [field.name for field in schema if _part(field) == b"run" and field.name not in SETTINGS]
    if unknown:
        raise OtherVersion(f"is of a later version: it has settings unknown to this program ({', '.join(unknown)})")
    missing = {"id", *RESULTS, *PROVENANCE} - LATER - set(schema.names)
    if missing or not version:
        raise DamagedFile("it lacks " + (", ".join(sorted(missing)) or "the version of the store"))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
