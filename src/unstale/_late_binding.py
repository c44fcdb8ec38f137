"""Batches given as functions, which are called again later: notices if a variable that they read was rebound.

Python looks up the variables of a function when it is called. In a loop, ``lambda: model(state)`` evaluates the state
of the current iteration, not the one that the function was made with.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterator
from numbers import Number
from typing import Any, TypeVar

import torch

_Result = TypeVar("_Result")
# Compared by value. Numbers of numpy are registered as such.
_PLAIN = (Number, str, bytes, torch.device, torch.dtype, type(None))


def bound(function: Callable[[], _Result]) -> Callable[[], _Result]:
    """The function, which raises instead if a variable that it reads holds another object than now.

    Functions, classes and modules are left out (a network may be exchanged), and so is what the function assigns to
    itself (a counter). Numbers, devices, dtypes and shapes are compared by value. Not noticed: data that is overwritten
    in place, or read through attributes or other functions, and anything in a compiled ``step``.

    >>> state = 1.0
    >>> late, early = bound(lambda: 2 * state), bound(lambda state=state: 2 * state)
    >>> state = 3.0
    >>> early()
    2.0
    >>> late()
    Traceback (most recent call last):
    ...
    RuntimeError: this batch is a function that reads the variable 'state', which has been assigned to since: ...
    """
    before = dict(_data(function))

    def call() -> _Result:
        if before and not torch.compiler.is_compiling():
            now = dict(_variables(function))
            changed = [name for name, value in before.items() if not _is_same(value, now.get(name))]
            if changed:
                raise RuntimeError(_message(changed))
        return function()

    return call


def _message(names: list[str]) -> str:
    defaults = ", ".join(f"{name}={name}" for name in names)
    listed = ("the variable " if len(names) == 1 else "the variables ") + ", ".join(map(repr, names))
    return (
        f"this batch is a function that reads {listed}, which {'has' if len(names) == 1 else 'have'} been assigned to "
        f"since: evaluated now, it is another batch. Bind data when the function is made: lambda {defaults}: ..., or "
        "functools.partial."
    )


def _is_same(before: Any, now: Any) -> bool:
    return before is now or (_is_plain(before) and _is_plain(now) and (before == now or before != before))


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, _PLAIN)


def _data(function: Any) -> Iterator[tuple[str, Any]]:
    """The variables that hold data."""
    return ((name, value) for name, value in _variables(function) if not callable(value) and not _is_module(value))


def _is_module(value: Any) -> bool:
    return isinstance(value, types.ModuleType)


def _variables(function: Any) -> Iterator[tuple[str, Any]]:
    """Names and values of the variables that a function reads from around it; none for other callables."""
    while isinstance(function, functools.partial | types.MethodType):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    if not isinstance(function, types.FunctionType):
        return
    read, assigned = _names(function.__code__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name in assigned:
            continue
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in read - assigned:
        if name in function.__globals__:
            yield name, function.__globals__[name]


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The global variables that code reads, and the outer variables that it assigns to, functions in it included."""
    steps = [(step.opname, str(step.argval)) for step in dis.get_instructions(code)]
    read = {name for kind, name in steps if kind in ("LOAD_GLOBAL", "LOAD_NAME")}
    assigned = {name for kind, name in steps if kind in ("STORE_GLOBAL", "STORE_DEREF")}
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            inner_read, inner_assigned = _names(part)
            read |= inner_read
            assigned |= inner_assigned
    return frozenset(read), frozenset(assigned)
