"""Exceptions that a user can act on. The command line shows them as one line; all others keep their traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class LabError(Exception):
    """Base class. The message is one line: what was wrong, and what to do."""


class UserError(LabError, ValueError):
    """An argument or a setting is invalid."""


class DataError(LabError):
    """A data file is missing, damaged, or not the one that is needed."""


class StoreError(LabError):
    """The store cannot be read or written. Stored runs are unchanged."""


class SweepError(LabError):
    """A sweep ended without all its runs. Finished runs are in the store."""


class WorkerError(LabError):
    """A worker process was killed or exited early."""


def unknown(kind: str, name: str, choices: Iterable[str]) -> UserError:
    """The error for a name that is none of the choices. It suggests the closest match, if there is one.

    >>> print(unknown("scale", "quik", ["smoke", "quick"]))
    unknown scale 'quik': did you mean quick? There are smoke, quick.
    >>> print(unknown("scale", "xyz", ["smoke", "quick"]))
    unknown scale 'xyz'. There are smoke, quick.
    """
    known = list(choices)
    suggestion = (
        "".join(f": did you mean {nearest}?" for nearest in get_close_matches(name, known, n=1, cutoff=0.35)) or "."
    )
    return UserError(f"unknown {kind} {name!r}{suggestion} There are {', '.join(known)}.")


def one_line(error: object) -> str:
    """The text of an error with its whitespace collapsed; the name of its type if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__
