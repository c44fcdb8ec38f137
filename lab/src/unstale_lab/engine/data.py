"""Training data of a batch of runs, on its device: the current batch and the recent ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..problems.problem import Problem


class Samples(NamedTuple):
    """A batch of ``k`` samples for every run."""

    rows: Tensor  # [..., rows, inputs]: states, followed by successors if targets bootstrap
    reward: Tensor  # [..., k]
    discount: Tensor | None  # [..., k]; None if targets do not bootstrap

    def residual(self, values: Tensor, next_values: Tensor | None = None) -> Tensor:
        """Return ``δ = V(s) - (r + γ V(s'))``, ``[..., k]``.

        Args:
            values: values of all rows; or of the states only, if ``next_values`` is given.
            next_values: values of the successors, from another network.
        """
        if self.discount is None:
            return values - self.reward
        if next_values is None:
            values, next_values = values.chunk(2, -1)
        return values - (self.reward + self.discount * next_values)

    def select(self, index: slice) -> Samples:
        """Slice the first dimension."""
        return Samples(self.rows[index], self.reward[index], None if self.discount is None else self.discount[index])

    def chunks(self, size: int) -> Iterator[tuple[slice, Samples]]:
        """Yield the samples in chunks of at most ``size``, with the position of each chunk."""
        rows = self.rows.unflatten(-2, (-1, self.reward.shape[-1]))
        for start in range(0, self.reward.shape[-1], size):
            index = slice(start, start + size)
            discount = None if self.discount is None else self.discount[..., index]
            yield index, Samples(rows[..., index, :].flatten(-3, -2), self.reward[..., index], discount)


def to_device(x: Tensor, device: str, dtype: torch.dtype) -> Tensor:
    """Move a tensor; convert its dtype unless it holds integers (indices of images)."""
    return x.to(device, dtype if x.is_floating_point() else x.dtype)


class Feed:
    """Batches for all runs. Runs of the same seed share one data stream.

    The position of the current batch is a tensor on the device, so that a captured CUDA graph can be replayed.
    """

    def __init__(
        self,
        problem: Problem,
        seeds: Sequence[int],
        batch: int,
        n_step: int,
        history: int,
        device: str,
        dtype: torch.dtype,
    ) -> None:
        """``history`` is the number of batches that ``recent`` returns, the current one included."""
        distinct = sorted(set(seeds))
        self._streams = [problem.stream(seed, batch, n_step) for seed in distinct]
        self._bootstraps = problem.bootstraps
        self._history = history
        self._batch = batch
        self._device, self._dtype = device, dtype
        self._stream_of_run = torch.tensor([distinct.index(seed) for seed in seeds], device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._ages = torch.arange(history - 1, -1, -1, device=device)  # oldest first
        self._buffer: tuple[Tensor, ...] = ()

    def fill(self, count: int) -> None:
        """Load the next ``count`` batches; the first of them becomes the current one."""
        chunks = [stream(count) for stream in self._streams]
        rows = [torch.cat([c.state, c.next_state], -2) if self._bootstraps else c.state for c in chunks]
        fresh = [
            to_device(torch.stack(column, 1), self._device, self._dtype)
            for column in (rows, [c.reward for c in chunks], [c.discount for c in chunks])
        ]
        if not self._buffer:
            before = [x.new_zeros(self._history, *x.shape[1:]) for x in fresh]
            self._buffer = tuple(torch.cat(pair) for pair in zip(before, fresh, strict=True))
        else:
            for x, new in zip(self._buffer, fresh, strict=True):
                x.copy_(torch.cat([x[count:], new]))
        self._position.fill_(len(self._buffer[0]) - count)

    def advance(self) -> None:
        """Make the next batch the current one."""
        self._position += 1

    def current(self) -> Samples:
        """Return the current batch, rows ``[runs, rows, inputs]``."""
        rows, reward, discount = (x.index_select(0, self._position)[0] for x in self._buffer)
        return self._for_runs(rows, reward, discount)

    def recent(self, skip: int = 0) -> Samples:
        """Return the last ``history`` batches as one long batch, oldest first, without the newest ``skip``."""
        rows, reward, discount = (x.index_select(0, self._position - skip - self._ages) for x in self._buffer)
        if self._bootstraps:  # states of all batches first, then their successors
            rows = rows.unflatten(2, (2, self._batch)).permute(1, 2, 0, 3, 4).flatten(1, 3)
        else:
            rows = rows.movedim(0, 1).flatten(1, 2)
        return self._for_runs(rows, *(x.movedim(0, 1).flatten(1) for x in (reward, discount)))

    def _for_runs(self, rows: Tensor, reward: Tensor, discount: Tensor) -> Samples:
        rows, reward, discount = (x.index_select(0, self._stream_of_run) for x in (rows, reward, discount))
        return Samples(rows, reward, discount if self._bootstraps else None)
