"""Letting the library see the layers of a model.

An observed layer leaves a note of its input on the autograd node that it made. The note lives exactly as long as
that graph does, so nothing is kept between steps, nothing leaks, and it does not matter in which order, how often
or from where the layers are called.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from .layers import does_what_its_type_says

NOTE = "unstale"


class Note(NamedTuple):
    """What a layer leaves on the graph. Its output is not here: the node is, and a reference back would leak."""

    module: nn.Module
    input: Tensor
    version: int  # of the input, to notice if it is changed in place
    parameters: dict[str, nn.Parameter | None]  # as they were during the call


def observe(model: nn.Module) -> nn.Module:
    """Let optimizers see the layers of ``model``, and return it. Calling it again changes nothing.

    Per-sample gradients of ``Linear``, ``Conv1d``, ``Conv2d``, ``Embedding`` and ``LayerNorm`` layers then come
    from one ordinary backward pass, in factored form. Without it they are found by batched vector-Jacobian
    products: right for any graph, only slower and larger.

    >>> import torch, unstale
    >>> model = unstale.observe(torch.nn.Linear(2, 1))
    >>> unstale.unobserve(model) is model
    True
    """
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise TypeError(
                "DistributedDataParallel is not supported yet: it averages gradients as autograd brings them, past "
                "which corrected optimizers fill .grad, and the correction itself would have to be averaged too."
            )
        if does_what_its_type_says(module) and _leave_note not in module._forward_hooks.values():
            module.register_forward_hook(_leave_note)
    return model


def unobserve(model: nn.Module) -> nn.Module:
    """Undo :func:`observe`, and return the model."""
    for module in model.modules():
        for key, hook in list(module._forward_hooks.items()):
            if hook is _leave_note:
                del module._forward_hooks[key]
    return model


# A function of the module, not a closure, so that observed models can still be copied and pickled.
def _leave_note(module: nn.Module, inputs: tuple, output: Tensor) -> None:
    node = output.grad_fn
    if node is not None and len(inputs) == 1 and does_what_its_type_says(module):
        note = Note(module, inputs[0], inputs[0]._version, dict(module._parameters))
        node.metadata[NOTE] = note  # type: ignore[index]
