"""One model on several ranks of ``torch.distributed``.

Every rank has the same parameters and its own part of each batch. Given how the parameters moved, ``η`` is linear in
the samples that it is made from. So a rank keeps what the correction remembers of its own samples (``ζ`` or slots), and

- ``.grad`` is the mean of the ranks' gradients: ``DistributedDataParallel`` averages it, or ``backward`` does;
- ``η`` is the mean of the ranks' ``η``: ``step`` averages it, before the trust bound;
- what one rank refuses (an error, an empty batch, a number that is not finite) all ranks refuse: before a rank goes on,
  all exchange a few numbers (:meth:`Ranks.agree`). Calls that do not match are found in the same way.

A mean over ranks is that of the ranks' means, as in ``DistributedDataParallel``: with batches of different sizes, the
samples of a small one count more.
"""

from __future__ import annotations

import gc
import math
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# The status of a rank at the end of a block that all ranks leave together.
FINE, SKIPS, NOT_FINITE, FAILED = range(4)
CALLS = ("backward", "plan", "batch", "gradients", "step", "replay")
MAX_VALUES = 6

SHARDED = (
    "these parameters are sharded over ranks (fully_shard, FullyShardedDataParallel), but per-sample gradients need "
    "whole ones on every rank: use DistributedDataParallel."
)


class RankError(RuntimeError):
    """Another rank stopped with an error, or the ranks do not do the same."""


class RankNotFiniteError(RankError, FloatingPointError):
    """A number on another rank is not finite."""


@dataclass
class Vote:
    """What a rank sends to the others at the end of a block, and after it: what all sent."""

    skips: bool = False  # afterwards: whether any rank does
    values: Sequence[float] = ()
    received: list[list[float]] = field(default_factory=list)  # the values of every rank


class Ranks:
    """The ranks that train one model together; without a process group, this process alone.

    Args:
        group: of the ranks.
        wrappers: those of ``DistributedDataParallel`` that average the gradients; without any, the optimizer does.
        device: of what is sent.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        wrappers: Sequence[nn.Module] = (),
        device: torch.device | None = None,
    ) -> None:
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("this process is not part of process_group, so it cannot train on its ranks.")
        self.bytes = 0  # handed to collectives so far
        self._group = group
        self._wrappers = wrappers
        self._device = device

    @property
    def has_wrappers(self) -> bool:
        """Whether ``DistributedDataParallel`` averages gradients while they are computed."""
        return self.size > 1 and bool(self._wrappers)

    @property
    def averages_gradients(self) -> bool:
        """Whether the optimizer averages ``.grad``, because nothing else does."""
        return self.size > 1 and not self._wrappers

    @property
    def fills_unused(self) -> bool:
        """Whether parameters get a gradient that this rank's batch does not use, but another's does."""
        return any(getattr(wrapper, "find_unused_parameters", False) for wrapper in self._wrappers)

    def mean_(self, tensor: Tensor) -> Tensor:
        """The mean over ranks, in place, the same on all of them."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self._group)
            tensor.div_(self.size)
            self.bytes += tensor.nbytes
        return tensor

    @contextmanager
    def agree(self, call: str) -> Iterator[Vote]:
        """A block that all ranks leave together; if one raises in it, all raise.

        The vote has the ranks' values afterwards, and whether any of them skips the step.
        """
        vote = Vote()
        try:
            yield vote
        except Exception as error:
            if self.size > 1:
                self._gather(call, NOT_FINITE if isinstance(error, FloatingPointError) else FAILED)
            raise
        if self.size == 1:
            vote.received = [list(vote.values)]
            return
        gathered = self._gather(call, SKIPS if vote.skips else FINE, vote.values)
        _check(gathered)
        vote.skips = any(status == SKIPS for _, status, *_ in gathered)
        vote.received = [values for _, _, *values in gathered]

    def _gather(self, call: str, status: int, values: Sequence[float] = ()) -> list[list[float]]:
        """The numbers of all ranks: call, status and values."""
        own = torch.zeros(2 + MAX_VALUES, dtype=torch.float64)
        own[: 2 + len(values)] = torch.tensor([CALLS.index(call), status, *values], dtype=torch.float64)
        own = own.to(self._device)
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(gathered, own, group=self._group)
        self.bytes += own.nbytes
        return [row.tolist() for row in gathered]

    def fingerprint(
        self, names: list[Any], settings: Sequence[dict[str, Any]], others: Sequence[Tensor]
    ) -> list[float]:
        """Numbers that are the same on all ranks if their models, options, steps and other tensors are."""
        if self.size == 1:
            return []
        parameters = [p for group in settings for p in group["params"]]
        text = repr((names, [list(tensor.shape) for tensor in (*parameters, *others)]))
        return [
            _hash_of(settings),
            float(zlib.crc32(text.encode())),
            *_norm_and_sum(parameters),
            *_norm_and_sum(others),
        ]

    def step_fingerprint(
        self, settings: Sequence[dict[str, Any]], gradients: Sequence[Tensor], parameters: Sequence[Tensor]
    ) -> list[float]:
        """Numbers that are the same on all ranks once gradients are averaged.

        They are those of the options, of which parameters have a gradient, and the norm and sum of the gradients.
        """
        if self.size == 1:
            return []
        has_gradient = bytes(p.grad is not None for p in parameters)
        return [_hash_of(settings), float(zlib.crc32(has_gradient)), *_norm_and_sum(gradients)]

    def needs_average(self, fingerprints: list[list[float]], parameters: Sequence[Tensor]) -> bool:
        """Whether the optimizer has to average gradients, by the fingerprints of all ranks."""
        if self.size == 1:
            return False
        if len({options for options, *_ in fingerprints}) > 1:
            raise RankError(
                "the ranks have different options, such as the learning rate: a schedule that depends on a loss needs "
                "the mean loss of all ranks, and backward() returns that of this rank."
            )
        fingerprints = [each[1:] for each in fingerprints]
        if self.averages_gradients:  # whatever else was added since backward() averaged them
            return any(each != fingerprints[0] for each in fingerprints)
        tolerance = math.sqrt(max(torch.finfo(p.dtype).eps for p in parameters))
        if any(_differ(each, fingerprints[0], tolerance) for each in fingerprints):
            raise RankError(
                "the ranks have different gradients, so DistributedDataParallel did not average all of them: call the "
                "wrapper, not its module, also for other losses, and leave no_sync() before the last backward(). Or "
                "pass process_group=, and the optimizer averages them."
            )
        return False

    def check_join(self) -> None:
        """Raise inside of ``DistributedDataParallel.join``, which repeats its own collectives only."""
        if any(getattr(getattr(wrapper, "_join_config", None), "enable", False) for wrapper in self._wrappers):
            raise RuntimeError("DistributedDataParallel.join() is not supported: give every rank as many batches.")


