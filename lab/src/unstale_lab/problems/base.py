"""What every problem gives: transitions to learn from, and states whose true values are known."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class Transitions:
    """Samples to learn from: the target of ``V(state)`` is ``reward + discount · V(next_state)``."""

    state: Tensor  # [..., inputs]
    reward: Tensor  # [...], the discounted sum of n rewards
    discount: Tensor  # [...], γⁿ, and 0 where the episode terminated on the way
    next_state: Tensor  # [..., inputs]

    def map(self, change: Callable[[Tensor], Tensor]) -> Transitions:
        """The same change made to every field."""
        return Transitions(change(self.state), change(self.reward), change(self.discount), change(self.next_state))


def merged(parts: Sequence[Transitions], merge: Callable[[list[Tensor]], Tensor]) -> Transitions:
    """Several as one, each field merged with its like."""
    return Transitions(
        merge([part.state for part in parts]),
        merge([part.reward for part in parts]),
        merge([part.discount for part in parts]),
        merge([part.next_state for part in parts]),
    )


@dataclass(frozen=True)
class ValueSet:
    """States with their true values; the standard error is 0 where the value is exact."""

    state: Tensor  # [states, inputs]
    value: Tensor  # [states]
    standard_error: Tensor  # [states]
    # The mean squared error that a perfect network would show, which is taken off: values that are means of few returns
    # are off by their standard errors.
    floor: float = 0.0


Stream = Callable[[int], Transitions]  # the next ``count`` batches, each field [count, batch, ...]


class Problem(Protocol):
    inputs: int  # the length of a state as the network sees it
    bootstraps: bool  # whether targets depend on the network

    def stream(self, seed: int, batch: int, n_step: int) -> Stream:
        """The training data of one run, the same for the same arguments, in float32 on the CPU."""
        ...

    def values(self) -> dict[str, ValueSet]:
        """Where errors are measured: ``"training"``, states distributed as in training, and ``"evaluation"``, a
        fixed set of its own."""
        ...


class Pictures(Protocol):
    """Pictures on a device, by number."""

    channels: int
    side: int  # in pixels
    answers: int  # what a network says of each: classes, actions

    def look(self, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        """``[...] → [..., channels, side, side]``, as a network sees them."""
        ...


@runtime_checkable
class PictureProblem(Problem, Protocol):
    """A problem whose states are whole numbers: which picture, and which of the network's answers is meant."""

    def pictures(self, device: str) -> Pictures: ...

    def fingerprint(self) -> str:
        """A few characters that differ where the data do: others may lie in the folder tomorrow."""
        ...


def seeded(*key: str | int) -> torch.Generator:
    """Random numbers that depend on the key alone. A hash keeps keys apart that differ little, and keeps the data of a
    seed apart from its initial weights."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
