"""Safetensors files with metadata, written atomically and checked when they are read.

The metadata holds the SHA-256 of tensors and other metadata, because the format itself notices no flipped bit. Files
made before there was one are read without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..errors import DataError, one_line
from ..files import write_file

DIGEST = "sha256"
HAS_DIGEST = "has_sha256"  # so that a flipped bit in the name of the digest does not make it an old file


@dataclass(frozen=True)
class TensorFile:
    """A file, what messages call it, and the command that makes it."""

    path: Path
    what: str
    command: str

    def write(self, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
        """Writes tensors, and ``about`` as metadata."""
        try:
            about = {**about, HAS_DIGEST: "yes"}
            write_file(self.path, save(tensors, {**about, DIGEST: _digest(tensors, about)}))
        except OSError as error:
            raise DataError(f"cannot write the {self.what} {self.path}: {error.strerror}") from error

    def read(self, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The tensors with these names, all finite, and the metadata."""
        try:
            with safe_open(self.path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dict
                about = dict(file.metadata() or {})
        except (OSError, SafetensorError) as error:
            raise self.refused(error) from error
        digest = about.pop(DIGEST, None)
        if (digest is not None or HAS_DIGEST in about) and digest != _digest(tensors, about):
            raise self.refused("it is damaged: its content does not match its digest")
        about.pop(HAS_DIGEST, None)
        if sorted(tensors) != sorted(names):
            raise self.refused(f"it holds {', '.join(sorted(tensors)) or 'nothing'} instead of {', '.join(names)}")
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise self.refused("some of its numbers are not finite")
        return tensors, about

    def refused(self, why: object) -> DataError:
        """The error that says why the file cannot be used, and how to make it."""
        if self.path.exists():
            reason, again = one_line(why), " again"
        else:
            reason, again = "there is no such file", ""
        return DataError(f"cannot use the {self.what} {self.path}: {reason}. Make it{again} with `{self.command}`.")


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    digest = hashlib.sha256(repr(sorted(about.items())).encode())
    for name in sorted(tensors):
        tensor = tensors[name].cpu().clone(memory_format=torch.contiguous_format)  # strides of its own, if expanded
        digest.update(repr((name, tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
