"""Steps recorded as a CUDA graph: small networks spend their time on launching kernels, not on running them."""

from __future__ import annotations

from collections.abc import Callable

import torch

UNROLL = 10  # steps in one graph


class GraphStepper:
    """Makes steps by replaying a recording. The first few are made for real: they allocate what a step writes to.

    A recording begins and ends at a multiple of ``unroll`` steps, so that whatever happens every few steps (samples are
    merged into the matrix of a full correction) is in it at its place. Steps in other numbers are made one by one.
    """

    def __init__(self, step: Callable[[], None], unroll: int = UNROLL) -> None:
        self._step = step
        self._unroll = unroll
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream()

    def __call__(self, count: int) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._advance(count)
        torch.cuda.current_stream().wait_stream(self._stream)

    def _advance(self, count: int) -> None:
        if count % self._unroll:
            return self._one_by_one(count)
        if self._graph is None:
            self._one_by_one(self._unroll)
            count -= self._unroll
            self._stream.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._one_by_one(self._unroll)  # recorded, not made
        for _ in range(count // self._unroll):
            self._graph.replay()

    def _one_by_one(self, count: int) -> None:
        for _ in range(count):
            self._step()
