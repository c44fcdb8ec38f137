"""Floating-point precision of matrix products and convolutions on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

PRECISIONS = ("float32", "float64", "tf32")


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Set the precision of float32 products on a GPU, and let cuDNN pick the fastest convolution algorithms.

    Args:
        precision: ``"tf32"`` allows TF32; any other value requires full float32.
    """
    allow_tf32 = precision == "tf32"
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allow_tf32 else "highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=allow_tf32):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
