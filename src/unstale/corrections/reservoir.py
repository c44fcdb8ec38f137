"""The full correction from a sample of the past: the cost of a step does not depend on ``β``.

A *generation* is a few samples of one batch. One enters every few steps, in two stages:

- The newest generations are all kept.
- A generation that is no longer among them replaces, sample by sample, random ones of a pool. A sample survives that
  with a probability of ``1 - 1/P``, if the pool has room for ``P`` generations.

Every sample has the weight that it has in the full correction, ``(1-β) βᵃ c_k`` at age ``a``, divided by the
probability that it is present. So, over seeds, ``η`` is an unbiased estimate of the full correction, for any ``β`` and
any number of slots. Only the *change* of past gradients is estimated; the momentum itself averages all gradients.

New samples contribute little, because their residuals have not shifted yet. That is why few of them are enough, and why
they need no large share of the slots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .._random import uniform
from ..momentum import per_run
from ..per_sample.gradients import Linearization
from . import slots
from .base import Correction, Memory, Replay, Selection, is_chosen

# Steps that the newest generations and the pool cover, in units of the momentum's memory, 1 / (1-β). With a pool of 1,
# samples survive as long as their weights last: all weights in it stay the same.
NEWEST_SPAN, POOL_SPAN = 1.0, 1.0
MAX_NEWEST_SPAN = 6.9  # after which weights are below a thousandth
# At least one of the newest generations, and two in the pool, one of which is replaced.
MIN_GENERATIONS = 3
# Generations in a reservoir; and the steps between them before rounding, if batches are large enough. Often enough for
# a memory of ten steps, as it is early in training; and rarely enough, because per-sample gradients cost two steps.
GENERATIONS, MIN_INTERVAL, MAX_INTERVAL = 32, 6.0, 10.0
# Steps between generations are a divisor of 100, so that steps can be recorded in groups as a CUDA graph.
INTERVALS = (1, 2, 4, 5, 10, 20, 25, 50, 100)
MAX_ROUNDING = 1.25  # downwards, which leaves fewer slots for the newest


class ReservoirPlan(NamedTuple):
    """``samples`` of one batch enter ``every`` so many steps; ``newest`` generations of them are all kept, and a pool
    has room for ``pool`` older ones."""

    samples: int
    every: int
    newest: int
    pool: int

    @property
    def slots(self) -> int:
        return self.samples * (self.newest + self.pool)


def plan_reservoir(slots: int, batch: int, beta: float) -> ReservoirPlan:
    """Divide at most ``slots`` slots, but at least 3, into generations, for batches of ``batch`` samples.

    Large generations are cheaper than many, because per-sample gradients are needed less often.

    >>> plan_reservoir(1024, batch=16, beta=0.997)
    ReservoirPlan(samples=16, every=10, newest=30, pool=34)
    >>> plan_reservoir(1024, batch=1, beta=0.999)
    ReservoirPlan(samples=1, every=2, newest=524, pool=500)
    >>> plan_reservoir(1024, batch=128, beta=0.97)
    ReservoirPlan(samples=93, every=5, newest=4, pool=7)
    """
    memory = round(1 / (1 - beta), 6)  # 10 for a β of 0.9, not 10.000000000000002
    span = (NEWEST_SPAN + POOL_SPAN) * memory
    interval = min(max(span / GENERATIONS, MIN_INTERVAL), MAX_INTERVAL)
    samples = min(batch, math.ceil(slots * interval / span), max(1, slots // MIN_GENERATIONS))
    every = span * samples / slots
    every = next(interval for interval in INTERVALS if interval >= min(every / MAX_ROUNDING, INTERVALS[-1]))
    pool = max(2, min(slots // samples - 1, math.ceil(POOL_SPAN * memory / every)))
    newest = max(1, min(slots // samples - pool, math.ceil(MAX_NEWEST_SPAN * memory / every)))
    return ReservoirPlan(samples, every, newest, pool)


class Reservoir(Correction):
    """Remembers samples of the past, as many as the plan has slots.

    Generations have columns: the first sample of a batch's first part enters the first column, and so on, and replaces
    a sample of that column. So ranks can have some columns each, and draw the same numbers as one process would.

    Args:
        plan: of all ranks together.
        seed: of random choices.
        part: a rank and the number of ranks.
    """

    def __init__(self, plan: ReservoirPlan, seed: int = 0, part: tuple[int, int] = (0, 1)) -> None:
        size = part[1]
        if plan.samples % size:
            raise ValueError(
                f"this reservoir has generations of {plan.samples} samples, which {size} ranks cannot share equally: "
                f"use a number of ranks that divides {plan.samples}."
            )
        self.plan = plan._replace(samples=plan.samples // size)
        self.every = plan.every
        self.seed = seed
        self._part = part

    def _uniform(self, counter: Tensor, stream: int) -> Tensor:
        """A random number for every column of this rank."""
        (rank, size), columns = self._part, self.plan.samples
        return uniform(self.seed, counter, columns * size, stream)[rank * columns : (rank + 1) * columns]

    def choose(
        self, memory: Memory, samples: int, call: int = 0, device: torch.device | None = None
    ) -> Selection | None:
        if not is_chosen(memory.get("step", 0), self.every, self.seed):
            return None
        wanted = self.plan.samples
        if samples <= wanted:
            return Selection(torch.arange(samples, device=device), float(self.every))
        generation = memory.get("generation", torch.zeros((), dtype=torch.int64, device=device))
        rows = stratified(samples, self._uniform(generation, stream=1 + call))
        return Selection(rows, self.every * samples / wanted)

    def update(
        self,
        memory: Memory,
        batch: Linearization | None,
        displacement: Tensor,
        beta: float | Tensor,
        replay: Replay | None = None,
    ) -> Tensor:
        if "weight" in memory:
            slots.move(memory, displacement, beta)
        memory["step"] = memory.get("step", 0) + 1
        if batch is not None:
            self._enter(memory, batch, beta)
        return slots.eta(memory) if "weight" in memory else self.no_eta(displacement)

    def _enter(self, memory: Memory, batch: Linearization, beta: float | Tensor) -> None:
        wanted = self.plan.samples
        if "weight" not in memory:
            self._allocate(memory, batch)
        if batch.samples > wanted:  # several batches in one step
            rows = stratified(batch.samples, self._uniform(memory["generation"], stream=0))
            batch = batch.select(rows).scaled(batch.samples / wanted)
        slots.fit(memory, batch)
        where = self._make_room(memory)
        slots.write(memory, batch, where, batch.curvature * (1 - per_run(beta, batch.curvature)))
        memory["generation"] += 1

    def _allocate(self, memory: Memory, batch: Linearization) -> None:
        slots.allocate(memory, batch, self.plan.slots)
        each, device = self.plan.samples, batch.slope.device
        # On the device, so that steps can be recorded as a CUDA graph and replayed.
        memory["generation"] = torch.zeros((), dtype=torch.int64, device=device)
        positions = torch.arange(self.plan.slots, device=device)
        memory["newest"], memory["pool"] = positions.view(-1, each).split([self.plan.newest, self.plan.pool])
        memory["newest"], memory["pool"] = memory["newest"].clone(), memory["pool"].clone()

    def joined(self, memories: Sequence[Memory]) -> Memory:
        if "weight" not in memories[0]:
            return memories[0]
        starts = [sum(m["weight"].shape[-1] for m in memories[:rank]) for rank in range(len(memories))]
        columns = {
            name: torch.cat([m[name] + start for m, start in zip(memories, starts, strict=True)], 1)
            for name in ("newest", "pool")
        }
        return {**memories[0], **slots.joined(memories), **columns}

    def part_of(self, memory: Memory, rank: int, size: int) -> Memory:
        if "weight" not in memory:
            return memory
        names = ("newest", "pool")
        own = torch.cat([memory[name].chunk(size, 1)[rank] for name in names])
        positions = torch.arange(own.numel(), device=own.device).view(own.shape)
        found = dict(zip(names, positions.split([len(memory[name]) for name in names]), strict=True))
        return {**memory, **slots.part_of(memory, own.flatten(), size), **{k: v.clone() for k, v in found.items()}}

    def _make_room(self, memory: Memory) -> Tensor:
        """Move the oldest of the newest generations to the pool, and return the slots of those that it replaces."""
        generation, newest, pool = memory["generation"], memory["newest"], memory["pool"]
        number = generation - self.plan.newest  # of the generation that moves; negative while there is none
        is_full = number >= self.plan.pool
        random = self._uniform(generation, stream=-1).mul_(self.plan.pool).long()
        row = torch.where(is_full, random, number.clamp(0, self.plan.pool - 1)).unsqueeze(0)
        freed = pool.gather(0, row)
        oldest = (generation % self.plan.newest).unsqueeze(0)
        # Those that survive count for those that do not.
        scale = torch.where(is_full, 1 / (1 - 1 / self.plan.pool), 1.0).to(memory["weight"])
        in_pool = pool.view(-1)
        memory["weight"].index_copy_(-1, in_pool, memory["weight"].index_select(-1, in_pool) * scale)
        pool.scatter_(0, row, newest.index_select(0, oldest))
        newest.index_copy_(0, oldest, freed)
        return freed[0]


def stratified(population: int, uniform: Tensor) -> Tensor:
    """One random index from each of equal parts of ``range(population)``, as many as there are random numbers.

    Every index is expected equally often.
    """
    parts = torch.arange(len(uniform), device=uniform.device)
    return ((parts + uniform) * (population / len(uniform))).long().clamp_(max=population - 1)
