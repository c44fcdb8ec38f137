"""Target networks: parameters that targets depend on, and that something else than the optimizer moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

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
    others = [p for p in parameters if id(p) not in owned]
    if not others:
        raise ValueError(
            "follow() is for a target network with parameters of its own; these are the optimizer's, which it corrects "
            "anyway."
        )
    return others


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
