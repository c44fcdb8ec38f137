"""The official files of SVHN, from where its authors keep them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from ..mistakes import UserError

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
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(
                f"cannot download {url} to {path}: {reason}. You may put the file there yourself."
            ) from error


def _download(url: str, path: Path, checksum: str, progress: Callable[[int, int], None]) -> None:
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with urlopen(url, timeout=TIMEOUT) as answer, unfinished.open("wb") as file:
            total = int(answer.headers.get("Content-Length") or 0)
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                progress(file.tell(), total)
        found = _checksum(unfinished)
        if found != checksum:
            raise OSError(f"what came, {unfinished.stat().st_size:,} bytes, has the checksum {found}, not {checksum}")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
