"""Mistakes that a user can mend, which the command line shows as one line. Any other error keeps its traceback."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """What was asked for cannot be done; the message is one line that says why and, where there is one, the way out."""


def unknown(kind: str, name: str, choices: Iterable[str]) -> UserError:
    """A name that is none of the choices, with the one most like it.

    >>> print(unknown("scale", "quik", ["smoke", "quick"]))
    unknown scale 'quik': did you mean quick? There are smoke, quick.
    """
    known = list(choices)
    nearest = get_close_matches(name, known, n=1, cutoff=0)[0]
    return UserError(f"unknown {kind} {name!r}: did you mean {nearest}? There are {', '.join(known)}.")
