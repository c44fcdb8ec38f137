"""Options of all corrected optimizers, with their defaults, docs and checks."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Sequence
from numbers import Integral, Rational
from typing import Any, TypedDict

import torch

from . import corrections
from ._checks import is_count, is_finite, is_number
from ._warnings import user_stacklevel

MAX_COUNT = 1 << 40  # of slots, batches or columns: more than any memory holds
MAX_REFRESH = 1 << 16  # ages


class UnusedOptionWarning(UserWarning):
    """An option has no effect with the chosen correction."""


class Options(TypedDict, total=False):
    """Keyword arguments of every optimizer. Groups may differ in all but ``on_nonfinite`` and ``process_group``."""

    correction: str
    trust: float | None
    slots: int | None
    budget: float
    horizon: int | None
    weight_decay: float
    block_size: int | None
    refresh: Sequence[int]
    recursion: str
    second_order: bool
    seed: int
    memory_limit: float | None
    on_nonfinite: str
    process_group: Any  # of the whole optimizer; not saved


DEFAULTS: dict[str, Any] = dict(
    correction="auto",
    trust=1.0,
    slots=None,
    budget=corrections.DEFAULT_BUDGET,
    horizon=None,
    weight_decay=0.0,
    block_size=None,
    refresh=(),
    recursion="displacement",
    second_order=False,
    seed=0,
    memory_limit=None,
    on_nonfinite="raise",
)

DOC = """
        correction: how past gradients are corrected. ``"none"``: not at all. ``"diagonal"``: with the diagonal of the
            Taylor term. ``"blocks"``: with blocks of it, one per parameter tensor or ``block_size`` wide. ``"dense"``:
            with all of it, n×n. ``"window"``: with all of it, from the samples of the last ``horizon`` steps.
            ``"reservoir"``: with an unbiased estimate of all of it, from ``slots`` past samples, for networks of any
            size and any ``β``. ``"oracle"``: past batches are evaluated again (``backward`` then takes the batch as a
            function). ``"auto"``: dense if its matrix is within ``budget``; else a window if the slots hold every
            sample that still counts; else a reservoir. ``repr(optimizer)`` says what was chosen at the first batch.
        trust: bound ``κ`` on the norm of the correction, relative to that of the momentum; ``None`` for no bound.
        slots: how many past samples a reservoir keeps. Default: as many as ``budget`` allows. Too few for a given ``β``
            are noisy (:class:`unstale.FewSlotsWarning`).
        budget: how long a step may take, relative to the uncorrected optimizer, as estimated from sizes. It limits what
            ``"auto"`` chooses and how many slots there are; at least 128 are used, and the first costs about 1.9.
        horizon: number of batches in a window or oracle, including the newest; fixed at the first step. Default: the
            first with ``β^h < 1e-3``. :func:`unstale.paper_horizon` gives the paper's ``2/(1-β)``.
        weight_decay: decoupled weight decay, ``θ ← (1 - lr · weight_decay) θ``.
        block_size: width of the blocks of ``"blocks"``. Default: one block per parameter tensor.
        refresh: ages (in steps) at which the window linearizes a remembered batch again, such as ``(1, 2, 4, 8)``.
        recursion: ``"displacement"`` uses the measured displacement of the parameters. ``"literal"`` uses the paper's
            ``α μ̂``, which is correct for plain SGD at a constant learning rate only; for comparison.
        second_order: keep second derivatives in the Taylor term (small models; not with ``"window"`` or
            ``"reservoir"``).
        seed: of the choice of samples and batches, of a reservoir or of ``"auto"``.
        memory_limit: the most bytes that a correction may keep between steps, as estimated at the first batch; more
            raises :class:`MemoryError`. Default: half of the free memory of the device.
        on_nonfinite: ``"raise"`` an error if a loss, a weight, a derivative of loss, prediction or target, or an entry
            of ``.grad`` is not finite; or ``"skip"`` the step and count it.
        process_group: ranks of ``torch.distributed`` that train this model together; ``backward`` averages their
            gradients. Default (``"auto"``): those of the ``DistributedDataParallel`` that holds the parameters.
            ``None``: this process alone.
