"""The provenance of results: versions, machine and commit. No names of users, hosts or folders."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import unstale

from .processes import usable_cores

PACKAGES = Path(unstale.__file__).parent, Path(__file__).parent
CPUINFO = Path("/proc/cpuinfo")


def provenance(device: str) -> dict[str, str]:
    """What is stored with every run; ``device`` is the name of its device. Unknown values are empty."""
    return {
        "unstale_version": unstale.__version__,
        "torch_version": _version("torch"),
        "python_version": platform.python_version(),
        "machine": machine(),
        "device": device,
        "commit": commit(PACKAGES),
        "data": "",  # the fingerprint of data files, for problems that read some
    }


@cache
def machine() -> str:
    """The processors and the number of usable cores: ``"2 × AMD EPYC 9654, 384 logical cores"``."""
    name, sockets = _processors(CPUINFO.read_text() if CPUINFO.exists() else "")
    name = name or platform.processor() or platform.machine()
    cores = usable_cores()
    return f"{f'{sockets} × ' if sockets > 1 else ''}{name}, {cores} logical core{'s' if cores > 1 else ''}"


@cache
def commit(packages: tuple[Path, ...]) -> str:
    """The commit of the packages' checkout, with ``+changes`` if their files differ from it.

    Empty if a package is not part of a checkout, for example if it is installed inside one of another project.
    """
    try:
        for package in packages:
            _git(package, "ls-files", "--error-unmatch", "__init__.py")
        heads = dict.fromkeys(_git(package, "rev-parse", "--short=12", "HEAD") for package in packages)
        is_changed = any(_git(package, "status", "--porcelain", "--", ".") for package in packages)
    except (OSError, subprocess.SubprocessError):
        return ""
    return " and ".join(heads) + ("+changes" if is_changed else "")


def _git(folder: Path, *arguments: str) -> str:
    # Without optional locks, this does not interfere with other git commands.
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
