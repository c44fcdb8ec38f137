"""``torch.compile`` for element-wise updates of large networks on a GPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec


@cache
def can_compile() -> bool:
    """Return whether Triton and a C compiler are installed."""
    return find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))


@cache
def compile_once(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a function, once per process.

    Pass plain functions, not bound methods: the cache would keep the object and its GPU memory alive.
    """
    import torch._dynamo
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # the functions are small: starting worker processes takes longer
    for limit in ("recompile_limit", "accumulated_recompile_limit"):  # every batch of runs has its own shapes
        setattr(torch._dynamo.config, limit, 1000)
    return torch.compile(function, dynamic=False)
