"""The folder that an evaluation is saved to."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import EvaluationError, first_line


def make_folder(folder: str | Path) -> Path:
    """A folder that files can be written to.

    Raises:
        EvaluationError: it cannot be made, or not be written to.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise EvaluationError(f"results cannot be written to the folder {folder}: {first_line(error)}") from error
    return folder


@contextmanager
def made_folder(folder: str | Path | None) -> Iterator[None]:
    """Make the folder before work that ends with writing to it. A new one is removed if the work fails."""
    if folder is None:
        yield
        return
    is_new = not Path(folder).exists()
    made = make_folder(folder)
    try:
        yield
    except BaseException:
        if is_new and not any(made.iterdir()):
            made.rmdir()
        raise
