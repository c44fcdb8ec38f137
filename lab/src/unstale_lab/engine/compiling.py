"""Work compiled for a GPU, where torch has what it needs for that."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec


@cache
def can_compile() -> bool:
    """Whether what torch compiles with is there."""
    return find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))


@cache
def compiled(work: Callable[..., None]) -> Callable[..., None]:
    """Of functions, not of methods: those would keep their object, and its memory on the GPU, alive."""
    import torch._dynamo
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1  # there is little to compile: starting helpers would take longer
    for limit in ("recompile_limit", "accumulated_recompile_limit"):  # work is compiled anew for every batch of runs
        setattr(torch._dynamo.config, limit, 1000)
    return torch.compile(work, dynamic=False)
