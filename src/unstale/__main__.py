"""The command ``unstale``: what is installed here, for bug reports."""

from __future__ import annotations

import argparse
import platform

import torch

import unstale


def describe() -> str:
    """Versions, devices and corrections, one per line."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return "\n".join(
        [
            f"unstale      {unstale.__version__}",
            f"torch        {torch.__version__}",
            f"python       {platform.python_version()}",
            f"gpu          {gpu}",
            f"corrections  {', '.join(unstale.corrections.NAMES)}",
        ]
    )


def main(arguments: list[str] | None = None) -> None:
    """Print :func:`describe`."""
    parser = argparse.ArgumentParser(
        prog="unstale",
        description="Say which versions of unstale, torch and Python are installed, on which device, for bug reports. "
        "The paper's experiments are run by unstale-lab, from a clone of the repository.",
    )
    parser.add_argument("--version", action="version", version=unstale.__version__)
    parser.parse_args(arguments)
    print(describe())


if __name__ == "__main__":
    main()
