"""Downloads the official files of SVHN."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from ..errors import DataError, one_line
from ..files import atomic_write

SOURCE = "http://ufldl.stanford.edu/housenumbers/"
CHECKSUMS = {  # MD5; the files have 182 and 64 MB
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
CHUNK = 1 << 20  # bytes
TIMEOUT = 60  # seconds without data

Progress = Callable[[str, int, int], None]  # called with a file name, bytes received, and total bytes (0: unknown)


def download(folder: Path, progress: Progress = lambda name, received, total: None, source: str = SOURCE) -> None:
    """Downloads the files that are not in the folder yet, and verifies their checksums."""
    for name, checksum in CHECKSUMS.items():
        path, url = folder / name, source + name
        try:
            if not path.exists() or _checksum(path) != checksum:
                _download(url, path, checksum, partial(progress, name))
        except (OSError, HTTPException) as error:
            raise DataError(
                f"cannot download {url} to {path}: {one_line(error)}. Try again, or put the file there yourself."
            ) from error


def _download(url: str, path: Path, checksum: str, progress: Callable[[int, int], None]) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    with urlopen(url, timeout=TIMEOUT) as answer, atomic_write(path) as file:
        total = int(answer.headers.get("Content-Length") or 0)
        while chunk := answer.read(CHUNK):
            file.write(chunk)
            digest.update(chunk)
            progress(file.tell(), total)
        if digest.hexdigest() != checksum:
            raise OSError(f"the {file.tell():,} bytes received have MD5 {digest.hexdigest()}, not {checksum}")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
