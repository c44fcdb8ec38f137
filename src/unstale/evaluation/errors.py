"""Errors of an evaluation: one sentence each, which says what to do."""

from __future__ import annotations

import importlib
from typing import Any


class EvaluationError(ValueError):
    """The environment, the policy or the data cannot be evaluated."""


class MissingPackageError(ImportError):
    """A package of the extra ``evaluate``, or an optional one, is not installed."""


def require(module: str, install: str = '".[evaluate]" (in a clone of unstale)') -> Any:
    """Import a module that is not a dependency of the library, or say what to install.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise MissingPackageError(
            f"evaluation needs {package}, which is not installed; run: pip install {install}"
        ) from error


def first_line(error: BaseException) -> str:
    """The first line of a foreign exception's message, to quote in a message of one line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
