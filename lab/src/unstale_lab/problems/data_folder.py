"""The location of data that does not come with the package."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder(name: str) -> Path:
    """The subfolder of ``data``, or of the folder in the environment variable ``UNSTALE_DATA``."""
    return Path(os.environ.get("UNSTALE_DATA") or "data") / name
