"""Options that several commands have, their checks, and messages to the terminal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from rich.console import Console
from tyro.conf import arg

from .errors import UserError

MAX_SEED = 2**32 - 1

Device = Annotated[str, arg(metavar="cpu|cuda", help="the device to compute on")]
DataPath = Annotated[
    Path | None,
    arg(name="data", metavar="FOLDER", help="the folder of images and recordings; if not given, $UNSTALE_DATA or data"),
]
Jobs = Annotated[int, arg(metavar="N", help="number of processes; 0: one per core, or one on a GPU")]
Seed = Annotated[int, arg(metavar="N", help="seed of all random numbers, at least 0")]

STDERR = Console(stderr=True, highlight=False)


def set_data_folder(folder: Path | None) -> None:
    """For this process and its workers."""
    if folder is not None:
        os.environ["UNSTALE_DATA"] = str(folder)


def check_seed(seed: int) -> None:
    if not 0 <= seed <= MAX_SEED:
        raise UserError(f"--seed {seed}: give a whole number from 0 to {MAX_SEED}")


def check_jobs(jobs: int) -> int:
    if jobs < 0:
        raise UserError(f"--jobs {jobs}: give at least 1, or 0 for one process per core")
    return jobs


def inform(text: str) -> None:
    STDERR.print(text, markup=False, soft_wrap=True)


def warn(text: str) -> None:
    STDERR.print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)
