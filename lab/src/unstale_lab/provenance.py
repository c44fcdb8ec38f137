"""Where a number was made: versions, machine and commit. Nothing that names a person, a host or a folder."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import unstale

PACKAGE = Path(unstale.__file__).parent
CPUINFO = Path("/proc/cpuinfo")


def provenance(device: str) -> dict[str, str]:
    """What is kept beside every run; ``device`` is where it was computed, in words. Unknown parts are empty."""
    return {
        "unstale_version": unstale.__version__,
        "torch_version": _version("torch"),
        "python_version": platform.python_version(),
        "machine": machine(),
        "device": device,
        "commit": commit(PACKAGE),
        "data": "",  # of a problem that reads some: what tells it from other data
    }


@cache
def machine() -> str:
    """The processors and how many cores of them there are to use: ``"2 × AMD EPYC 9654, 384 logical cores"``."""
    name, sockets = _processors(CPUINFO.read_text() if CPUINFO.exists() else "")
    name = name or platform.processor() or platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{f'{sockets} × ' if sockets > 1 else ''}{name}, {cores} logical core{'s' if cores > 1 else ''}"


@cache
def commit(package: Path) -> str:
    """The commit that the package was checked out from, with ``+changes`` where its files differ from it.

    Empty where it was not: a package installed inside a checkout of something else is not part of that.
    """
    try:
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        head = _git(package, "rev-parse", "--short=12", "HEAD")
        return head + ("+changes" if _git(package, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path, *arguments: str) -> str:
    # Without optional locks, looking does not disturb whoever works in the checkout.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()


def _processors(cpuinfo: str) -> tuple[str, int]:
    """The model and the number of sockets, from the text of ``/proc/cpuinfo``."""
    pairs = [line.partition(":") for line in cpuinfo.splitlines()]
    values = [(key.strip(), value.strip()) for key, _, value in pairs]
    names = [value for key, value in values if key == "model name"]
    sockets = {value for key, value in values if key == "physical id"}
    return " ".join(names[0].split()) if names else "", max(1, len(sockets))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
