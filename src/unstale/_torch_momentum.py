"""The momentum of torch's own optimizers, read and never written."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from ._flat_params import FlatParams


class TorchMomentum:
    """The running sum of gradients that ``torch.optim.SGD``, ``Adam`` or ``AdamW`` keeps of a model's parameters.

    Adam and AdamW keep ``(1-β) Σ_i β^{t-i} g_i``. SGD has ``1 - dampening`` instead of ``1 - β``, and 1 for the first.

    Args:
        model: whose parameters are looked at.
        optimizer: which moves all of them that are trainable.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, SGD | Adam):
            raise TypeError(
                f"Monitor reads the momentum of torch.optim.SGD, Adam and AdamW, not of {type(optimizer).__name__}. "
                "The optimizers of unstale measure themselves: unstale.diagnostics.read(optimizer)."
            )
        self._optimizer = optimizer
        self._key = "momentum_buffer" if isinstance(optimizer, SGD) else "exp_avg"
        self.params = FlatParams(_trainable(model, optimizer))
        self._settings()
        self._is_new = not any(optimizer.state[p].get(self._key) is not None for p in self.params.parameters)
        self.total = 0.0 if self._is_new else self._past_total()  # the sum of the weights of all gradients in it

    def _settings(self) -> dict[str, Any]:
        """Those of the groups of these parameters, which have one β."""
        ours = set(map(id, self.params.parameters))
        groups = [group for group in self._optimizer.param_groups if ours & set(map(id, group["params"]))]
        names = ("momentum", "dampening") if self._key == "momentum_buffer" else ("betas",)
        if any(group[name] != groups[0][name] for group in groups for name in names):
            raise ValueError(
                "the parameter groups have different momentum; make one Monitor for each part of the model."
            )
        if any(group["maximize"] for group in groups):
            raise ValueError("Monitor does not support maximize=True: it measures losses that are minimized.")
        if _beta(groups[0]) <= 0:
            raise ValueError(
                f"this {type(self._optimizer).__name__} has no momentum (β is 0), so nothing in it can be stale."
            )
        return groups[0]

    @property
    def beta(self) -> float:
        """``β`` of the next step."""
        return _beta(self._settings())

    def _fresh_weight(self) -> float:
        settings = self._settings()
        return 1 - _beta(settings) if "betas" in settings else 1.0 - settings["dampening"]

    def _past_total(self) -> float:
        """The sum of weights of a momentum that is there already; SGD does not count its steps, and may have many."""
        steps = max(float(self._optimizer.state[p].get("step", torch.inf)) for p in self.params.parameters)
        return self._fresh_weight() * (1 - self.beta**steps) / (1 - self.beta)

    def after_step(self) -> tuple[float, float]:
        """``β`` of the step that was made, and the weight with which its gradient came in."""
        # SGD's first momentum is the gradient itself.
        fresh = 1.0 if self._is_new and self._key == "momentum_buffer" else self._fresh_weight()
        self._is_new = False
        self.total = self.beta * self.total + fresh
        return self.beta, fresh

    def read(self) -> Tensor:
        """The momentum of all parameters, ``[n]``; zero where there is none yet."""
        kept = [self._optimizer.state[p].get(self._key) for p in self.params.parameters]
        return self.params.flat(
            torch.zeros_like(p) if x is None else x for p, x in zip(self.params.parameters, kept, strict=True)
        )


def _trainable(model: nn.Module, optimizer: Optimizer) -> list[nn.Parameter]:
    """The trainable parameters of the model, if the optimizer has them all."""
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    missing = [name for name, p in named if id(p) not in owned]
    if not named:
        raise ValueError("the model has no trainable parameters.")
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(named)} trainable parameters of the model are not in this optimizer (the first is "
            f"{missing[0]!r}). Pass the part of the model that it trains."
        )
    return [p for _, p in named]


def _beta(settings: dict[str, Any]) -> float:
    return float(settings["betas"][0] if "betas" in settings else settings["momentum"])
