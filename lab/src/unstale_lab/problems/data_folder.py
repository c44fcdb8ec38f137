"""Where large data lives."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder(name: str) -> Path:
    """The folder of that name in ``data``, or in the folder that the environment variable ``UNSTALE_DATA`` names."""
    return Path(os.environ.get("UNSTALE_DATA") or "data") / name
