"""Reads policies that ``torch.export.save`` wrote, without unpickling.

``torch.export.load`` unpickles some parts of a file, resolves names of functions, evaluates expressions of sizes and
opens compiled libraries. So a file is refused unless it holds plain tensors, operators of ATen and simple sizes only.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .errors import EvaluationError, first_line

MAX_BYTES = 1 << 30  # unpacked
OPERATOR = re.compile(
    r"torch\.ops\.(aten|prims)\.\w+\.\w+|_operator\.(getitem|add|sub|mul|floordiv|mod|eq|ge|le|gt|lt)"
)
# Of a dynamic size, as sympy's srepr() writes it: Symbol('s0', positive=True, integer=True).
SIZE = re.compile(
    r"('?\b[su]\d+\b'?|\b\d+\b|\b(Symbol|Integer|Add|Mul|Pow|Max|Min|Mod|FloorDiv|Eq|Ne|positive|nonnegative|integer|True"
    r"|False)\b|[-+*/(),<>=\s])*"
)
_forbidden = False
_hooked = False


def load(path: Path, trust_pickle: bool) -> Callable[..., Any]:
    """The module of a ``.pt2`` file.

    Raises:
        EvaluationError: it is malformed, or needs ``trust_pickle``.
    """
    if not trust_pickle:
        _check(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if trust_pickle:
                return torch.export.load(path).module()
            with _no_unpickling():
                return torch.export.load(path).module()
    except _UnpicklingRefused as error:
        raise EvaluationError(f"{path} {_UNTRUSTED.format('a pickle')}") from error
    except Exception as error:
        raise EvaluationError(f"{path} is not a file of torch.export.save: {first_line(error)}") from error


_UNTRUSTED = (
    "holds {}, which can run code when it is read; pass --trust-pickle if you trust its author, or export a plain "
    "network."
)


def _check(path: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if sum(member.file_size for member in archive.infolist()) > MAX_BYTES:
                raise EvaluationError(f"{path} has more than {MAX_BYTES >> 30} GiB when unpacked; it is not read.")
            damaged = archive.testzip()
            documents = {name: json.loads(archive.read(name)) for name in names if name.endswith(".json")}
    except EvaluationError:
        raise
    except Exception as error:  # zipfile, zlib and json raise nearly any type for malformed files
        raise EvaluationError(f"{path} is truncated or not a file of torch.export: {first_line(error)}") from error
    models = [name for name in documents if "/models/" in f"/{name}"]
    if damaged or not models:
        raise EvaluationError(f"{path} is truncated or not a file of torch.export.")
    if any("/aotinductor/" in name for name in names):
        raise EvaluationError(f"{path} {_UNTRUSTED.format('compiled code')}")
    for document in documents.values():
        for key, value in _entries(document):
            if key == "use_pickle" and value:
                raise EvaluationError(f"{path} {_UNTRUSTED.format('a pickle')}")
            if key == "target" and isinstance(value, str) and not OPERATOR.fullmatch(value):
                raise EvaluationError(f"{path} {_UNTRUSTED.format(f'the function {value[:80]}')}")
            if key == "expr_str" and not SIZE.fullmatch(str(value)):
                raise EvaluationError(f"{path} {_UNTRUSTED.format(f'the expression {str(value)[:80]}')}")


def _entries(document: Any) -> Iterator[tuple[str, Any]]:
    """All keys of a JSON document with their values, at any depth."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield key, value
            yield from _entries(value)
    elif isinstance(document, list):
        for value in document:
            yield from _entries(value)


class _UnpicklingRefused(Exception):
    pass


@contextmanager
def _no_unpickling() -> Iterator[None]:
    """Refuse every class or function that a pickle names. Tensors that torch reads with ``weights_only`` are read."""
    global _forbidden, _hooked
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True
    _forbidden = True
    try:
        yield
    finally:
        _forbidden = False


def _audit(event: str, _: tuple[Any, ...]) -> None:
    if _forbidden and event == "pickle.find_class":
        raise _UnpicklingRefused
