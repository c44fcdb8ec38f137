"""The interface of a correction.

A correction owns no tensors. What it remembers lives in a ``memory`` of plain containers that the caller keeps, saves
and loads. :meth:`Correction.update` takes the displacement since the last batch, and the new batch, and returns::

    η_t = (1-β) Σ_{i≤t} β^{t-i} (gradient of batch i when it came − its gradient at the current parameters)

so that ``μ̂ = μ − η``. Target networks that are followed are part of the displacement, after the optimized parameters:
``d`` has ``n + p`` entries, and ``η`` has ``n``. Every tensor may have leading dimensions: a batch of runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

Memory = dict[str, Any]
Replay = Callable[[], Any]


class Selection(NamedTuple):
    """Samples of a batch, by their indices (None: all), and the inverse of how often each is expected among them."""

    rows: Tensor | None
    inverse_probability: float


def is_chosen(step: int, every: int, seed: int) -> bool:
    """Whether a batch is chosen at this step, one in every interval of ``every`` steps.

    Its position moves by one from interval to interval: at a fixed one, batches of several kinds that take turns could
    all be of one kind. Of ``every`` consecutive seeds, exactly one chooses a given step.

    >>> [step for step in range(20) if is_chosen(step, every=5, seed=0)]
    [0, 6, 12, 18]
    """
    return (step - step // every + seed) % every == 0


class Correction(ABC):
    """A correction of past gradients."""

    needs_per_sample_gradients: ClassVar[bool] = True
    needs_displacement: ClassVar[bool] = True
    needs_replay: ClassVar[bool] = False  # the batch as a function that evaluates it again
    every: int = 1  # every n-th batch is needed only
    followed: int = 0  # parameters of followed networks, p
    linear: ClassVar[frozenset[str]] = frozenset({"eta", "zeta", "stale", "base"})  # in a memory, linear in samples

    def no_eta(self, displacement: Tensor) -> Tensor:
        """Zeros of the shape of ``η``."""
        return displacement.new_zeros(*displacement.shape[:-1], displacement.shape[-1] - self.followed)

    @property
    def period(self) -> int:
        """The number of steps after which the same operations are repeated; a CUDA graph holds a multiple of it."""
        return self.every

    def choose(
        self, memory: Memory, samples: int, call: int = 0, device: torch.device | None = None
    ) -> Selection | None:
        """The samples of the next batch that :meth:`update` needs; None if it needs none of them.

        Args:
            memory: as in :meth:`update`.
            samples: size of the batch.
            call: number of the batch within its step, for gradient accumulation.
            device: of the returned indices.
        """
        return Selection(None, 1.0)

    @abstractmethod
    def update(
        self, memory: Memory, batch: Any, displacement: Tensor, beta: float | Tensor, replay: Replay | None = None
    ) -> Tensor:
        """Apply ``displacement`` to the memory, add ``batch`` to it, and return ``η``.

        Args:
            memory: what earlier calls left; empty at the first.
            batch: a :class:`~unstale.per_sample.gradients.Linearization`, or a
                :class:`~unstale.per_sample.gradients.SummedGradient` where no per-sample gradients are needed. It has
                the chosen samples only, with curvatures divided by their probabilities; None if none was chosen.
            displacement: ``d [..., n + p]``, how far the parameters and those of followed networks moved since the last
                batch.
            beta: ``β`` of this step.
            replay: evaluates the batch again at the parameters of the time when it is called.
        """

    def joined(self, memories: Sequence[Memory]) -> Memory:
        """The memory of one process, from those of all ranks: ``η`` is their mean.

        What is not linear in samples (counters, decays) is the same on all ranks.
        """
        first = memories[0]
        return {**first, **{key: _mean([memory[key] for memory in memories]) for key in self.linear & first.keys()}}

    def part_of(self, memory: Memory, rank: int, size: int) -> Memory:
        """A rank's part of the memory of one process. By default all of it: the mean over ranks is the same."""
        return memory


def _mean(parts: Sequence[Any]) -> Any:
    """Of tensors, or of lists of tensors, one by one."""
    if isinstance(parts[0], list):
        return [_mean(each) for each in zip(*parts, strict=True)]
    return torch.stack(list(parts)).mean(0)
