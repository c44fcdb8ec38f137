"""Describes the machine and the versions of a measurement."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import unstale


def describe(device: torch.device) -> dict[str, Any]:
    """Return machine, load and versions as JSON values."""
    info: dict[str, Any] = dict(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        torch=torch.__version__,
        unstale=unstale.__version__,
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        date=datetime.now(UTC).date().isoformat(),
    )
    if device.type == "cuda":
        info["gpu"] = torch.cuda.get_device_name(device)
        info["cuda"] = torch.version.cuda
    return info


def _cpu() -> str:
    """Return the name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
