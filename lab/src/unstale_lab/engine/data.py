"""The training data of a batch of runs, on its device: the batches of now and of the recent past."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..problems.base import Problem


class Samples(NamedTuple):
    """``rows`` are states, then, if targets depend on the network, their successors: ``[..., rows, inputs]``."""

    rows: Tensor
    reward: Tensor  # [..., k]
    discount: Tensor | None  # [..., k]

    def residual(self, values: Tensor, following: Tensor | None = None) -> Tensor:
        """``δ [..., k]`` of the values of all rows; or of the states', where ``following`` has the successors'."""
        if self.discount is None:
            return values - self.reward
        if following is None:
            values, following = values.chunk(2, -1)
        return values - (self.reward + self.discount * following)

    def at(self, some: slice) -> Samples:
        """Some of the first dimension."""
        return Samples(self.rows[some], self.reward[some], None if self.discount is None else self.discount[some])

    def parts(self, size: int) -> Iterator[tuple[slice, Samples]]:
        """The same samples, at most ``size`` at a time."""
        rows = self.rows.unflatten(-2, (-1, self.reward.shape[-1]))
        for start in range(0, self.reward.shape[-1], size):
            some = slice(start, start + size)
            discount = None if self.discount is None else self.discount[..., some]
            yield some, Samples(rows[..., some, :].flatten(-3, -2), self.reward[..., some], discount)


def moved(x: Tensor, device: str, dtype: torch.dtype) -> Tensor:
    """Numbers of pictures stay whole numbers."""
    return x.to(device, dtype if x.is_floating_point() else x.dtype)


class Feed:
    """One stream a seed; runs of the same seed see the same batches.

    Which batch is the present one is a number on the device, so that a recorded CUDA graph can be replayed.
    """

    def __init__(
        self,
        problem: Problem,
        seeds: Sequence[int],
        batch: int,
        n_step: int,
        past: int,
        device: str,
        dtype: torch.dtype,
    ) -> None:
        distinct = sorted(set(seeds))
        self._streams = [problem.stream(seed, batch, n_step) for seed in distinct]
        self._bootstraps = problem.bootstraps
        self._past = past  # batches to look back on, the present one included
        self._batch = batch
        self._device, self._dtype = device, dtype
        self._stream_of_run = torch.tensor([distinct.index(seed) for seed in seeds], device=device)
        self._present = torch.zeros(1, dtype=torch.int64, device=device)
        self._ages = torch.arange(past - 1, -1, -1, device=device)  # oldest first
        self._buffer: tuple[Tensor, ...] = ()

    def fill(self, count: int) -> None:
        """Take in the next ``count`` batches; the first of them becomes the present one."""
        chunks = [stream(count) for stream in self._streams]
        rows = [torch.cat([c.state, c.next_state], -2) if self._bootstraps else c.state for c in chunks]
        fresh = [
            moved(torch.stack(column, 1), self._device, self._dtype)
            for column in (rows, [c.reward for c in chunks], [c.discount for c in chunks])
        ]
        if not self._buffer:
            before = [x.new_zeros(self._past, *x.shape[1:]) for x in fresh]
            self._buffer = tuple(torch.cat(pair) for pair in zip(before, fresh, strict=True))
        else:
            for x, new in zip(self._buffer, fresh, strict=True):
                x.copy_(torch.cat([x[count:], new]))
        self._present.fill_(len(self._buffer[0]) - count)

    def advance(self) -> None:
        self._present += 1

    def present(self) -> Samples:
        """The batch to learn from now, ``[runs, rows, inputs]``."""
        rows, reward, discount = (x.index_select(0, self._present)[0] for x in self._buffer)
        return self._for_runs(rows, reward, discount)

    def recent(self, until: int = 0) -> Samples:
        """The batches looked back on as one long batch, oldest first; the last is ``until`` before the present one."""
        rows, reward, discount = (x.index_select(0, self._present - until - self._ages) for x in self._buffer)
        if self._bootstraps:  # states of all batches first, then their successors
            rows = rows.unflatten(2, (2, self._batch)).permute(1, 2, 0, 3, 4).flatten(1, 3)
        else:
            rows = rows.movedim(0, 1).flatten(1, 2)
        return self._for_runs(rows, *(x.movedim(0, 1).flatten(1) for x in (reward, discount)))

    def _for_runs(self, rows: Tensor, reward: Tensor, discount: Tensor) -> Samples:
        rows, reward, discount = (x.index_select(0, self._stream_of_run) for x in (rows, reward, discount))
        return Samples(rows, reward, discount if self._bootstraps else None)
