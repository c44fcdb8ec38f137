"""The files of the store: Parquet, one row per run.

Parquet stores the name and type of a column. The metadata of each column here also says which part of a run it holds
(``PART``), so that a setting of a later version is not mistaken for a curve. The metadata of a file holds the SHA-256
of the whole file, computed with the digest itself replaced by zeros.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from unstale.evaluation.sizes import parquet_column_bytes

from .errors import one_line
from .experiment import Run
from .methods import results_version
from .records import Record
from .versions import RESULTS_VERSION

FORMAT = "2"
FORMATS_WITHOUT_DIGEST = ("1",)
FORMAT_KEY = b"unstale.store"
RESULTS_KEY = b"unstale.results"  # absent where it would be "1"
DIGEST_KEY = b"unstale.sha256"
NO_DIGEST = b"0" * 64
PART = b"unstale.part"
MAX_BYTES = 4 << 30  # of a file, unpacked

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
NULLABLE = {"diverged_at"}
PROVENANCE = ("unstale_version", "torch_version", "python_version", "machine", "device", "commit", "data", "finished")
ADDED_LATER = {"data"}  # columns that files of an earlier version lack
# In every file, null where not measured, because many tools take the columns of the first file for those of all.
USUAL_CURVES = ("evaluation", "training", "drift", "agreement", "agreement of batches", "agreement if uncorrected")


class DamagedFileError(Exception):
    """The content of the file is not what was once written."""


class OtherVersionError(Exception):
    """The file is intact, but was written by a later version."""


class OutdatedResultsError(Exception):
    """The file is intact, but its runs were computed by an earlier version and would differ now."""


def encode(records: Sequence[Record], made: Mapping[str, str]) -> bytes:
    """The content of a file with runs that are finished now.

    Args:
        made: values of the other ``PROVENANCE`` columns; those that are missing are empty.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return encode_rows(records, [{**made, "finished": now}] * len(records), pa.float64())


def encode_rows(records: Sequence[Record], provenance: Sequence[Mapping[str, str]], number: pa.DataType) -> bytes:
    """The content of a file.

    Args:
        provenance: values of the ``PROVENANCE`` columns for each record; those that are missing are empty.
        number: the type of the values of curves.
    """
    curves = dict.fromkeys([*USUAL_CURVES, *sorted({name for record in records for name in record.curves})])
    reserved = {"id", *SETTINGS, *RESULTS, *PROVENANCE} & set(curves)
    if reserved:
        raise ValueError(f"a curve cannot be named {min(reserved)!r}: it is a column of the store")
    columns = [
        _column("id", "id", pa.string(), [record.run.id for record in records]),
        *(_column("run", name, kind, [getattr(r.run, name) for r in records]) for name, kind in SETTINGS.items()),
        *(_column("result", name, kind, [getattr(r, name) for r in records]) for name, kind in RESULTS.items()),
        *(_column("curve", name, pa.list_(number), [r.curves.get(name) for r in records]) for name in curves),
        *(_column("provenance", name, pa.string(), [row.get(name, "") for row in provenance]) for name in PROVENANCE),
    ]
    version = max(results_version(record.run) for record in records)
    metadata = {FORMAT_KEY: FORMAT.encode(), RESULTS_KEY: str(version).encode()}
    schema = pa.schema([field for field, _ in columns], metadata=metadata)
    return encode_table(pa.Table.from_arrays([values for _, values in columns], schema=schema))


def encode_table(table: pa.Table) -> bytes:
    """A table as Parquet, with the digest of the file in its metadata."""
    sink = pa.BufferOutputStream()
    curves = _curve_names(table.schema)
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        write_page_checksum=True,
        # The leading bytes of a curve's values are alike, and compress well if they are stored together.
        use_dictionary=[name for name in table.schema.names if name not in curves],
        column_encoding={f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in curves},
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({DIGEST_KEY: NO_DIGEST})
    content = sink.getvalue().to_pybytes()
    start = content.rindex(NO_DIGEST)
    return content[:start] + _digest(content) + content[start + len(NO_DIGEST) :]


def decode(content: bytes) -> pa.Table:
    """The table of a file, checked.

    Raises:
        DamagedFileError: the content does not match its digest, or is inconsistent.
        OtherVersionError: the file was written by a later version.
        OutdatedResultsError: the runs were computed by an earlier version.
    """
    try:
        parquet = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        metadata = parquet.metadata.metadata or {}
        _check_digest(content, metadata)
        _check_versions(parquet.schema_arrow, metadata)
        _check_size(parquet.metadata)
        table = parquet.read(use_threads=False)
        _check_rows(table, results=int(metadata.get(RESULTS_KEY, b"1")))
    except (DamagedFileError, OtherVersionError, OutdatedResultsError, MemoryError):
        raise
    except Exception as error:  # Arrow raises nearly any type for damaged content
        raise DamagedFileError(one_line(error).rstrip(".")) from error
    return table


def rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows by column, with all measured curves under ``"curves"`` as arrays."""
    curves = _curve_names(table.schema)
    for index, row in enumerate(table.drop_columns(curves).to_pylist()):
        measured = {name: table[name][index] for name in curves}
        yield {
            **dict.fromkeys(ADDED_LATER, ""),
            **row,
            "curves": {name: curve.values.to_numpy() for name, curve in measured.items() if curve.is_valid},
        }


def run_of(row: Mapping[str, Any]) -> Run:
    """The run of a row. Settings that an older file lacks have their defaults."""
    settings: dict[str, Any] = {}
    for name in SETTINGS.keys() & row.keys():
        settings[name] = tuple(row[name]) if isinstance(row[name], list) else row[name]
    return Run(**settings)


def record_of(run: Run, row: Mapping[str, Any]) -> Record:
    """The record of a row."""
    results = {name: row[name] for name in RESULTS} | {"at": np.array(row["at"], dtype=int)}
    return Record(run=run, curves=row["curves"], **results)


def same_results(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two rows hold the same numbers, bit for bit, apart from how long they took.

    Of two precisions the lower one counts.
    """
    names = RESULTS.keys() - {"seconds"}
    if any(a[name] != b[name] for name in names) or a["curves"].keys() != b["curves"].keys():
        return False
    return all(_same_numbers(curve, b["curves"][name]) for name, curve in a["curves"].items())


def _same_numbers(a: np.ndarray, b: np.ndarray) -> bool:
    lower = min(a.dtype, b.dtype, key=lambda kind: kind.itemsize)
    return a.astype(lower).tobytes() == b.astype(lower).tobytes()


def _column(part: str, name: str, kind: pa.DataType, values: list[Any]) -> tuple[pa.Field, pa.Array]:
    return pa.field(name, kind, metadata={PART: part.encode()}), pa.array(values, kind)


def _part(field: pa.Field) -> bytes | None:
    return (field.metadata or {}).get(PART)


def _curve_names(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if _part(field) == b"curve"]


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _check_digest(content: bytes, metadata: Mapping[bytes, bytes]) -> None:
    digest = metadata.get(DIGEST_KEY)
    if digest is None:
        if metadata.get(FORMAT_KEY) == FORMAT.encode():
            raise DamagedFileError("its digest is missing")
        return  # an earlier format, or a later one, which the check of versions reports
    if len(digest) != len(NO_DIGEST) or _digest(content.replace(digest, NO_DIGEST)) != digest:
        raise DamagedFileError("its content does not match its digest")


def _check_size(metadata: pq.FileMetaData) -> None:
    """That the file does not take more memory than any batch of runs, before it is unpacked."""
    size = sum(parquet_column_bytes(metadata, number) for number in range(metadata.num_columns))
    if size > MAX_BYTES:
        raise DamagedFileError(f"it would take {size / 2**30:,.1f} GiB of memory")


def _check_versions(schema: pa.Schema, metadata: Mapping[bytes, bytes]) -> None:
    version = metadata.get(FORMAT_KEY, b"").decode()
    if version not in ("", FORMAT, *FORMATS_WITHOUT_DIGEST):
        raise OtherVersionError(
            f"has version {version} of the store's format, and this program reads up to version {FORMAT}. "
            "Update unstale-lab, or choose another store."
        )
    unknown = [field.name for field in schema if _part(field) == b"run" and field.name not in SETTINGS]
    if unknown:
        raise OtherVersionError(
            f"was written by a later version: it has unknown settings ({', '.join(unknown)}). "
            "Update unstale-lab, or choose another store."
        )
    missing = {"id", *RESULTS, *PROVENANCE} - ADDED_LATER - set(schema.names)
    if missing or not version:
        raise DamagedFileError("it lacks " + (", ".join(sorted(missing)) or "the version of the store"))
    results = int(metadata.get(RESULTS_KEY, b"1"))
    if results > RESULTS_VERSION:
        raise OtherVersionError(
            f"holds results of version {results}, and this program computes version {RESULTS_VERSION}. "
            "Update unstale-lab, or choose another store."
        )


def _check_rows(table: pa.Table, results: int) -> None:
    """That no value is missing, that curves have one value per measurement, and that ids match their settings.

    Also that no run has changed since version ``results``.
    """
    for name in ("id", *(SETTINGS.keys() & set(table.schema.names)), *(RESULTS.keys() - NULLABLE)):
        if table[name].null_count:
            raise DamagedFileError(f"{name} has missing values")
    lengths = pc.list_value_length(table["at"])
    if len(table) and pc.min(lengths).as_py() < 1:
        raise DamagedFileError("a run has no measurements")
    curves = _curve_names(table.schema)
    for name in ("at", *curves):
        own = pc.list_value_length(table[name])  # null where not measured
        if not pc.all(pc.equal(own, lengths)).as_py() and own.null_count < len(table):
            raise DamagedFileError(f"the curve {name!r} does not have one value per measurement")
        if pc.list_flatten(table[name]).null_count:
            raise DamagedFileError(f"{name} has missing values")
    measured = sum((table[name].is_valid().to_numpy().astype(int) for name in curves), np.zeros(len(table), int))
    if not measured.all():
        raise DamagedFileError("a run has no curves")
    ids = table["id"].to_pylist()
    if len(set(ids)) < len(ids):
        raise DamagedFileError("a run occurs twice")
    settings = table.select([name for name in SETTINGS if name in table.schema.names])
    for id, row in zip(ids, settings.to_pylist(), strict=True):
        run = run_of(row)
        if run.id != id:
            raise DamagedFileError(f"the id {id} does not match the settings of its run")
        if results < results_version(run):
            raise OutdatedResultsError(f"it holds results of version {results}, not {results_version(run)}")
