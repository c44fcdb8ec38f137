"""How the past is kept fresh: one correction a file, one small interface.

A correction owns no tensors. What it remembers lives in a ``memory`` of plain containers that the caller keeps,
saves and loads (batches to be evaluated again are functions, and stay with the correction). Its ``update`` learns
how far the parameters have moved since the last batch, takes in the new batch, and returns::

    η_t = (1-β) Σ_{i≤t} β^{t-i} (stale gradient of batch i − its gradient at today's parameters)

so that ``μ̂ = μ − η``. Every tensor may have leading dimensions: runs that are stepped side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from .blocks import Blocks
from .diagonal import Diagonal
from .oracle import Oracle
from .window import Window

Memory = dict[str, Any]
Replay = Callable[[], Any]

NAMES = ("none", "diagonal", "blocks", "dense", "window", "oracle", "auto")


class Correction(Protocol):
    def update(
        self, memory: Memory, batch: Any, displacement: Tensor, beta: float | Tensor, replay: Replay | None = None
    ) -> Tensor:
        """Move what is remembered by ``displacement``, take in ``batch``, and return ``η``. ``replay`` evaluates the
        same batch again when called later."""
        ...


def default_horizon(beta: float) -> int:
    """Steps until a batch weighs less than a thousandth of what it did: ``β^h < 1e-3``.

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
    """``"dense"`` or ``"window"``, whichever does less work a step for ``n`` parameters and ``m`` samples.

    The dense form spends ``m n²`` multiply-adds on the new Taylor term and goes through its matrix at the speed of
    memory, which takes as long as 6 more samples would. The window touches each of its ``H m`` samples' gradients
    about three times, out of cache, where a number costs more: ``5 H m n``. Both constants were fitted to times on a
    CPU (``benchmarks/crossover.py``). Beyond 2²⁹ entries (2 GiB) the matrix is never made.

    >>> cheaper_full_correction(size=609, samples=16, horizon=688)
    'dense'
    >>> cheaper_full_correction(size=2241, samples=16, horizon=66)
    'window'
    """
    dense, window = size * size * (samples + 6), 5 * horizon * samples * size
    return "dense" if dense <= window and size * size <= 1 << 29 else "window"


def dense(size: int) -> Blocks:
    """The full correction with its matrix. One that outgrows the cache is written to every tenth step only."""
    return Blocks([size], merge_every=10 if size > 2000 else 1)


def resolve(settings: dict[str, Any], size: int, batch: Any, beta: float) -> str:
    """The correction that ``settings`` name, with ``"auto"`` decided by the first batch."""
    name = settings["correction"]
    if name != "auto":
        return name
    if settings["second_order"]:
        return "dense"
    if settings["refresh"]:
        return "window"
    return cheaper_full_correction(size, batch.samples, settings["horizon"] or default_horizon(beta))


def build(name: str, settings: dict[str, Any], lengths: Sequence[int], beta: float) -> Correction:
    """A correction by name, for parameters of the given lengths."""
    horizon = int(settings["horizon"] or default_horizon(beta))
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


__all__ = [
    "NAMES",
    "Blocks",
    "Correction",
    "Diagonal",
    "Memory",
    "Oracle",
    "Window",
    "build",
    "cheaper_full_correction",
    "default_horizon",
    "dense",
    "paper_horizon",
    "resolve",
]