"""


def check(group: dict[str, Any]) -> None:
    """Raise ValueError for an invalid option of a parameter group."""
    for name in ("lr", "eps", "weight_decay", "trust", "budget", "memory_limit"):
        _check_type(name, group.get(name))
    for name, value in _betas(group):
        usual = 0.999 if name == "betas[1]" else 0.9
        if value is None and name in ("beta", "betas[0]"):
            continue
        _check_type(name, value)
        if not is_finite(value) or not 0 <= value < 1:
            raise ValueError(f"{name} must be in [0, 1), got {value!r}; 0 is no memory at all, {usual} is usual.")
    for name in ("lr", "eps", "weight_decay"):
        if name in group and not is_number(group[name]):
            raise ValueError(f"{name} must be a number, got {group[name]!r}.")
        if name in group and not group[name] >= 0:
            raise ValueError(f"{name} must not be negative, got {group[name]}.")
        if name in group and not is_finite(group[name]):
            raise ValueError(f"{name} must be finite, got {group[name]}.")
    _one_of("correction", group, corrections.NAMES)
    _one_of("recursion", group, ("displacement", "literal"))
    _one_of("on_nonfinite", group, ("raise", "skip"))
    if group["trust"] is not None and not _is_above(group["trust"], 0):
        raise ValueError(f"trust must be positive, or None for no bound, got {group['trust']!r}.")
    for name in ("slots", "horizon", "block_size"):
        if group[name] is not None and not is_count(group[name]):
            raise ValueError(f"{name} must be a whole number of at least 1, or None, got {group[name]!r}.")
        if group[name] is not None and group[name] > MAX_COUNT:
            raise ValueError(f"{name} must be at most {MAX_COUNT:,}, or None, got {group[name]}.")
    if not _is_above(group["budget"], 1):
        raise ValueError(f"budget must be a number above 1, the cost of an uncorrected step, got {group['budget']!r}.")
    if not isinstance(group["seed"], int) or isinstance(group["seed"], bool) or group["seed"] < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {group['seed']!r}.")
    limit = group.get("memory_limit")
    if limit is not None and not _is_above(limit, 0):
        raise ValueError(f"memory_limit must be a positive number of bytes, or None, got {limit!r}.")
    if group["slots"] is not None and group["correction"] not in ("reservoir", "auto"):
        raise ValueError(
            f"slots are for correction='reservoir' (or 'auto'), got {group['correction']!r}; give slots=None with it."
        )
    # A generator would be used up here, and a set has no order to compare ranks by.
    refresh = group["refresh"]
    is_list = isinstance(refresh, Sequence) and not isinstance(refresh, str | bytes) and len(refresh) <= MAX_REFRESH
    if not is_list or not all(isinstance(age, Integral) and is_count(age) for age in refresh):
        raise ValueError(
            f"refresh must list ages in steps of at least 1, got {group['refresh']!r}. Give a tuple such as (1, 2, 4)."
        )
    if len(group["refresh"]) and group["correction"] not in ("window", "auto"):
        raise ValueError(f"refresh needs correction='window' (or 'auto'), got {group['correction']!r}.")
    if not isinstance(group["second_order"], bool):
        raise ValueError(f"second_order must be True or False, got {group['second_order']!r}.")
    if group["second_order"] and group["correction"] in ("window", "reservoir", "oracle", "none"):
        raise ValueError(
            f"second_order=True does nothing for correction={group['correction']!r}; "
            "use 'dense', 'blocks' or 'diagonal'."
        )


# The corrections that an option has an effect on.
_USERS: dict[str, tuple[str, ...]] = {
    "horizon": ("window", "oracle", "auto"),
    "budget": ("reservoir", "auto"),
    "seed": ("reservoir", "auto"),
    "memory_limit": tuple(name for name in corrections.CLASSES if name not in ("oracle", "diagonal")),
    "trust": tuple(name for name in corrections.CLASSES if name != "oracle"),
    "recursion": tuple(name for name in corrections.CLASSES if name != "oracle"),
}


def refuse_unused(given: dict[str, Any], groups: Sequence[dict[str, Any]]) -> None:
    """Warn about options that were given but have no effect on any of the groups; raise for a contradiction.

    Args:
        given: options as they were given for these groups. Default values never warn.
        groups: the settings of the groups.
    """
    used = list(dict.fromkeys(settings["correction"] for settings in groups))
    names = " and ".join(map(repr, used))
    if given.get("block_size") is not None and "blocks" not in used:
        raise ValueError(f"block_size={given['block_size']!r} needs correction='blocks', got {names}.")
    for option, users in _USERS.items():
        if option in given and given[option] not in (DEFAULTS[option], None) and not set(used) & set(users):
            warnings.warn(
                f"{option}={given[option]!r} has no effect with correction={names}; leave it out. It is for "
                f"{', '.join(map(repr, users))}.",
                UnusedOptionWarning,
                stacklevel=user_stacklevel(),
            )
    if given.get("budget", DEFAULTS["budget"]) != DEFAULTS["budget"] and given.get("slots") is not None:
        warnings.warn(
            f"budget={given['budget']!r} has no effect, because slots={given['slots']!r} are given; leave one of them "
            "out.",
            UnusedOptionWarning,
            stacklevel=user_stacklevel(),
        )


def refuse_unknown(given: Iterable[str], own: Iterable[str], owner: str) -> None:
    """Raise TypeError for an unknown keyword argument of ``owner``, with a suggestion."""
    known = [*own, *DEFAULTS, "process_group"]
    for name in sorted(set(given) - DEFAULTS.keys()):
        meant = "beta" if "beta" in own else "betas"
        close = [meant] if name in ("momentum", "beta") else difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(known)}."
        raise TypeError(f"{owner} got an unknown argument {name!r}; {hint}")


def check_process_group(given: Any) -> Any:
    """The process group, None or ``"auto"``; or an error."""
    is_group = torch.distributed.is_available() and isinstance(given, torch.distributed.ProcessGroup)
    if given is None or is_group or (isinstance(given, str) and given == "auto"):
        return given
    raise TypeError(f"process_group must be a process group, None or 'auto', got {given!r}.")


def _betas(group: dict[str, Any]) -> list[tuple[str, Any]]:
    if "betas" not in group:
        return [(name, group[name]) for name in ("beta", "alpha") if name in group]
    betas = group["betas"]
    if not isinstance(betas, Sequence) or len(betas) != 2:
        raise ValueError(f"betas must be two numbers, such as (0.9, 0.999), got {betas}.")
    return [("betas[0]", betas[0]), ("betas[1]", betas[1])]


def _is_above(value: Any, bound: float) -> bool:
    """Whether it is a number above a bound, or infinite."""
    return is_number(value) and bool(value > bound)


def _check_type(name: str, value: Any) -> None:
    """Refuse numbers that torch cannot compute with."""
    if not isinstance(value, Rational):
        return
    if not isinstance(value, Integral):
        raise ValueError(f"{name} must be a float, got the fraction {value}.")
    if not is_finite(value):
        raise ValueError(f"{name} is too large for floating point.")


def _one_of(name: str, group: dict[str, Any], allowed: Sequence[str]) -> None:
    if not isinstance(group[name], str) or group[name] not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {group[name]!r}.")
