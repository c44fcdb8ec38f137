"""Memory of a training step, as far as the device lets it be known.

On CUDA the allocator counts, so a step's true peak is measured. On a CPU nothing counts reliably: the size of what
the optimizer keeps is summed up, and the growth of the process during a step is reported beside it where the system
tells. The latter is a lower bound, since a step may reuse memory that the process had freed but not returned.
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
    """Bytes that tensors take now; 0 on a CPU, where nobody counts them."""
    gc.collect()
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def peak(step: Callable[[], None], device: torch.device, before: int) -> int:
    """Most bytes that tensors took at any time of a step on CUDA, less what was allocated ``before``."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def state_bytes(state: Any) -> int:
    """Bytes of all tensors in nested containers, each storage counted once."""
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
    """Bytes by which the process grew at most during a step, or None where the system does not tell."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # forget the high-water mark
        before = _resident("VmRSS")
        step()
        return max(0, _resident("VmHWM") - before)
    except (OSError, AttributeError):
        return None


def _resident(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise OSError(f"no {field} here")
    return int(found[1]) * 1024
