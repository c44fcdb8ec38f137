"""How precisely a GPU multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def products(precision: str) -> Iterator[None]:
    """How precisely a GPU multiplies float32, and that it looks for the quickest way to convolve."""
    rounds = precision == "tf32"
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if rounds else "highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=rounds):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
