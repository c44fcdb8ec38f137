"""Training steps captured as a CUDA graph: small networks are limited by kernel launches, not by computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch

STEPS_PER_GRAPH = 10


class GraphBackend(Protocol):
    """What ``GraphStepper`` needs from a device; tests replace it by a fake."""

    def side_stream(self) -> AbstractContextManager[None]:
        """Context in which all steps, captures and replays run."""
        ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture ``work`` without running it, and return a function that replays it."""
        ...


class CudaBackend:
    """Captures on a side stream: CUDA does not allow capture on the default stream."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    @contextmanager
    def side_stream(self) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            yield
        torch.cuda.current_stream().wait_stream(self._stream)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            work()
        return graph.replay


class GraphStepper:
    """Makes steps by replaying a captured graph of ``steps_per_graph`` steps.

    The first ``steps_per_graph`` steps run eagerly, because they allocate the tensors that a step writes to. A graph
    begins and ends at a multiple of ``steps_per_graph``, so that periodic work (a full correction merges samples into
    its matrix every tenth step) has a fixed position in it. Other step counts run eagerly, and so do all later steps
    until a multiple is reached again.
    """

    def __init__(
        self,
        step: Callable[[], None],
        steps_done: int = 0,
        steps_per_graph: int = STEPS_PER_GRAPH,
        backend: GraphBackend | None = None,
    ) -> None:
        self._step = step
        self._steps_per_graph = steps_per_graph
        self._backend = backend or CudaBackend()
        self._replay: Callable[[], None] | None = None
        self._steps_done = steps_done

    def __call__(self, count: int) -> None:
        with self._backend.side_stream():
            self._advance(count)
        self._steps_done += count

    def _advance(self, count: int) -> None:
        length = self._steps_per_graph
        if self._steps_done % length or count % length or not count:
            return self._run_eagerly(count)
        if self._replay is None:
            self._run_eagerly(length)
            count -= length
            self._replay = self._backend.capture(lambda: self._run_eagerly(length))
        for _ in range(count // length):
            self._replay()

    def _run_eagerly(self, count: int) -> None:
        for _ in range(count):
            self._step()
