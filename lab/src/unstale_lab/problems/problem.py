"""The interface of problems: streams of transitions to learn from, and states with known true values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class Transitions:
    """Samples to learn from. The target of ``V(state)`` is ``reward + discount · V(next_state)``."""

    state: Tensor  # [..., inputs]
    reward: Tensor  # [...], the discounted sum of n rewards
    discount: Tensor  # [...], γⁿ; 0 if the episode terminated within n steps
    next_state: Tensor  # [..., inputs]

    def map(self, change: Callable[[Tensor], Tensor]) -> Transitions:
        """Apply a function to every field."""
        return Transitions(change(self.state), change(self.reward), change(self.discount), change(self.next_state))


def merge_transitions(parts: Sequence[Transitions], merge: Callable[[list[Tensor]], Tensor]) -> Transitions:
    """Merge several transitions field by field, with ``torch.cat`` or ``torch.stack``, say."""
    return Transitions(
        merge([part.state for part in parts]),
        merge([part.reward for part in parts]),
        merge([part.discount for part in parts]),
        merge([part.next_state for part in parts]),
    )


@dataclass(frozen=True)
class ValueSet:
    """States with their true values."""

    state: Tensor  # [states, inputs]
    value: Tensor  # [states]
    standard_error: Tensor  # [states]; 0 if the value is exact
    # MSE of a perfect network, which is subtracted from measured errors: values estimated from few returns are noisy.
    floor: float = 0.0


Stream = Callable[[int], Transitions]  # the next ``count`` batches, each field [count, batch, ...]


class Problem(Protocol):
    """A prediction problem."""

    inputs: int  # length of an observation
    bootstraps: bool  # whether targets depend on the network

    def stream(self, seed: int, batch: int, n_step: int) -> Stream:
        """Return the training data of one run, in float32 on the CPU; it depends on the arguments alone."""
        ...

    def values(self) -> dict[str, ValueSet]:
        """Return the states on which errors are measured.

        ``"training"`` follows the training distribution; ``"evaluation"`` is a separate fixed set.
        """
        ...


class Images(Protocol):
    """Images on a device, looked up by index."""

    channels: int
    side: int  # in pixels
    outputs: int  # of a network: classes or actions

    def load(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the images ``[..., channels, side, side]`` of an index ``[...]``, preprocessed for a network."""
        ...


@runtime_checkable
class ImageProblem(Problem, Protocol):
    """A problem whose states are pairs of integers: the index of an image, and of the output that is meant."""

    def images(self, device: str) -> Images:
        """Return the images, on the device."""
        ...

    def fingerprint(self) -> str:
        """Return a short hash of the data, because files of the same name may change."""
        ...


def seeded(*key: str | int) -> torch.Generator:
    """Return a generator that depends on the key alone.

    Hashing gives similar keys independent streams, and separates the data of a seed from its initial weights.
    """
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
