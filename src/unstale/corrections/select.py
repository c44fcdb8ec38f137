"""Which correction to use, how long it remembers, and what that costs.

The cost of a step is counted in multiply-adds, with the overhead of operations as so many multiply-adds more. The rule
depends on sizes and the kind of device only, never on measured times, so that a run can be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

from torch import Tensor

from .._checks import is_finite
from ..momentum import MIN_MEMORY
from .base import Correction
from .blocks import Blocks, dense
from .diagonal import Diagonal
from .oracle import Oracle
from .reservoir import Reservoir, ReservoirPlan, plan_reservoir
from .window import Window

CLASSES: dict[str, type[Correction]] = {
    "diagonal": Diagonal,
    "blocks": Blocks,
    "dense": Blocks,
    "window": Window,
    "reservoir": Reservoir,
    "oracle": Oracle,
    "auto": Reservoir,  # or dense or window, which have the same needs
}
NAMES = ("none", *CLASSES)
# Corrections with a long memory, unless β is given.
LONG_MEMORY = ("auto", "dense", "reservoir")

DEFAULT_BETA = 0.9
MAX_MEMORY = 2000.0  # steps
# A reservoir with fewer slots than this share of the samples in the momentum's memory is noisy.
MIN_SAMPLING_RATIO = 1 / 8
MAX_SAMPLING_RATIO = 0.4
# A dense matrix made from this many samples is as good as one of all samples.
ENOUGH_SAMPLES = 3000
DENSE_INTERVALS = (5, 2, 1)  # in steps; the longest that leaves enough samples is chosen

DEFAULT_BUDGET = 2.5
MIN_SLOTS, MAX_SLOTS = 128, 4096
MAX_SLOT_BYTES = 1 << 30  # of all slots, unless their number is given
MAX_DENSE_BYTES = 1 << 28  # of a dense matrix, unless it is asked for
# The cost of a step in multiply-adds: the overhead of the operations of a small training step; the work per number in a
# slot, besides multiply-adds (both fitted to times on a CPU, see benchmarks/budget.py); the work per entry of a dense
# matrix, memory traffic included (set by hand, so that the largest matrix stays within the default budget).
OVERHEAD = {"cpu": 4.3e7, "cuda": 6.0e10}
SLOT_NUMBER_WORK, DENSE_ENTRY_WORK = 70, 37
# What a step costs, in uncorrected steps, before the first slot is read: bookkeeping, and per-sample gradients of some.
FIXED_COST = 1.9


class Plan(TypedDict):
    """What was decided at the first batch."""

    correction: str
    horizon: int  # of a window or oracle, in steps
    batch: int  # samples in the first batch
    every: int  # steps between batches that enter a dense matrix
    reservoir: list[int] | None
    max_memory: float  # of a growing β, in steps
    reason: str


class Sizes(TypedDict):
    """What a plan depends on, besides settings."""

    parameters: int
    followed: NotRequired[int]  # parameters of followed networks
    slot_numbers: int  # stored per sample in a slot
    batch: int
    device: str
    itemsize: int


def default_horizon(beta: float) -> int:
    """The number of steps after which a batch weighs less than a thousandth: ``β^h < 1e-3``.

    >>> default_horizon(0.9), default_horizon(0.99), default_horizon(0.0)
    (66, 688, 1)
    """
    if not is_finite(beta) or not 0 <= beta < 1:
        raise ValueError(f"beta must be in [0, 1), got {beta!r}.")
    return max(1, math.floor(math.log(1e-3) / math.log(beta)) + 1) if beta > 0 else 1


def paper_horizon(beta: float) -> int:
    """The paper's horizon, ``2 / (1-β)``, which leaves out 12 to 14 % of the weight.

    >>> paper_horizon(0.9), paper_horizon(0.99)
    (20, 200)
    """
    if not is_finite(beta) or not 0 <= beta < 1:
        raise ValueError(f"beta must be in [0, 1), got {beta!r}.")
    return max(1, round(2 / (1 - float(beta))))


def extra_work(budget: float, sizes: Sizes) -> float:
    """The multiply-adds per step that a correction may take.

    An uncorrected step takes the overhead of its operations and about ``6 m n`` multiply-adds (two forward passes and a
    backward pass).
    """
    overhead = OVERHEAD.get(sizes["device"], OVERHEAD["cuda"])
    return (budget - FIXED_COST) * (overhead + 6 * sizes["batch"] * sizes["parameters"])


def slots_within(budget: float, sizes: Sizes, memory: float = MAX_MEMORY / 2) -> int:
    """The number of slots within the budget, a multiple of 128. Each takes about ``3 n`` multiply-adds.

    ``memory`` is that of the momentum, in steps. Slots for more than 40 % of the samples in it would need per-sample
    gradients in more than one step in five.
    """
    slot_work = 3 * sizes["parameters"] + SLOT_NUMBER_WORK * sizes["slot_numbers"]
    slots = min(
        MAX_SLOTS,
        extra_work(budget, sizes) / slot_work,
        MAX_SAMPLING_RATIO * memory * sizes["batch"],
    )
    slots = max(MIN_SLOTS, math.floor(slots / 128) * 128)
    return max(1, min(slots, MAX_SLOT_BYTES // (sizes["slot_numbers"] * sizes["itemsize"])))


def dense_interval(batch: int, memory: float) -> int:
    """Steps between batches that enter a dense matrix."""
    return next(every for every in DENSE_INTERVALS if every == 1 or batch * memory >= ENOUGH_SAMPLES * every)


def make_plan(settings: dict[str, Any], beta: float | None, sizes: Sizes, ranks: int = 1) -> Plan:
    """Decide, at the first batch, what ``settings`` leave open.

    Args:
        settings: of a parameter group.
        beta: ``β``, if it is given.
        sizes: of the model and the batch, on all ranks together.
        ranks: how many share the samples of a reservoir equally.
    """
    name, batch = settings["correction"], sizes["batch"]
    memory = 1 / (1 - beta) if beta is not None else MAX_MEMORY
    slots = int(settings["slots"] or 0)
    if not slots:
        slots = slots_within(settings["budget"], sizes, memory if beta is not None else MAX_MEMORY / 2)
    reason = ""
    if name == "auto":
        name, reason = _choose(settings, beta, slots, sizes)
    if name == "window" and beta is None:
        memory = 1 / (1 - DEFAULT_BETA)
    if name == "reservoir" and beta is None:
        memory = max(1 / (1 - DEFAULT_BETA), min(MAX_MEMORY, slots / (batch * MIN_SAMPLING_RATIO)))
    horizon = int(settings["horizon"] or default_horizon(DEFAULT_BETA if beta is None else beta))
    reservoir = list(plan_reservoir(slots, batch, 1 - 1 / memory)) if name == "reservoir" else None
    if reservoir is not None:
        reservoir[0] = max(ranks, reservoir[0] - reservoir[0] % ranks)
    every = dense_interval(batch, memory) if name == "dense" and settings["correction"] == "auto" else 1
    return Plan(
        correction=name,
        horizon=horizon,
        batch=batch,
        every=every,
        reservoir=reservoir,
        max_memory=memory,
        reason=reason,
    )


def _choose(settings: dict[str, Any], beta: float | None, slots: int, sizes: Sizes) -> tuple[str, str]:
    """What ``correction="auto"`` means, and why."""
    n, followed, batch = sizes["parameters"], sizes.get("followed", 0), sizes["batch"]
    if settings["second_order"]:
        return "dense", "second derivatives need the matrix"
    if settings["refresh"]:
        return "window", "refresh needs batches to be kept whole"
    if settings["slots"] is None and _fits_dense(settings["budget"], sizes):
        return "dense", f"a {n:,}×{n + followed:,} matrix is within the budget"
    most = slots if settings["slots"] is not None else slots_within(settings["budget"], sizes)
    if beta is not None and default_horizon(beta) * batch <= most:
        return "window", f"{most:,} slots hold every sample that still counts"
    if settings["slots"] is not None:
        return "reservoir", "slots are given"
    if slots == MIN_SLOTS:
        return "reservoir", f"{slots:,} slots are the fewest that are used; the budget may be exceeded"
    return "reservoir", f"{slots:,} slots are within the budget, a {n:,}×{n + followed:,} matrix is not"


def _fits_dense(budget: float, sizes: Sizes) -> bool:
    entries = sizes["parameters"] * (sizes["parameters"] + sizes.get("followed", 0))
    return entries * sizes["itemsize"] <= MAX_DENSE_BYTES and entries * DENSE_ENTRY_WORK <= extra_work(budget, sizes)


def describe(plan: Plan, beta: float | None) -> str:
    """What was decided, and why, in one line. ``beta`` is ``β`` if it was given."""
    parts = [plan["correction"]]
    if plan["reservoir"] is not None:
        samples, every, newest, pool = plan["reservoir"]
        when = "in every step" if every == 1 else f"every {every} steps"
        parts = [f"reservoir of {samples * (newest + pool):,} slots, {samples} new samples {when}"]
    elif plan["correction"] in ("window", "oracle"):
        parts = [f"{plan['correction']} of {plan['horizon']:,} batches"]
    elif plan["every"] > 1:
        parts = [f"{plan['correction']}, one batch in {plan['every']}"]
    if beta is None:
        longest = f"{1 - 1 / plan['max_memory']:.4g}"
        parts.append(f"β grows to {longest}" if plan["max_memory"] > MIN_MEMORY else f"β {longest}")
    return ", ".join(parts) + (f" ({plan['reason']})" if plan["reason"] else "")


def too_few_slots(plan: Plan, batch: int) -> str | None:
    """What to do about a reservoir with too few slots for its ``β``; None if it has enough."""
    if plan["reservoir"] is None:
        return None
    slots, memory = ReservoirPlan(*plan["reservoir"]).slots, plan["max_memory"]
    if slots >= MIN_SAMPLING_RATIO * batch * memory * 0.8:  # slots are rounded to whole generations
        return None
    enough, shorter = math.ceil(round(MIN_SAMPLING_RATIO * batch * memory, 6)), slots / (MIN_SAMPLING_RATIO * batch)
    shortest = 1 / (1 - DEFAULT_BETA)  # if β is left out
    return (
        f"{slots:,} slots are few for β = {1 - 1 / memory:.4g} and batches of {batch}: the correction is noisy, and "
        f"can diverge at large learning rates. Use at least {enough:,} slots"
        + (f", or β of at most {1 - 1 / shorter:.4g}" if shorter > 1 else "")
        + (", or leave β out." if memory > shortest + 1e-6 else ".")
    )


def build(
    plan: Plan, settings: dict[str, Any], lengths: Sequence[int], followed: int = 0, part: tuple[int, int] = (0, 1)
) -> Correction:
    """The planned correction, for parameters of the given lengths and ``followed`` parameters of followed networks.

    ``part`` is a rank and the number of ranks: samples of the others are remembered elsewhere.
    """
    correction = _build(plan, settings, lengths, followed, part)
    correction.followed = followed
    return correction


def _build(
    plan: Plan, settings: dict[str, Any], lengths: Sequence[int], followed: int, part: tuple[int, int]
) -> Correction:
    name = plan["correction"]
    if name == "diagonal":
        return Diagonal()
    if name == "dense":
        return dense(sum(lengths), plan["every"], settings["seed"], plan["batch"], followed)
    if name == "blocks":
        lengths = block_lengths(settings, lengths)
        return Blocks(lengths, followed=lengths if followed else ())  # a copy is cut like the parameters
    if name == "window":
        return Window(plan["horizon"], settings["refresh"])
    if name == "reservoir":
        assert plan["reservoir"] is not None
        return Reservoir(ReservoirPlan(*plan["reservoir"]), settings["seed"], part)
    return Oracle(plan["horizon"])


def block_lengths(settings: dict[str, Any], lengths: Sequence[int]) -> Sequence[int]:
    """The sizes of the blocks of ``correction="blocks"``, for parameters of the given lengths."""
    if settings["block_size"] is None:
        return [length for length in lengths if length]  # a parameter may be empty
    width = int(settings["block_size"])
    whole, rest = divmod(sum(lengths), width)
    return [width] * whole + [rest] * (rest > 0)


def slot_numbers(parameters: Sequence[Tensor]) -> int:
    """Numbers stored per sample, for prediction and target: ``i + o`` for a matrix ``[o, i]``, else all entries."""
    return 2 * sum(min(p.numel(), sum(p.shape)) if p.ndim == 2 else p.numel() for p in parameters)
