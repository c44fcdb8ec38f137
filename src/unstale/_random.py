"""Random numbers that need no generator, so that nothing has to be saved to repeat a run."""

from __future__ import annotations

import torch
from torch import Tensor


def uniform(seed: int, counter: Tensor, count: int, stream: int = 0) -> Tensor:
    """``count`` random numbers in [0, 1) that depend on nothing but the arguments: a hash of a counter.

    Unlike a generator they need no state, and can be drawn in a CUDA graph.
    """
    start = hash_of(seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03)
    x = torch.arange(start, start + count, device=counter.device) + counter * count
    x = (x ^ (x >> 32)) * MIXERS[0]
    x = (x ^ (x >> 29)) * MIXERS[1]
    return ((x ^ (x >> 32)) & ((1 << 53) - 1)).double().mul_(2.0**-53)


# Odd numbers without structure, as signed integers.
MIXERS = (-0x4B47D0C5A1A8F1A5, -0x2917014799A6026D)


def hash_of(number: int) -> int:
    """A number of 62 bits that looks random."""
    x = number & ((1 << 64) - 1)
    for _ in range(3):
        x = (x ^ (x >> 31)) * (MIXERS[0] & ((1 << 64) - 1)) & ((1 << 64) - 1)
    return x >> 2
