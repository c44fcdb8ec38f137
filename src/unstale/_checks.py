"""Checks of arguments that several modules share."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor


def is_number(value: Any) -> bool:
    """Whether ``value`` is one real number, possibly infinite or NaN: of Python, of numpy, or a tensor of one entry."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and is_real(value)
    return isinstance(value, Real) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Whether ``value`` is one real number that fits into a float and is finite."""
    try:
        return is_number(value) and math.isfinite(value)
    except OverflowError:
        return False


def as_scalar(value: Any) -> float | Tensor:
    """A checked number as torch takes it: a tensor ``[]``, which is not read, or a float (no int beyond 64 bits)."""
    return value.reshape(()) if isinstance(value, Tensor) else float(value)


def as_float(name: str, value: Any) -> float:
    """A number as a float; or an error, also for whole numbers that are too large for one."""
    if not is_number(value):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large for floating point.") from None


def is_count(value: Any, least: int = 1, most: float = math.inf) -> bool:
    """Whether ``value`` is a whole number from ``least`` to ``most``; 3.0 is one."""
    return not isinstance(value, Tensor) and is_finite(value) and value == value // 1 and least <= value <= most


def is_readable(tensor: Tensor) -> bool:
    """Whether a check may look at the values: not on a GPU, which would have to be waited for, nor while tracing."""
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return tensor.device.type == "cpu" and tensor.layout == torch.strided


def is_real(tensor: Tensor) -> bool:
    """Whether a tensor holds real numbers; flags are none."""
    return tensor.dtype != torch.bool and not tensor.is_complex()


def check_tensor(name: str, value: Any) -> None:
    """Raise TypeError unless ``value`` is a dense tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, not {type(value).__name__}. Use torch.as_tensor({name}).")
    if value.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, not {value.layout}. Use {name}.to_dense().")


def check_floating(name: str, value: Any) -> None:
    """Raise TypeError unless ``value`` is a dense tensor of floating-point numbers."""
    check_tensor(name, value)
    if not value.is_floating_point():
        raise TypeError(f"{name} must be floating point, not {value.dtype}. Use {name}.float().")


def check_positive(name: str, value: Any) -> float:
    """A positive finite number as a float; or an error."""
    if not is_number(value):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}.")
    if not is_finite(value):
        raise ValueError(f"{name} must be finite, got {value}.")
    return float(value)