def _check(gathered: list[list[float]]) -> None:
    """Raise if a rank failed, or if ranks are in different calls."""
    for status, error, what in (
        (FAILED, RankError, "stopped with an error of its own (see its output)"),
        (NOT_FINITE, RankNotFiniteError, "has a loss or gradient that is not finite"),
    ):
        ranks = [str(rank) for rank, row in enumerate(gathered) if row[1] == status]
        if ranks:
            raise error(f"rank {', '.join(ranks)} {what}, so all ranks stop. Their parameters are unchanged.")
    calls = [CALLS[int(row[0])] for row in gathered]
    if len(set(calls)) > 1:
        where = ", ".join(f"rank {rank} in {call!r}" for rank, call in enumerate(calls))
        raise RankError(f"the ranks make different calls ({where}): all must call backward() and step() alike.")


def check_same(fingerprints: list[list[float]]) -> None:
    """Raise unless all ranks have the same."""
    if any(each != fingerprints[0] for each in fingerprints):
        raise RankError(
            "the ranks have different parameters, options, momentum or numbers of steps: make the same model and "
            "optimizer on every rank (DistributedDataParallel copies parameters, torch.distributed.broadcast does it "
            "by hand), and load states of one run and step on all of them."
        )


def _hash_of(settings: Sequence[dict[str, Any]]) -> float:
    """Of the options of all groups."""

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        if isinstance(value, Tensor):
            return value.tolist()
        return value if isinstance(value, int | float | str | None) else type(value).__name__  # no addresses

    options = [{key: plain(value) for key, value in group.items() if key != "params"} for group in settings]
    return float(zlib.crc32(repr(options).encode()))


def _norm_and_sum(tensors: Sequence[Tensor]) -> list[float]:
    """In float64, over all tensors."""
    norms = [float(torch.linalg.vector_norm(t.detach(), dtype=torch.float64)) for t in tensors]
    return [math.hypot(*norms), sum(float(t.detach().sum(dtype=torch.float64)) for t in tensors)]


