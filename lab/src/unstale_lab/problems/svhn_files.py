"""The pictures of SVHN, from the official files or from a folder of lossless sheets.

Sheets are ``train_00.webp``, ``train_01.webp``, … of 2,500 pictures in reading order, 50 across, the last with as many
rows as it needs. ``train_y.npy`` holds their labels, the digits themselves. The test set likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import DataError, one_line

SIDE = 32  # of a picture, in pixels
ACROSS, ON_A_SHEET = 50, 2500  # pictures
SPLITS = ("train", "test")
FORMS = (
    "train_32x32.mat and test_32x32.mat, which `unstale-lab fetch-svhn` downloads, "
    "or the sheets train_00.webp, … and test_00.webp, … with train_y.npy and test_y.npy"
)

Read = TypeVar("Read")


@dataclass(frozen=True)
class Labelled:
    """Photographs, and the digit in the middle of each."""

    image: Tensor  # uint8 [pictures, 3, 32, 32]
    label: Tensor  # int64 [pictures], 0 to 9


@dataclass(frozen=True)
class Photographs:
    train: Labelled
    test: Labelled


def load_pictures(folder: Path) -> Photographs:
    """The form that is whole in the folder, the official one if both are; a ``DataError`` of one line if none is."""
    found = []
    for read, endings in ((_official, ["32x32.mat"]), (_from_sheets, ["y.npy", "00.webp"])):
        names = [f"{split}_{ending}" for split in SPLITS for ending in endings]
        there = [name for name in names if (folder / name).is_file()]
        if there == names:
            return Photographs(*(read(folder, split) for split in SPLITS))
        found += there
    raise _refused(folder, f"there is only {', '.join(found)}" if found else "none of its files is there")


def _official(folder: Path, split: str) -> Labelled:
    from scipy.io import loadmat  # slow to import, and nothing else needs it

    name = f"{split}_32x32.mat"
    data = _opened(folder, name, loadmat)
    image, label = (np.asarray(data.get(variable, ())) for variable in ("X", "y"))
    if image.dtype != np.uint8 or image.shape != (SIDE, SIDE, 3, label.size):
        raise _refused(folder, f"{name} holds {_kind(image)} for {label.size} labels")
    digits = _checked(folder, name, label, lowest=1) % 10  # 10 is the digit 0
    return Labelled(torch.from_numpy(np.ascontiguousarray(image.transpose(3, 2, 0, 1))), torch.from_numpy(digits))


def _from_sheets(folder: Path, split: str) -> Labelled:
    name = f"{split}_y.npy"
    label = _checked(folder, name, _opened(folder, name, _array), lowest=0)
    image = torch.empty(len(label), 3, SIDE, SIDE, dtype=torch.uint8)
    for number, part in enumerate(image.split(ON_A_SHEET)):
        name, rows = f"{split}_{number:02}.webp", -(-len(part) // ACROSS)
        sheet = _opened(folder, name, _pixels)
        if sheet.shape != (rows * SIDE, ACROSS * SIDE, 3):
            raise _refused(folder, f"{name} holds {_kind(sheet)}, not {rows} rows of {ACROSS} pictures")
        pictures = sheet.reshape(rows, SIDE, ACROSS, SIDE, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, SIDE, SIDE)
        part.copy_(torch.from_numpy(pictures[: len(part)]))
    return Labelled(image, torch.from_numpy(label))


def _opened(folder: Path, name: str, read: Callable[[Path], Read]) -> Read:
    try:
        return read(folder / name)
    except Exception as error:  # scipy and Pillow meet a damaged file with nearly any of them
        raise _refused(folder, f"{name} cannot be read, {type(error).__name__}: {error}") from error


def _array(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        array: np.ndarray = np.lib.format.read_array(file)
    return array


def _pixels(path: Path) -> np.ndarray:
    with Image.open(path) as sheet:
        return np.array(sheet.convert("RGB"))


def _checked(folder: Path, name: str, label: np.ndarray, lowest: int) -> np.ndarray:
    """Labels of ten digits from the lowest on, as a vector of int64."""
    digits = label.reshape(-1)
    if not digits.size or digits.dtype.kind not in "iu" or digits.min() < lowest or digits.max() > lowest + 9:
        raise _refused(folder, f"the labels in {name}, {_kind(label)}, are not numbers from {lowest} to {lowest + 9}")
    return digits.astype(np.int64)


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _refused(folder: Path, why: str) -> DataError:
    return DataError(
        f"cannot load SVHN from {folder}: {one_line(why)}. It takes {FORMS}; UNSTALE_DATA names another folder."
    )
