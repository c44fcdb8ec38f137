"""The official files of SVHN, from where its authors keep them."""

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
CHECKSUMS = {  # MD5, of 182 and 64 MB
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}
CHUNK = 1 << 20  # bytes
TIMEOUT = 60  # seconds without a byte

Progress = Callable[[str, int, int], None]  # a file's name, its bytes that came, and all of them (0: nobody knows)


def fetch(folder: Path, progress: Progress = lambda name, came, total: None, source: str = SOURCE) -> None:
    """Downloads what the folder does not have already. A file has its name only when its checksum is right."""
    for name, checksum in CHECKSUMS.items():
        path, url = folder / name, source + name
        try:
            if path.exists() and _checksum(path) == checksum:
                continue
            folder.mkdir(parents=True, exist_ok=True)
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
