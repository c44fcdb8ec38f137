"""Reads policies that ``torch.export.save`` wrote, without unpickling.

``torch.export.load`` unpickles some parts of a file, resolves names of functions, evaluates expressions of sizes and
opens compiled libraries. So a file is refused unless it holds plain tensors, operators of ATen and simple sizes only.

A copy of what was checked is loaded, not the file: in a malformed archive torch can find other members than zipfile.
"""

from __future__ import annotations

import io
import json
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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
    source = path if trust_pickle else _copy(_read(path), path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with nullcontext() if trust_pickle else _no_unpickling():
                return torch.export.load(source).module()
    except _UnpicklingRefused as error:
        raise EvaluationError(f"{path} {_UNTRUSTED.format('a pickle')}") from error
    except Exception as error:
        raise EvaluationError(f"{path} is not a file of torch.export.save: {first_line(error)}") from error


_UNTRUSTED = (
    "holds {}, which can run code when it is read; pass --trust-pickle if you trust its author, or export a plain "
    "network."
)


def _read(path: Path) -> dict[str, bytes]:
    """The members of an archive by their names."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > MAX_BYTES:
                raise EvaluationError(f"{path} has more than {MAX_BYTES >> 30} GiB when unpacked; it is not read.")
            return {name: archive.read(name) for name in archive.namelist()}  # read() verifies checksums
    except EvaluationError:
        raise
    except Exception as error:  # zipfile and zlib raise nearly any type for malformed files
        raise EvaluationError(f"{path} is truncated or not a file of torch.export: {first_line(error)}") from error


def _copy(members: dict[str, bytes], path: Path) -> io.BytesIO:
    """An archive of these members, if reading them runs no code."""
    names = [name.lower() for name in members]  # torch ignores case
    if len(set(names)) < len(names) or not any("/models/" in f"/{name}" for name in names):
        raise EvaluationError(f"{path} is truncated or not a file of torch.export.")
    if any("/aotinductor/" in name for name in names):
        raise EvaluationError(f"{path} {_UNTRUSTED.format('compiled code')}")
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w") as archive:
        for name, content in members.items():
            if name.lower().endswith(".json"):
                _check(content, path)
            archive.writestr(name, content)
    copy.seek(0)
    return copy


def _check(content: bytes, path: Path) -> None:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise EvaluationError(f"{path} is truncated or not a file of torch.export: {first_line(error)}") from error
    for key, value in _entries(document):
        if key == "use_pickle" and value:
            raise EvaluationError(f"{path} {_UNTRUSTED.format('a pickle')}")
        if key == "target" and isinstance(value, str) and not OPERATOR.fullmatch(value):
            raise EvaluationError(f"{path} {_UNTRUSTED.format(f'the function {value[:80]}')}")
        if key == "expr_str" and not SIZE.fullmatch(str(value)):
            raise EvaluationError(f"{path} {_UNTRUSTED.format(f'the expression {str(value)[:80]}')}")


def _entries(document: Any) -> Iterator[tuple[str, Any]]:
    """All keys of a JSON document with their values, at any depth."""
    waiting = [document]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield from part.items()
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


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
