"""The entry point of ``unstale-lab``: runs a command, and turns errors into messages and exit codes.

Exit codes: 0 for success, 2 for errors that a user can fix, 130 after Ctrl-C. Other errors keep their traceback.
This module imports nothing slow, so that Ctrl-C is handled while the rest is imported.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from .errors import LabError

INTERRUPTED = "interrupted. Finished work is saved; run the same command again to continue."


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line; ``sys.argv`` by default."""
    try:
        with _exit_on_interrupted_import():
            _replace_unencodable()
            from .commands import run

            run(arguments)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        sys.exit(130)
    except (LabError, OSError) as error:
        _exit_with_error(str(error))
    except RuntimeError as error:
        # torch raises several types for it, with these words in common
        if "CUDA" not in str(error) or "out of memory" not in str(error):
            raise
        _exit_with_error("the GPU is out of memory. Use fewer processes with --jobs, or end others that use the GPU.")


@contextmanager
def _exit_on_interrupted_import() -> Iterator[None]:
    """Makes Ctrl-C end the process at once while a module is imported.

    Some packages catch the ``KeyboardInterrupt`` during their import, or turn it into another error, and are left half
    initialized.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, or handled by an application that calls ``main``
        yield
        return
    signal.signal(signal.SIGINT, _handle_sigint)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _handle_sigint(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            print(INTERRUPTED, file=sys.stderr, flush=True)
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def _replace_unencodable() -> None:
    """Prints ``?`` for characters that the encoding of the terminal lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _exit_with_error(message: str) -> NoReturn:
    print(f"unstale-lab: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
