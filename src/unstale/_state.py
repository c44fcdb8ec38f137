"""What is saved of an optimizer, and the checks before any of it is loaded.

A state is checked as a whole: types, shapes, dtypes, counters, positions of slots, and that numbers are finite. If a
check fails, the optimizer stays as it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NotRequired, TypedDict

import torch
from torch import Tensor

from . import _options, corrections
from ._checks import is_finite
from ._ranks import Ranks
from ._warnings import user_stacklevel
from .corrections.saved import (
    Layout,
    check_counter,
    check_entries,
    check_memory_of,
    check_plan,
    check_tensor,
    refuse,
)

# Changes when a state that was saved before can no longer be loaded.
STATE_FORMAT = 3
# Options that states of this format may lack, because they came later.
ADDED_OPTIONS = ("memory_limit",)
MAX_STEPS = 2.0**53  # beyond, a float64 cannot count

PAST_BATCHES_LOST = (
    "past batches of correction='oracle' and refresh are functions and are not part of a state: gradients from before "
    "it was saved stay in the momentum as they are, uncorrected, until they have decayed."
)


class GroupState(TypedDict, total=False):
    """What is saved of a group. Vectors are flat, ``[n]``; counters and norms have no dimensions."""

    step: Tensor  # float64, on the CPU: 0.999^t must not be rounded
    mu: Tensor
    square: Tensor  # the running mean in Adam's and RMSprop's denominators
    mean_weight: float  # the sum of the weights of all gradients in mu
    plan: corrections.Plan  # what was decided at the first batch
    memory: corrections.Memory  # what the correction remembers
    anchor: Tensor  # the parameters at the last linearization, and those of followed networks
    literal: Tensor  # -α μ̂ of the last step, for recursion="literal"
    mu_norm: Tensor
    eta_norm: Tensor
    bounded: Tensor  # steps on which the trust bound acted


class GroupHeader(TypedDict):
    """What the parameters of a group look like."""

    shapes: list[list[int]]
    dtype: str


class Header(TypedDict):
    """Says whose state it is."""

    format: int
    optimizer: str
    groups: list[GroupHeader]
    followed: NotRequired[list[list[int]]]
    rank: NotRequired[tuple[int, int]]  # and the number of ranks


def make_header(optimizer: str, groups: Sequence[dict[str, Any]], followed: Sequence[Tensor], ranks: Ranks) -> Header:
    """The header of an optimizer's state."""
    return {
        "format": STATE_FORMAT,
        "optimizer": optimizer,
        "groups": [
            {"shapes": [list(p.shape) for p in settings["params"]], "dtype": str(settings["params"][0].dtype)}
            for settings in groups
        ],
        "followed": [list(p.shape) for p in followed],
        "rank": (ranks.rank, ranks.size),
    }


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two entries are equal; arrays, whose comparison has no single answer, are not."""
    try:
        return bool(one == other)
    except Exception:
        return False


def check_header(saved: Any, own: Header) -> None:
    """Refuse a state that does not belong to the optimizer with the header ``own``."""
    if not isinstance(saved, dict) or not _is_equal(saved.get("format"), STATE_FORMAT):
        found = f"format {saved.get('format')!r}" if isinstance(saved, dict) else "no 'unstale' entry"
        raise ValueError(
            f"this state_dict has {found} and cannot be loaded: it was not saved by a Corrected* optimizer of this "
            f"version (format {STATE_FORMAT}). Load the parameters of the model alone, and start the optimizer anew."
        )
    check_entries("its header", saved, ["format", "optimizer", "groups"], ["followed", "rank"])
    if not _is_equal(saved["optimizer"], own["optimizer"]):
        raise ValueError(f"this state_dict was saved by {saved['optimizer']}, not by {own['optimizer']}.")
    if not isinstance(saved["groups"], list):
        refuse("its header has no list of groups")
    if len(saved["groups"]) != len(own["groups"]):
        raise ValueError(
            f"this state_dict has {len(saved['groups'])} parameter group(s), this optimizer has "
            f"{len(own['groups'])}. Make the optimizer with the same groups."
        )
    for number, (theirs, ours) in enumerate(zip(saved["groups"], own["groups"], strict=True)):
        check_entries(f"group {number} of its header", theirs, ["shapes", "dtype"])
        for what, value in ours.items():
            if not _is_equal(theirs[what], value):
                raise ValueError(
                    f"parameter group {number} of this state_dict has {what} {theirs[what]}, not {value}. "
                    "Load it with the same model, in the same precision and order of parameters."
                )
    if not _is_equal(saved.get("followed", []), own["followed"]):
        raise ValueError(
            f"this state_dict follows networks of shapes {saved.get('followed', [])}, this optimizer "
            f"{own['followed']}. Call optimizer.follow(target_network) before load_state_dict(), as it was called "
            "when the state was saved."
        )
    rank = saved.get("rank", (0, 1))
    is_pair = isinstance(rank, list | tuple) and len(rank) == 2 and all(type(number) is int for number in rank)
    if not is_pair or not 0 <= rank[0] < rank[1]:
        refuse(f"its header has the rank {rank!r}")


def checked_settings(saved: Any, own: Sequence[dict[str, Any]], option_names: Sequence[str]) -> list[dict[str, Any]]:
    """The settings that a state brings, one dictionary per group, with the optimizer's own parameters.

    Args:
        saved: the ``param_groups`` of a state.
        own: those of the optimizer.
        option_names: that every group has.
    """
    if not isinstance(saved, list) or len(saved) != len(own):
        refuse(f"it has no list of {len(own)} param_groups")
    found = []
    for number, (theirs, ours) in enumerate(zip(saved, own, strict=True)):
        where = f"param_groups[{number}]"
        needed = ["params", *(name for name in option_names if name not in ADDED_OPTIONS)]
        check_entries(where, theirs, needed, list(theirs) if isinstance(theirs, dict) else ())
        if not isinstance(theirs["params"], list) or len(theirs["params"]) != len(ours["params"]):
            refuse(f"{where} does not have {len(ours['params'])} parameters")
        if not all(isinstance(index, int) for index in theirs["params"]):
            refuse(f"{where} has parameters that are not numbered: {theirs['params']!r}")
        if not is_finite(theirs.get("lr", 0.0)):
            refuse(f"lr of {where} is {theirs['lr']!r}")
        try:
            # Not the learning rate: a schedule may end slightly below 0, which the constructor refuses.
            _options.check({**theirs, "lr": 0.0})
        except (ValueError, TypeError) as error:
            refuse(f"{where} has an invalid option: {str(error).rstrip('.')}")
        if theirs["on_nonfinite"] != saved[0]["on_nonfinite"]:
            refuse("its groups differ in on_nonfinite")
        found.append({**theirs, "params": ours["params"]})
    return found


class SavedGroup(NamedTuple):
    """A parameter group as its settings in a state describe it."""

    settings: dict[str, Any]
    layout: Layout
    lengths: Sequence[int]  # of its parameters in the flat vector
    device: torch.device
    has_square: bool
    needs_replay: bool
    needs_displacement: bool

    def build(self, plan: corrections.Plan, part: tuple[int, int]) -> corrections.Correction:
        """The correction of a plan, for a rank of a number of ranks."""
        return corrections.build(plan, self.settings, self.lengths, self.layout.followed, part)


def check_groups(saved: Any, groups: Sequence[SavedGroup], part: tuple[int, int]) -> None:
    """Raise ValueError unless ``saved`` is the ``"state"`` of an optimizer with these groups.

    Args:
        saved: the ``"state"`` of a state.
        groups: of the optimizer.
        part: the rank that saved it, and the number of ranks.
    """
    names = [f"group {number}" for number in range(len(groups))]
    check_entries("its state", saved, [], [*names, "shared"])
    shared = check_entries("'shared'", saved.get("shared", {}), [], ["skipped"])
    check_counter("'skipped'", shared.get("skipped", 0), most=MAX_STEPS)
    for name, group in zip(names, groups, strict=True):
        if not _is_equal(saved.get(name, {}), {}):
            _check_group(f"'{name}'", saved[name], group, part)


def _check_group(where: str, state: Any, group: SavedGroup, part: tuple[int, int]) -> None:
    settings, layout = group.settings, group.layout
    is_corrected = settings["correction"] != "none"
    needed = ["step", "mu", "bounded", "memory", "mean_weight"]
    needed += ["square"] if group.has_square else []
    needed += ["plan", "mu_norm", "eta_norm"] if is_corrected else []
    needed += ["anchor"] if is_corrected and settings["correction"] != "oracle" else []
    check_entries(where, state, needed, list(GroupState.__annotations__))
    check_tensor(f"step of {where}", state["step"], [], torch.float64)
    steps = check_counter(f"step of {where}", state["step"], most=MAX_STEPS, least=1)
    sizes = {"mu": layout.size, "square": layout.size, "literal": layout.size, "anchor": layout.joint}
    for name in sizes.keys() & state.keys():
        check_tensor(f"{name} of {where}", state[name], [sizes[name]], layout.dtype)
    for name in {"mu_norm", "eta_norm", "bounded"} & state.keys():
        # Norms may have overflowed: they are read by diagnostics alone.
        check_tensor(f"{name} of {where}", state[name], [], may_be_infinite=name != "bounded")
        if state[name].is_complex() or not 0 <= float(state[name]) <= (steps if name == "bounded" else float("inf")):
            refuse(f"{name} of {where} is {state[name].item()}")
    if "square" in state and bool((state["square"] < 0).any()):
        refuse(f"square of {where} has negative entries")
    if not is_finite(state["mean_weight"]) or not 0 < state["mean_weight"] <= 1 + 1e-9:
        refuse(f"mean_weight of {where} is {state['mean_weight']!r}, not in (0, 1]")
    if not is_corrected:
        check_entries(f"memory of {where}", state["memory"], [])
        return
    plan = check_plan(f"the plan of {where}", state["plan"], settings["correction"])
    check_memory_of(group.build(plan, part), f"memory of {where}", state["memory"], layout, steps)


def copied(value: Any, device: torch.device | str) -> Any:
    """A state with tensors of its own, on a device."""
    if isinstance(value, Tensor):
        return value.detach().to(device, copy=True)
    if isinstance(value, dict):
        on_cpu = ("step", "samples")  # counters that positions and exponents are computed from
        return {key: copied(part, "cpu" if key in on_cpu else device) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(part, device) for part in value)
    return value


# ---------------------------------------------------------------------------------------------------------- loading


@contextmanager
def refuse_unexpected_errors() -> Iterator[None]:
    """Refuse a state in which torch or Python finds an error: an entry has a type that no check expects."""
    try:
        yield
    except (ValueError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        refuse(f"{type(error).__name__}, {error}")


def read_settings(
    states: Sequence[Any], own: Header, groups: Sequence[dict[str, Any]], option_names: Sequence[str]
) -> list[dict[str, Any]]:
    """The settings that states bring, as in :func:`checked_settings`, after a check of their headers.

    Args:
        states: of one rank or more.
        own: the header of the optimizer.
        groups: its ``param_groups``.
        option_names: that every group has.
    """
    for state in states:
        check_header(state.get("unstale") if isinstance(state, dict) else state, own)
    checked = [checked_settings(state.get("param_groups"), groups, option_names) for state in states]
    return checked[0]


def read_own_state(
    states: Sequence[dict[str, Any]], groups: Sequence[SavedGroup], ranks: Ranks
) -> tuple[dict[str, Any], bool]:
    """A copy of this rank's part of states, after a check of them; and whether it lacks past batches.

    Args:
        states: of one rank or more, whose settings are checked.
        groups: of the optimizer, with the settings of the states.
        ranks: that load them.
    """
    for each in states:
        check_groups(each.get("state"), groups, _rank_of(each))
    is_own = _check_ranks(states, ranks)
    found = {"shared": copied(states[0]["state"].get("shared", {}), "cpu")}
    lacks_batches = False
    for number, group in enumerate(groups):
        parts = [copied(each["state"].get(f"group {number}", {}), group.device) for each in states]
        found[f"group {number}"] = state = parts[0]
        if state.get("memory") and not is_own:
            correction = group.build(state["plan"], (ranks.rank, ranks.size))
            joined = correction.joined([part["memory"] for part in parts])
            state["memory"] = correction.part_of(joined, ranks.rank, ranks.size)
        if state.get("memory") and group.needs_replay:
            lacks_batches = True
            if not group.needs_displacement:
                state["memory"] = {}  # an oracle starts a new average, of batches that it can evaluate
    return {**states[0], "state": {name: state for name, state in found.items() if state}}, lacks_batches


def _rank_of(state: dict[str, Any]) -> tuple[int, int]:
    """The rank that saved a state, and the number of ranks."""
    rank, size = state["unstale"].get("rank", (0, 1))
    return rank, size


def _check_ranks(states: Sequence[dict[str, Any]], ranks: Ranks) -> bool:
    """Whether a state is this rank's own; or an error unless these are the states of all ranks that saved."""
    saved = [_rank_of(state) for state in states]
    if saved == [(ranks.rank, ranks.size)]:
        return True
    remembers = any(group.get("memory") for group in states[0]["state"].values() if isinstance(group, dict))
    if saved != [(rank, len(states)) for rank in range(len(states))] and (remembers or len(states) > 1):
        rank, size = saved[0]
        raise ValueError(
            f"this state was saved by rank {rank} of {size}, and this is rank {ranks.rank} of {ranks.size}: pass "
            f"load_state_dict() the list of the states of all {size} ranks, in their order."
        )
    steps = {str([group.get("step") for group in state["state"].values()]) for state in states}
    if len(steps) > 1:
        raise ValueError("the ranks' states are of different steps: save them on all ranks after the same step.")
    return False


def forget_past_batches(states: Iterable[dict[str, Any]]) -> None:
    """Empty the memory of oracles, with a warning, in the states of a copy of an optimizer.

    Past batches are not copied. Without them an oracle would take their gradients off the momentum.
    """
    for state in states:
        if state.get("memory") and state["plan"]["correction"] == "oracle":
            state["memory"] = {}
            warn_lost_batches()


def warn_lost_batches() -> None:
    """Warn that gradients of past batches stay uncorrected."""
    warnings.warn(PAST_BATCHES_LOST, stacklevel=user_stacklevel())
