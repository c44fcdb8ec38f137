"""Batches given as functions, which are called again later: notices if a variable that they read was rebound.

Python looks up the variables of a function when it is called. In a loop, ``lambda: model(state)`` evaluates the state
of the current iteration, not the one that the function was made with.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

_Result = TypeVar("_Result")
_NUMBERS = (int, float, complex, str, bytes)


def bound(function: Callable[[], _Result]) -> Callable[[], _Result]:
    """The function, which raises instead if a variable that it reads holds another object than now.

    Functions, classes and modules are left out: a network may be exchanged. Numbers are compared by value. Data that is
    overwritten in place, or behind attributes, is not noticed; neither is anything in a compiled ``step``.

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
    return before is now or (isinstance(before, _NUMBERS) and isinstance(now, _NUMBERS) and before == now)


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
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in _globals_read(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]


@functools.lru_cache(maxsize=1024)
def _globals_read(code: types.CodeType) -> tuple[str, ...]:
    """The names of the global variables that code reads, functions and comprehensions in it included."""
    found = {str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            found.update(_globals_read(part))
    return tuple(sorted(found))
