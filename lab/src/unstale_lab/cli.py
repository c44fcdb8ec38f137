"""The entry point of ``unstale-lab``: runs a command, and turns errors into messages and exit codes.

Exit codes: 0 for success, 2 for errors that a user can fix, 130 after Ctrl-C. Other errors keep their traceback.
This module imports nothing slow, so that Ctrl-C is handled while the rest is imported.
"""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

from .errors import LabError


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line; ``sys.argv`` by default."""
    try:
        _replace_unencodable()
        from .commands import run

        run(arguments)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        _exit_interrupted()
    except (LabError, OSError) as error:
        _exit_with_error(str(error))
    except Exception as error:
        if _was_interrupted(error):
            _exit_interrupted()
        # torch raises several types for it, with these words in common
        if "CUDA" in str(error) and "out of memory" in str(error):
            _exit_with_error(
                "the GPU is out of memory. Use fewer processes with --jobs, or end others that use the GPU."
            )
        raise


def _replace_unencodable() -> None:
    """Prints ``?`` for characters that the encoding of the terminal lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is the cause. Extension modules turn it into an ``ImportError`` while they are imported."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _exit_interrupted() -> NoReturn:
    print("interrupted. Finished work is saved; run the same command again to continue.", file=sys.stderr)
    sys.exit(130)


def _exit_with_error(message: str) -> NoReturn:
    print(f"unstale-lab: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
