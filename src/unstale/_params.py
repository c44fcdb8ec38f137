"""Parameters as users give them: modules, tensors, or groups of these."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from ._ranks import refuse_sharded


def expanded(params: Any) -> Any:
    """``params`` with every module replaced by its parameters, each parameter once.

    Args:
        params: a module, an iterable that may contain modules, or anything else that torch's optimizers take, which is
            returned as it is.
    """
    if isinstance(params, nn.Module):
        params = [params]
    elif isinstance(params, Tensor | set | frozenset | dict | str) or not isinstance(params, Iterable):
        if isinstance(params, dict) and any(isinstance(part, nn.Module) for part in params.values()):
            raise TypeError("params is a dictionary of modules; use a list of them, list(params.values()).")
        if not isinstance(params, Iterable):
            raise TypeError(f"params must be a module, parameters or groups of them, not {type(params).__name__}.")
        return params  # torch accepts or refuses it
    params = list(params)
    if any(isinstance(part, list | tuple) and any(isinstance(p, nn.Module) for p in part) for part in params):
        raise TypeError("params has lists of modules in a list; use one flat list of modules.")
    if not any(isinstance(part, nn.Module) for part in params):
        return params
    found = [p for part in params for p in (part.parameters() if isinstance(part, nn.Module) else [part])]
    return list({id(p): p for p in found}.values())


def check_parameters(parameters: Sequence[Any], followed: Sequence[Tensor]) -> None:
    """Raise for tensors that an optimizer cannot have as the parameters of a group.

    Args:
        parameters: of the group, or pairs of a name and a parameter.
        followed: those of target networks, which the optimizer does not move.
    """
    if not parameters:
        raise ValueError("a parameter group has no parameters; leave it out, or check how they were selected.")
    tensors = [_without_name(parameter) for parameter in parameters]
    refuse_sharded(tensors)
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"parameters must be tensors of real floating-point numbers, not {kind}.")
    if {id(p) for p in tensors} & {id(p) for p in followed}:
        raise ValueError(
            "params has parameters of a followed network. follow() is for networks that something else moves: "
            "make the optimizer with all parameters that it optimizes, and follow the others."
        )


def _without_name(parameter: Any) -> Any:
    """The parameter of a pair from ``named_parameters()``; anything else as it is."""
    is_named = isinstance(parameter, tuple) and len(parameter) == 2 and isinstance(parameter[0], str)
    return parameter[1] if is_named else parameter
