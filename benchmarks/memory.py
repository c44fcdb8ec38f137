"""Memory of a training step.

On CUDA the allocator reports the true peak of a step. On a CPU there is no reliable count: the size of the optimizer's
state is summed, and the growth of the resident set during a step is reported where the system provides it. The latter
is a lower bound, because a step may reuse memory that the process has freed but not returned.
"""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MIB = 2**20


def allocated(device: torch.device) -> int:
    """Return the bytes of all tensors on CUDA; 0 on a CPU."""
    gc.collect()
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def peak(step: Callable[[], None], device: torch.device, before: int) -> int:
    """Return the peak of allocated bytes during a step (or several) on CUDA, minus ``before``."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def state_bytes(state: Any) -> int:
    """Return the bytes of all tensors in nested containers, each storage counted once."""
    storages: dict[int, int] = {}

    def visit(value: Any) -> None:
        if isinstance(value, Tensor):
            storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, dict):
            for part in value.values():
                visit(part)
        elif isinstance(value, list | tuple):
            for part in value:
                visit(part)

    visit(state)
    return sum(storages.values())


def resident_growth(step: Callable[[], None]) -> int | None:
    """Return the peak growth of the process in bytes during a step (or several); None if it is not reported."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # reset the high-water mark
        before = _resident("VmRSS")
        step()
        return max(0, _resident("VmHWM") - before)
    except (OSError, AttributeError):
        return None


def _resident(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise OSError(f"no {field} in /proc/self/status")
    return int(found[1]) * 1024
