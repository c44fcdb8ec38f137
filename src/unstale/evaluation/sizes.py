"""The memory that the data of a file takes, from what the file declares, before it is unpacked."""

from __future__ import annotations

import math
from typing import IO, Any, NamedTuple

import numpy as np


class NpyHeader(NamedTuple):
    """The header of an array in the npy format."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def exceeds(self, size: int) -> bool:
        """Whether it declares more data than ``size`` bytes. Always true for Python objects, whose size is unknown."""
        return self.dtype.hasobject or math.prod(self.shape) * self.dtype.itemsize > size


def read_npy_header(file: IO[bytes]) -> NpyHeader:
    """The header of a file that is open at its start."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    return NpyHeader(shape, dtype)


def parquet_column_bytes(metadata: Any, number: int) -> int:
    """The bytes that a column takes in memory.

    Args:
        metadata: a ``pyarrow.parquet.FileMetaData``.
        number: of the column among the leaves of the schema.
    """
    chunks = [metadata.row_group(group).column(number) for group in range(metadata.num_row_groups)]
    # Repeated values take no room in the file, but 8 bytes each in memory.
    width = max(8, metadata.schema.column(number).length or 0)
    return sum(max(chunk.total_uncompressed_size, width * chunk.num_values) for chunk in chunks)
