"""What a result was measured on, and how to measure it again."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import unstale


def describe(device: torch.device) -> dict[str, Any]:
    """The machine, how busy it is, and the versions, in plain values."""
    about: dict[str, Any] = dict(
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
        about["gpu"] = torch.cuda.get_device_name(device)
        about["cuda"] = torch.version.cuda
    return about


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
