"""Target networks: parameters that targets depend on, and that something else than the optimizer moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._batch import EvaluatedBatch, warn_replaced_target, warn_unfollowed_target
from .per_sample.linearize import TracedBatch
from .per_sample.trace import reached_leaves

# Corrections that pair every parameter with its own copy.
NEED_COPIES = ("diagonal", "blocks")


def followable(parameters: Any, optimized: Sequence[Tensor]) -> list[Tensor]:
    """The parameters of a target network that are not optimized; or an error.

    Args:
        parameters: of the target network.
        optimized: the parameters of the optimizer, which it follows anyway.
    """
    if not isinstance(parameters, list) or not all(isinstance(p, Tensor) for p in parameters):
        raise TypeError(
            f"follow() takes a module, or a list of modules or parameters, not {type(parameters).__name__}."
        )
    check_live(parameters)
    owned = set(map(id, optimized))
    others = list({id(p): p for p in parameters if id(p) not in owned}.values())
    if not parameters:
        raise ValueError("follow() is for a target network with parameters; this one has none.")
    if not others:
        raise ValueError(
            "follow() is for a target network with parameters of its own; these are the optimizer's, which it corrects "
            "anyway."
        )
    return others


def extended(followed: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
    """The followed parameters, and those of another network that are not among them."""
    known = set(map(id, followed))
    return [*followed, *(p for p in parameters if id(p) not in known)]


def replacing(followed: Sequence[Tensor], parameters: Sequence[Tensor], method: str) -> list[Tensor]:
    """Parameters that take the place of the followed ones after the first batch; or an error.

    Displacements are differences of values, so they stay right if every parameter has its counterpart.

    Args:
        followed: the parameters of all networks that are followed now.
        parameters: those of the networks in their place.
        method: that takes batches, for messages.
    """
    if not followed:
        raise RuntimeError(f"follow() comes before the first {method}(): past batches were not followed.")
    shapes, others = ([list(p.shape) for p in each] for each in (followed, parameters))
    if shapes != others:
        raise RuntimeError(
            f"follow() comes before the first {method}(). After that it takes a replacement of what it follows alone, "
            f"with parameters of the same shapes in the same order: {shapes}, not {others}. If there are several "
            "target networks, pass all of them, follow([first, second])."
        )
    return list(parameters)


def check_still(before: Tensor, now: Tensor, method: str) -> None:
    """Raise if followed parameters, given as vectors, changed since the first batch of a step."""
    if not torch.equal(before, now):
        raise RuntimeError(
            f"a followed network changed between two calls of {method}() of one step. Update it after step()."
        )


def target_leaves(batch: EvaluatedBatch, traced: TracedBatch) -> set[int]:
    """The ids of the leaves that the target, as it was given, depends on."""
    if batch.given_target is None:
        return set()
    is_traced = len(traced.traces) > 1 and not batch.is_row_loss
    return traced.traces[1].reached if is_traced else reached_leaves(batch.given_target)


def target_warning(
    leaves: set[int], own: Sequence[Tensor], corrected: Sequence[Tensor], followed: Sequence[Tensor]
) -> Callable[..., None] | None:
    """The warning that a target deserves; None if all is well.

    Args:
        leaves: ids of what the target depends on.
        own: the parameters that are optimized.
        corrected: those of them whose changes are seen.
        followed: the parameters of target networks, whose changes are seen too.
    """
    # A target need not depend on all that is followed: REDQ draws two of its target critics.
    if followed and not any(id(p) in leaves for p in followed) and leaves - {id(p) for p in own}:
        return warn_replaced_target
    return None if any(id(p) in leaves for p in (*corrected, *followed)) else warn_unfollowed_target


def check_live(parameters: Sequence[Tensor]) -> None:
    """Raise unless autograd differentiates by all of these parameters."""
    if not all(p.requires_grad for p in parameters):
        raise ValueError(
            "a followed network has parameters with requires_grad=False, so targets have no gradient by them. Call "
            "target_network.requires_grad_(True) and leave the network out of all optimizers; backward() adds nothing "
            "to its .grad."
        )


def followed_by(settings: dict[str, Any], groups: Sequence[dict[str, Any]], followed: Sequence[Tensor]) -> list[Tensor]:
    """The followed parameters that matter to one parameter group; or an error if its correction cannot follow.

    Args:
        settings: of the group.
        groups: the settings of all groups.
        followed: the parameters of all followed networks.
    """
    name = settings["correction"]
    if not followed or name in ("none", "oracle"):
        return []
    if settings["recursion"] == "literal":
        raise ValueError("recursion='literal' does not support followed networks; use recursion='displacement'.")
    if name not in NEED_COPIES:
        return list(followed)
    shapes = [list(p.shape) for group in groups for p in group["params"]]
    if [list(p.shape) for p in followed] != shapes:
        raise ValueError(
            f"correction={name!r} follows a copy of the optimizer's parameters only, of the same shapes in the same "
            f"order: {shapes}, not {[list(p.shape) for p in followed]}. Follow all its networks in one call, "
            "follow([first, second]), or use correction='auto'."
        )
    start = 0
    for group in groups:
        if group is settings:
            break
        start += len(group["params"])
    return list(followed[start : start + len(settings["params"])])
