"""Reads the images of SVHN from the official files, or from a folder of lossless contact sheets.

The sheets are ``train_00.webp``, ``train_01.webp``, ... with 2,500 images each in reading order, 50 per row; the last
sheet has as many rows as it needs. ``train_y.npy`` holds the labels, 0 to 9. The test set has the same layout.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unstale.evaluation.sizes import read_npy_header

from ..errors import DataError, one_line

SIDE = 32  # pixels
IMAGES_PER_ROW, IMAGES_PER_SHEET = 50, 2500
MAX_IMAGES = 1_000_000  # of a file; the largest official one has 531,131
SPLITS = ("train", "test")
FORMS = (
    "train_32x32.mat and test_32x32.mat, which `unstale-lab data svhn` downloads, "
    "or the sheets train_00.webp, ... and test_00.webp, ... with train_y.npy and test_y.npy"
)

Read = TypeVar("Read")


@dataclass(frozen=True)
class Labelled:
    """Images and their labels."""

    image: Tensor  # uint8 [images, 3, 32, 32]
    label: Tensor  # int64 [images], 0 to 9


@dataclass(frozen=True)
class Splits:
    """The training set and the test set."""

    train: Labelled
    test: Labelled


def load_images(folder: Path) -> Splits:
    """Reads the official files if both are in the folder, the contact sheets otherwise.

    Raises:
        DataError: neither form is complete, or a file is damaged.
    """
    found = []
    for read, endings in ((_read_official, ["32x32.mat"]), (_read_sheets, ["y.npy", "00.webp"])):
        names = [f"{split}_{ending}" for split in SPLITS for ending in endings]
        there = [name for name in names if (folder / name).is_file()]
        if there == names:
            return Splits(*(read(folder, split) for split in SPLITS))
        found += there
    raise _refused(folder, f"there is only {', '.join(found)}" if found else "none of its files is there")


def _read_official(folder: Path, split: str) -> Labelled:
    name = f"{split}_32x32.mat"
    data = _open(folder, name, _read_mat)
    image, label = (np.asarray(data.get(variable, ())) for variable in ("X", "y"))
    if image.dtype != np.uint8 or image.shape != (SIDE, SIDE, 3, label.size):
        raise _refused(folder, f"{name} holds {_describe(image)} for {label.size} labels")
    digits = _check_labels(folder, name, label, lowest=1) % 10  # 10 is the digit 0
    return Labelled(torch.from_numpy(np.ascontiguousarray(image.transpose(3, 2, 0, 1))), torch.from_numpy(digits))


def _read_sheets(folder: Path, split: str) -> Labelled:
    name = f"{split}_y.npy"
    label = _check_labels(folder, name, _open(folder, name, _read_array), lowest=0)
    image = torch.empty(len(label), 3, SIDE, SIDE, dtype=torch.uint8)
    for number, part in enumerate(image.split(IMAGES_PER_SHEET)):
        name, rows = f"{split}_{number:02}.webp", -(-len(part) // IMAGES_PER_ROW)
        sheet = _open(folder, name, _read_pixels)
        if sheet.shape != (rows * SIDE, IMAGES_PER_ROW * SIDE, 3):
            raise _refused(folder, f"{name} holds {_describe(sheet)}, not {rows} rows of {IMAGES_PER_ROW} images")
        images = sheet.reshape(rows, SIDE, IMAGES_PER_ROW, SIDE, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, SIDE, SIDE)
        part.copy_(torch.from_numpy(images[: len(part)]))
    return Labelled(image, torch.from_numpy(label))


def _open(folder: Path, name: str, read: Callable[[Path], Read]) -> Read:
    try:
        return read(folder / name)
    except Exception as error:  # scipy and Pillow raise nearly any type for damaged files
        raise _refused(folder, f"{name} cannot be read, {type(error).__name__}: {error}") from error


def _read_mat(path: Path) -> dict[str, np.ndarray]:
    """The two variables of an official file, whose sizes are looked at before they are unpacked."""
    from scipy.io import loadmat, whosmat  # slow to import, and not needed for the sheets
    from scipy.io.matlab import MatReadWarning

    with warnings.catch_warnings():
        warnings.simplefilter("error", MatReadWarning)  # two variables of one name
        shapes = {variable: shape for variable, shape, _ in whosmat(path)}
        for variable in ("X", "y"):
            count = math.prod(shapes.get(variable, ()))
            if count > MAX_IMAGES * 3 * SIDE**2:
                raise ValueError(f"{variable} has shape {shapes[variable]}, more than {MAX_IMAGES:,} images")
        found: dict[str, np.ndarray] = loadmat(path, variable_names=["X", "y"])
    return found


def _read_array(path: Path) -> np.ndarray:
    with path.open("rb") as file:
        header = read_npy_header(file)
        if header.exceeds(path.stat().st_size):
            raise ValueError(f"it has less data than shape {header.shape} of {header.dtype} takes")
        file.seek(0)
        array: np.ndarray = np.lib.format.read_array(file)
    return array


def _read_pixels(path: Path) -> np.ndarray:
    with Image.open(path) as sheet:
        if sheet.width > IMAGES_PER_ROW * SIDE or sheet.height > IMAGES_PER_SHEET // IMAGES_PER_ROW * SIDE:
            raise ValueError(f"it has {sheet.width} x {sheet.height} pixels")
        return np.array(sheet.convert("RGB"))


def _check_labels(folder: Path, name: str, label: np.ndarray, lowest: int) -> np.ndarray:
    """The labels as a vector of int64. They must be from ``lowest`` to ``lowest + 9``."""
    digits = label.reshape(-1)
    if not digits.size or digits.dtype.kind not in "iu" or digits.min() < lowest or digits.max() > lowest + 9:
        raise _refused(folder, f"labels in {name} ({_describe(label)}) are not in {lowest} to {lowest + 9}")
    return digits.astype(np.int64)


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _refused(folder: Path, why: str) -> DataError:
    return DataError(
        f"cannot load SVHN from {folder}: {one_line(why)}. It needs {FORMS}. Set UNSTALE_DATA to use another folder."
    )
