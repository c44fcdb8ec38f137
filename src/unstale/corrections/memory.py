"""How much memory a correction will take, estimated before the first allocation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .reservoir import ReservoirPlan
from .select import Plan, Sizes, block_lengths

MAX_SHARE = 0.5  # of the free memory
GIB = 1 << 30


def bytes_needed(plan: Plan, settings: dict[str, Any], sizes: Sizes, lengths: Sequence[int]) -> int:
    """An estimate of what the correction keeps between steps, without vectors of the size of the parameters."""
    followed = sizes.get("followed", 0)
    numbers = 0
    if plan["correction"] == "dense":
        numbers = sizes["parameters"] * (sizes["parameters"] + followed)
    elif plan["correction"] == "blocks":
        numbers = sum(length**2 for length in block_lengths(settings, lengths)) * (2 if followed else 1)
    elif plan["correction"] == "window":
        numbers = plan["horizon"] * sizes["batch"] * sizes["slot_numbers"]
    elif plan["reservoir"] is not None:
        numbers = ReservoirPlan(*plan["reservoir"]).slots * sizes["slot_numbers"]
    return numbers * sizes["itemsize"]


def free_bytes(device: torch.device) -> int | None:
    """The free memory of a device; None if it is not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    info = Path("/proc/meminfo")
    if device.type != "cpu" or not info.exists():
        return None
    found = [line.split()[1] for line in info.read_text().splitlines() if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def check_memory(needed: int, limit: float | None, device: torch.device, plan: Plan) -> None:
    """Raise if a correction would take more than ``limit`` bytes; by default, half of the free memory."""
    if limit is None:
        free = free_bytes(device)
        if free is None or needed <= MAX_SHARE * free:
            return
        bound = f"half of the free memory of {device}, {MAX_SHARE * free / GIB:.3g} GiB"
    elif needed <= limit:
        return
    else:
        bound = f"memory_limit, {float(limit) / GIB:.3g} GiB"
    advice = {
        "dense": "Use correction='reservoir'",
        "blocks": "Use a smaller block_size, or correction='reservoir'",
        "window": "Use a smaller horizon, or correction='reservoir'",
    }.get(plan["correction"], "Give fewer slots")
    raise MemoryError(
        f"correction={plan['correction']!r} would take about {needed / GIB:.3g} GiB, more than {bound}. {advice}, or "
        "allow more with memory_limit, in bytes."
    )
