"""Steps recorded as a CUDA graph: small networks spend their time on launching kernels, not on running them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

UNROLL = 10  # steps in one graph


class Recorder(Protocol):
    """What a ``GraphStepper`` needs of a device."""

    def working(self) -> AbstractContextManager[None]:
        """Around all that is made, recorded or replayed."""
        ...

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Records the work without doing it; the function returned does it."""
        ...


class CudaRecorder:
    """On a stream of its own, since nothing can be recorded on the usual one."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    @contextmanager
    def working(self) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            work()
        return graph.replay


class GraphStepper:
    """Makes steps by replaying a recording. The first few are made for real: they allocate what a step writes to.

    A recording begins and ends at a multiple of ``unroll`` steps, so that whatever happens every few steps (samples are
    merged into the matrix of a full correction) is in it at its place. Steps in other numbers are made one by one, and
    so are all that follow them until a multiple is reached again.
    """

    def __init__(
        self, step: Callable[[], None], made: int = 0, unroll: int = UNROLL, recorder: Recorder | None = None
    ) -> None:
        """``made`` steps were made before."""
        self._step = step
        self._unroll = unroll
        self._recorder = recorder or CudaRecorder()
        self._replay: Callable[[], None] | None = None
        self._made = made

    def __call__(self, count: int) -> None:
        with self._recorder.working():
            self._advance(count)
        self._made += count

    def _advance(self, count: int) -> None:
        if self._made % self._unroll or count % self._unroll or not count:
            return self._one_by_one(count)
        if self._replay is None:
            self._one_by_one(self._unroll)
            count -= self._unroll
            self._replay = self._recorder.record(lambda: self._one_by_one(self._unroll))
        for _ in range(count // self._unroll):
            self._replay()

    def _one_by_one(self, count: int) -> None:
        for _ in range(count):
            self._step()
