"""Reads logged transitions: npz, Parquet, HDF5, and Minari datasets.

Columns, one row per transition, episodes one after another:

=====================  ===========================================================================================
``observations``       ``[N, ...]`` numbers, or ``[N]`` whole numbers for numbered states
``actions``            ``[N]`` whole numbers, or ``[N, size]`` real numbers
``rewards``            ``[N]``
``terminated``         ``[N]``, whether the episode terminated with this transition
``truncated``          ``[N]``, whether it was cut off there; optional
``next_observations``  as ``observations``; optional. Without it the next row's observation is taken, and the last
                       row of a truncated episode is dropped, because its next state is not known
=====================  ===========================================================================================
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..corrections.memory import free_bytes
from .errors import EvaluationError, MissingPackageError, first_line, require
from .sizes import parquet_column_bytes, read_npy_header
from .spaces import ActionSpace, Array, Box, Discrete, action_space
from .transitions import Transitions

SUFFIXES = (".npz", ".parquet", ".h5", ".hdf5")
REQUIRED = ("observations", "actions", "rewards", "terminated")
OPTIONAL = ("truncated", "next_observations")
MAX_BYTES = 64 << 30  # of all columns, and at most half of the free memory
FLAGS = ("terminated", "truncated")


def is_data(source: object) -> bool:
    """Whether a source of transitions is a file or a dataset, and not an environment."""
    return isinstance(source, Mapping | Path) or (
        isinstance(source, str) and (source.startswith("minari:") or source.lower().endswith(SUFFIXES))
    )


def read(
    source: str | Path | Mapping[str, Any], space: ActionSpace | None = None, states: int | None = None
) -> Transitions:
    """Logged transitions.

    Args:
        source: a file, ``"minari:<dataset>"``, or a mapping of columns to arrays.
        space: the action space; found from the actions if it is not given.
        states: how many states there are, if they are numbered; found from the observations if it is not given.

    Raises:
        EvaluationError: the data is malformed.
    """
    if isinstance(source, Mapping):
        return _transitions(source, "the data", space, states)
    if str(source).startswith("minari:"):
        return _read_minari(str(source).removeprefix("minari:"), space, states)
    path = Path(source)
    if not path.is_file():
        raise EvaluationError(f"there is no file {path}.")
    if path.stat().st_size == 0:
        raise EvaluationError(f"{path} is empty.")
    reader = {".npz": _read_npz, ".parquet": _read_parquet}.get(path.suffix.lower(), _read_hdf5)
    try:
        columns = reader(path)
    except (EvaluationError, MissingPackageError):
        raise
    except Exception as error:  # every library has its own exceptions for malformed files
        raise EvaluationError(f"{path} is truncated or malformed: {first_line(error)}") from error
    return _transitions(columns, str(path), space, states)


def _read_npz(path: Path) -> dict[str, Array]:
    if not zipfile.is_zipfile(path):
        raise EvaluationError(f"{path} is truncated or not a file of numpy.savez.")
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}
        names = [name for name in (*REQUIRED, *OPTIONAL) if f"{name}.npy" in members]
        _check_bytes(path, sum(members[f"{name}.npy"].file_size for name in names))
        return {name: _read_npy(archive, members[f"{name}.npy"], path) for name in names}


def _read_npy(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> Array:
    """An array of an archive, if it is not larger than its member."""
    with archive.open(member) as file:
        header = read_npy_header(file)
    if header.exceeds(member.file_size):
        raise EvaluationError(f"{path} is malformed: {member.filename} has less data than its header declares.")
    with archive.open(member) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _max_bytes() -> int:
    """The most bytes of data that are read, by the memory that is free now."""
    free = free_bytes(torch.device("cpu"))
    return MAX_BYTES if free is None else min(MAX_BYTES, free // 2)


def _check_bytes(where: object, size: float, limit: float | None = None) -> None:
    """Refuse data that would not fit into memory, before it is unpacked."""
    limit = _max_bytes() if limit is None else limit
    if size > limit:
        raise EvaluationError(
            f"{where} has {size / 2**30:,.1f} GiB of data when unpacked, and at most {limit / 2**30:,.1f} GiB are "
            "read; give fewer transitions."
        )


def _read_parquet(path: Path) -> dict[str, Array]:
    parquet = require("pyarrow.parquet", "pyarrow")
    about = parquet.read_metadata(path)
    names = [name for name in (*REQUIRED, *OPTIONAL) if name in about.schema.to_arrow_schema().names]
    _check_bytes(path, _parquet_bytes(about, names, path))
    # Without threads, so that nothing goes on reading a damaged file after the error.
    with parquet.ParquetFile(path, pre_buffer=False) as file:
        table = file.read(columns=names, use_threads=False)
    found = {}
    for name in names:
        column = table[name].to_numpy()
        found[name] = np.array(column.tolist()) if column.dtype == object else column
    return found


def _parquet_bytes(about: Any, names: Sequence[str], path: Path) -> int:
    """The bytes that columns of numbers take in memory. Text is refused: its size there is not known from the file."""
    total = 0
    for number in range(about.num_columns):
        column = about.schema.column(number)
        name = column.path.partition(".")[0]  # the path of a list goes on with its elements
        if name not in names:
            continue
        if column.physical_type == "BYTE_ARRAY":
            raise EvaluationError(f"the column {name} of {path} does not hold real numbers of one shape.")
        total += parquet_column_bytes(about, number)
    return total


def _read_hdf5(path: Path) -> dict[str, Array]:
    h5py = require("h5py", "h5py")
    with h5py.File(path, "r") as file:
        found = {name: file[name] for name in (*REQUIRED, *OPTIONAL) if name in file}
        if not all(isinstance(dataset, h5py.Dataset) for dataset in found.values()):
            raise EvaluationError(f"{path} is malformed: its columns have to be datasets.")
        _check_bytes(path, sum(dataset.size * dataset.dtype.itemsize for dataset in found.values()))
        return {name: np.asarray(dataset) for name, dataset in found.items()}


def _read_minari(name: str, space: ActionSpace | None, states: int | None) -> Transitions:
    minari = require("minari", "minari")
    try:
        dataset = minari.load_dataset(name)
        episodes = _read_episodes(dataset, f"the Minari dataset {name}")
        space = space or action_space(dataset.action_space)
    except EvaluationError:
        raise
    except Exception as error:
        raise EvaluationError(f"the Minari dataset {name} cannot be read: {first_line(error)}") from error
    if not episodes:
        raise EvaluationError(f"the Minari dataset {name} has no episodes.")
    columns = {
        "observations": [one.observations[:-1] for one in episodes],
        "next_observations": [one.observations[1:] for one in episodes],
        "actions": [one.actions for one in episodes],
        "rewards": [one.rewards for one in episodes],
        "terminated": [one.terminations for one in episodes],
        # An episode of a dataset ends where it ends, whether a flag says so or not.
        "truncated": [np.arange(len(one.rewards)) == len(one.rewards) - 1 for one in episodes],
    }
    return _transitions({column: np.concatenate(parts) for column, parts in columns.items()}, name, space, states)


def _read_episodes(dataset: Any, where: str) -> list[Any]:
    """All episodes, unless they are too large; how large is known only when they are read."""
    episodes, size, limit = [], 0, _max_bytes()
    for one in dataset.iterate_episodes():
        if isinstance(one.observations, dict | tuple):
            raise EvaluationError(f"the observations of {where} have to be arrays.")
        parts = (one.observations, one.observations, one.actions, one.rewards)  # next_observations are a copy
        size += sum(np.asarray(part).nbytes for part in parts)
        _check_bytes(where, size, limit)
        episodes.append(one)
    return episodes


def _transitions(columns: Mapping[str, Any], where: str, space: ActionSpace | None, states: int | None) -> Transitions:
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise EvaluationError(f"{where} has no column {missing[0]}; it needs {', '.join(REQUIRED)}.")
    arrays = {name: np.asarray(columns[name]) for name in (*REQUIRED, *OPTIONAL) if name in columns}
    rows = len(arrays["rewards"]) if arrays["rewards"].ndim else 1
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise EvaluationError(f"the column {name} of {where} does not hold real numbers of one shape.")
        if array.shape[:1] != (rows,):
            count = len(array) if array.ndim else 0
            raise EvaluationError(f"the column {name} of {where} has {count} rows, but rewards has {rows}.")
    if rows == 0:
        raise EvaluationError(f"{where} has no rows.")
    for name in ("rewards", "terminated", "truncated"):
        if name in arrays and arrays[name].ndim != 1:
            raise EvaluationError(f"the column {name} of {where} has shape {arrays[name].shape}, but needs [N].")
    terminated, truncated = (_flags(arrays.get(name, np.zeros(rows)), name, where) for name in FLAGS)
    observations, keep = arrays["observations"], slice(None)
    if "next_observations" in arrays:
        following = arrays["next_observations"]
        if following.shape != observations.shape:
            raise EvaluationError(
                f"next_observations of {where} has shape {following.shape}, but observations {observations.shape}."
            )
    else:
        following, keep, truncated = _shifted(observations, terminated, truncated)
    space = space or _found_space(arrays["actions"])
    actions = space.check(arrays["actions"], where)
    numbered = observations.ndim == 1 and np.issubdtype(observations.dtype, np.integer)
    return Transitions(
        observations[keep],
        actions[keep],
        arrays["rewards"].astype(np.float64)[keep],
        following[keep],
        terminated[keep],
        truncated[keep],
        space,
        _count_states(observations, following, where, states) if numbered else None,
    )


def _flags(column: Array, name: str, where: str) -> Array:
    if not np.isin(column, (0, 1)).all():
        wrong = column[~np.isin(column, (0, 1))][0]
        raise EvaluationError(f"the column {name} of {where} has the entry {wrong}; use true and false, or 1 and 0.")
    return column.astype(bool)


def _count_states(observations: Array, following: Array, where: str, states: int | None) -> int:
    low, high = min(observations.min(), following.min()), max(observations.max(), following.max())
    if low < 0 or (states is not None and high >= states):
        most = "" if states is None else f" to {states - 1}"
        raise EvaluationError(f"observations of {where} go from {low} to {high}, but states are numbered from 0{most}.")
    return int(high) + 1 if states is None else states


def _shifted(observations: Array, terminated: Array, truncated: Array) -> tuple[Array, Any, Array]:
    """Next observations from the following rows, the rows that have one, and truncation of the rows before dropped."""
    following = np.concatenate([observations[1:], observations[-1:]])
    cut = truncated & ~terminated
    cut[-1] |= not terminated[-1]
    # The row before a dropped one becomes the last of its episode, unless its own episode had ended before.
    ends = np.concatenate([cut[1:], [False]]) & ~(terminated | truncated)
    return following, ~cut, (truncated | ends)


def _found_space(actions: Array) -> ActionSpace:
    if np.issubdtype(actions.dtype, np.integer) and actions.ndim == 1:
        return Discrete(int(actions.max()) + 1)
    unbounded = np.full(actions.shape[1:], np.inf)
    return Box(-unbounded, unbounded)
