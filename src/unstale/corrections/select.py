"""Which correction to use, and how long it remembers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .base import Correction
from .blocks import Blocks, dense
from .diagonal import Diagonal
from .oracle import Oracle
from .window import Window

CLASSES: dict[str, type[Correction]] = {
    "diagonal": Diagonal,
    "blocks": Blocks,
    "dense": Blocks,
    "window": Window,
    "oracle": Oracle,
    "auto": Window,  # or dense, which has the same needs
}
NAMES = ("none", *CLASSES)

# The dense form is not chosen by "auto" above this many matrix entries: 2 GiB in float32.
MAX_DENSE_ENTRIES = 1 << 29


def default_horizon(beta: float) -> int:
    """The number of steps after which a batch weighs less than a thousandth: ``β^h < 1e-3``.

    >>> default_horizon(0.9), default_horizon(0.99), default_horizon(0.0)
    (66, 688, 1)
    """
    return max(1, math.floor(math.log(1e-3) / math.log(beta)) + 1) if beta > 0 else 1


def paper_horizon(beta: float) -> int:
    """The paper's horizon, ``2 / (1-β)``, which leaves out 12 to 14 % of the weight.

    >>> paper_horizon(0.9), paper_horizon(0.99)
    (20, 200)
    """
    return max(1, round(2 / (1 - beta)))


def cheaper_full_correction(size: int, samples: int, horizon: int) -> str:
    """``"dense"`` or ``"window"``, whichever does less work per step for ``n`` parameters and ``m`` samples.

    The dense form spends ``m n²`` multiply-adds on the new Taylor term and reads and writes its matrix at the speed of
    memory, which takes as long as 6 more samples would. The window touches each of its ``H m`` samples' gradients about
    three times, out of cache, where an entry costs more: ``5 H m n``. Both constants were fitted to times on a CPU
    (``benchmarks/crossover.py``).

    >>> cheaper_full_correction(size=609, samples=16, horizon=688)
    'dense'
    >>> cheaper_full_correction(size=2241, samples=16, horizon=66)
    'window'
    """
    dense_work, window_work = size * size * (samples + 6), 5 * horizon * samples * size
    return "dense" if dense_work <= window_work and size * size <= MAX_DENSE_ENTRIES else "window"


def resolve(settings: dict[str, Any], size: int, batch: Any, horizon: int) -> str:
    """The correction that ``settings`` name, with ``"auto"`` decided by the first batch."""
    name = settings["correction"]
    if name != "auto":
        return name
    if settings["second_order"]:
        return "dense"
    if settings["refresh"]:
        return "window"
    return cheaper_full_correction(size, batch.samples, horizon)


def build(name: str, settings: dict[str, Any], lengths: Sequence[int], horizon: int) -> Correction:
    """A correction by name, for parameters of the given lengths."""
    if name == "diagonal":
        return Diagonal()
    if name == "dense":
        return dense(sum(lengths))
    if name == "blocks":
        width = settings["block_size"]
        if width is None:
            return Blocks(lengths)
        whole, rest = divmod(sum(lengths), int(width))
        return Blocks([int(width)] * whole + [rest] * (rest > 0))
    if name == "window":
        return Window(horizon, settings["refresh"])
    return Oracle(horizon)
