"""The command ``unstale``: evaluates policies, and says what is installed, for bug reports."""

from __future__ import annotations

import argparse
import platform
import sys
from typing import NoReturn

import torch

import unstale
from unstale.evaluation.command import add_parser


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with the arguments, and where to read on."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. See {self.prog} --help\n")


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


def main(arguments: list[str] | None = None) -> int:
    """Print :func:`describe`, or run a command; return the exit status."""
    parser = Parser(
        prog="unstale",
        description="Without a command, say which versions of unstale, torch and Python are installed, and on which "
        "device, for bug reports. The paper's experiments are run by unstale-lab, from a clone of the repository.",
    )
    parser.add_argument("--version", action="version", version=unstale.__version__)
    add_parser(parser.add_subparsers(dest="command", metavar="command"))
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        getattr(parsed, "parser", parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if parsed.command is not None:
        return int(parsed.function(parsed))
    print(describe())
    return 0


if __name__ == "__main__":
    sys.exit(main())
