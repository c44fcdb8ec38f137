"""Steps recorded as a CUDA graph: small networks spend their time on launching kernels, not on running them."""

from __future__ import annotations

from collections.abc import Callable

import torch

UNROLL = 10  # steps in one graph


class GraphStepper:
    """Makes steps by replaying a recording. The first few are made for real: they allocate what a step writes to."""

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
        if self._graph is None:
            warm = min(count, self._unroll)
            self._one_by_one(warm)
            count -= warm
            if count < self._unroll:
                return self._one_by_one(count)
            self._stream.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._one_by_one(self._unroll)
        for _ in range(count // self._unroll):
            self._graph.replay()
        self._one_by_one(count % self._unroll)

    def _one_by_one(self, count: int) -> None:
        for _ in range(count):
            self._step()