def _differ(one: list[float], other: list[float], tolerance: float) -> bool:
    """Whether two fingerprints of gradients differ by more than rounding."""
    present, *numbers = one
    also_present, *other_numbers = other
    bound = tolerance * max(map(abs, numbers))
    return present != also_present or any(abs(a - b) > bound for a, b in zip(numbers, other_numbers, strict=True))


def is_initialized() -> bool:
    """Whether ``torch.distributed`` has a process group."""
    return dist.is_available() and dist.is_initialized()


def find(process_group: Any, parameters: Sequence[Tensor]) -> Ranks:
    """The ranks that train these parameters together.

    Args:
        process_group: a process group; None for this process alone; ``"auto"`` for the group of the
            ``DistributedDataParallel`` that holds parameters.
        parameters: of the optimizer.
    """
    if process_group is None or not is_initialized():
        return Ranks()
    wrappers = _wrappers_of(parameters)
    device = parameters[0].device
    if process_group != "auto":
        return Ranks(process_group, (), device)
    groups = [wrapper.process_group for wrapper in wrappers]
    if not groups and dist.get_world_size() > 1:
        raise RuntimeError(
            f"torch.distributed has {dist.get_world_size()} ranks, but no DistributedDataParallel holds the parameters "
            "of this optimizer: make it before the first batch, or pass process_group=torch.distributed.group.WORLD to "
            "average over ranks here, or process_group=None to train a model of its own on every rank."
        )
    if any(group is not groups[0] for group in groups):
        raise ValueError("the optimizer has parameters of DistributedDataParallel wrappers with different groups.")
    return Ranks(groups[0], wrappers, device) if groups else Ranks()


class RankDiscovery:
    """Finds the ranks that train an optimizer's parameters, and knows whether they were compared.

    A process group or wrapper may be made after the optimizer. So ranks are looked for at every use until they are
    settled, by the first comparison or step; afterwards only when ``torch.distributed`` is initialized or destroyed.
    """

    def __init__(self) -> None:
        self.ranks = Ranks()  # this process alone, until others are found
        self.are_compared = False  # parameters, options and states of all ranks
        self._is_settled = False
        self._was_initialized = False  # torch.distributed, when ranks were last looked for

    def is_needed(self) -> bool:
        """Whether to look for the ranks before they are used."""
        return not self._is_settled or self._was_initialized != is_initialized()

    def update(self, process_group: Any, parameters: Sequence[Tensor], has_state: bool) -> bool:
        """Look for the ranks. Returns whether this process's rank or the number of ranks changed.

        Args:
            process_group: as for :func:`find`.
            parameters: of the optimizer.
            has_state: whether the optimizer has a state or a batch of the ranks before, which must not change then.
        """
        was_initialized = is_initialized()
        found, before = find(process_group, parameters), self.ranks
        has_changed = (found.rank, found.size) != (before.rank, before.size)
        if has_changed and has_state:
            raise RuntimeError(
                f"this optimizer has a state of {before.size} rank(s), and there are {found.size} now: call "
                "init_process_group() and make DistributedDataParallel before the first batch and before "
                "load_state_dict(), or make a new optimizer afterwards, and load the state there."
            )
        self.ranks, self._was_initialized = found, was_initialized
        self.are_compared = self.are_compared and not has_changed
        return has_changed

    def restart(self) -> None:
        """Look for the ranks and compare them again: parameters were added."""
        self.are_compared = self._is_settled = False

    def settle(self) -> None:
        """Keep the ranks that were found, unless ``torch.distributed`` is initialized or destroyed."""
        self._is_settled = True

    def set_compared(self) -> None:
        """The ranks have the same parameters, options and states."""
        self.are_compared = True
        self.settle()


def _wrappers_of(parameters: Sequence[Tensor]) -> list[Any]:
    """Every ``DistributedDataParallel`` of this process that holds one of the parameters."""
    ours = {id(p) for p in parameters}
    sharding = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
    found = []
    for module in gc.get_objects():
        # By type: isinstance() asks objects for their class, and some objects answer with a warning.
        is_sharding = issubclass(type(module), sharding)
        if issubclass(type(module), nn.parallel.DistributedDataParallel) or is_sharding:
            if ours.isdisjoint(map(id, module.parameters())):
                continue
            if is_sharding:
                raise TypeError(SHARDED)
            found.append(module)
    return found


def refuse_sharded(parameters: Sequence[Any]) -> None:
    """Raise for parameters that are distributed tensors."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())
    if any(issubclass(type(p), kind) for p in parameters):
        raise TypeError(SHARDED)
