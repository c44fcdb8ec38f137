"""The optimizer behind all of them: from ``backward`` to ``step``.

``backward`` linearises the batch where the parameters are, and leaves the semi-gradient in ``.grad``. ``step`` reads
``.grad`` (whatever was done to it meanwhile), asks the correction how stale momentum has become, and moves the
parameters. How far they moved is measured, never assumed: from one linearisation point to the next.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import losses, options
from .group import Group, State
from .inputs import BatchFunction, Evaluated, Request, read_batch, warn_constant_target
from .linearize import Linearizer
from .losses import Loss
from .momentum import correct
from .observe import observe
from .running import mean_
from .samples import Linearization


class CorrectedOptimizer(Optimizer):
    """Momentum that follows its targets. Subclasses say what the corrected momentum is divided by."""

    # Whether the denominator is made from per-sample gradients.
    _needs_samples = False

    def __init__(self, params: Any, defaults: dict[str, Any], given: dict[str, Any]) -> None:
        options.refuse_unknown(given, defaults, type(self).__name__)
        self._begin()
        # Told of every batch, and whether it is the first of its step; see diagnostics.
        self.watchers: list[Callable[[Request, Evaluated, bool], None]] = []
        if isinstance(params, nn.Module):
            params = observe(params).parameters()
        super().__init__(params, {**defaults, **options.DEFAULTS, **given})

    def _begin(self) -> None:
        """What is not saved: whatever lives between one ``backward`` and its ``step``."""
        self._groups: list[Group] = []
        self._requests: list[Request] = []
        self._samples = 0
        self.linearizer = Linearizer()
        self._refused = False
        self._warned = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; its ``params`` may be a module, and any option its own. Each group is corrected by itself."""
        if isinstance(param_group["params"], nn.Module):
            param_group = {**param_group, "params": list(observe(param_group["params"]).parameters())}
        options.check({**self.defaults, **param_group})
        if param_group.get("on_nonfinite", self.defaults["on_nonfinite"]) != self.defaults["on_nonfinite"]:
            raise ValueError("on_nonfinite is for the whole optimizer: a step is taken by every group or by none.")
        super().add_param_group(param_group)

    # ------------------------------------------------------------------ backward

    def backward(
        self,
        prediction: Tensor | BatchFunction,
        target: Tensor | float | None = None,
        loss: Loss | str = losses.half_squared,
        *,
        weight: Tensor | float = 1.0,
    ) -> Tensor:
        """Fill ``.grad`` with the semi-gradient of the mean loss, and remember what the correction needs.

        Instead of ``loss(prediction - target.detach()).mean().backward()``.

        Args:
            prediction: the network's values for a batch, shape ``[m]``; or the batch as a function that computes
                prediction and target afresh, which ``correction="oracle"`` and ``refresh`` need.
            target: what they are pulled towards, shape ``[m]``, *not* detached: how it drifts is the point.
            loss: elementwise loss of the residual, ``½ δ²`` by default: a name, a function of
                :mod:`unstale.losses`, or any twice-differentiable function of a tensor of residuals.
            weight: multiplies the loss of each sample (importance weights), or of all (a loss scale).

        Returns:
            The mean loss, detached.
        """
        batch, prediction, target = read_batch(prediction, target)
        request = Request(batch, loss, weight.detach() if isinstance(weight, Tensor) else weight)
        seen = request.evaluated(prediction, target)
        if seen.target is None and not self._warned and any(group.corrects for group in self._ready_groups()):
            self._warned = True
            warn_constant_target()
        return self._take(request, seen)

    def backward_log_likelihood(
        self, log_prob: Tensor | Callable[[], Tensor], *, weight: Tensor | float = 1.0
    ) -> Tensor:
        """:meth:`backward` for classification: ``log_prob [m]`` is the log-likelihood of each sample's right class.

        The loss is ``-mean log_prob``, and the Taylor term the paper's ``mean ∇f ∇fᵀ``.
        """
        batch: BatchFunction | None = None
        if not isinstance(log_prob, Tensor):
            again = log_prob
            log_prob, batch = again(), lambda: (again(), 0.0)
        request = Request(batch, losses.negative_log_likelihood, weight)
        return self._take(request, request.evaluated(log_prob, 0.0))

    def _take(self, request: Request, seen: Evaluated) -> Tensor:
        if not math.isfinite(seen.health):
            self._refuse(seen.health)
            return seen.mean
        groups = self._ready_groups()
        self._begin_or_accumulate(groups, request, len(seen.prediction))
        sampled = [group for group in groups if group.needs_samples]
        if not sampled:
            for group in groups:
                group.take(seen, None, set())
            torch.autograd.backward([seen.prediction], [seen.slope], retain_graph=True)
            return self._told(request, seen)
        found = self.linearizer.linearize(seen.prediction, seen.target, [group.block for group in sampled])
        if not found.reached and len(sampled) == len(groups):
            self._requests.pop()
            raise ValueError(
                "prediction depends on none of this optimizer's parameters: it comes from another network, or from "
                "a copy. Make the optimizer from the model that predicts."
            )
        pieces = dict(zip(sampled, found.pieces, strict=True))
        for group in groups:
            group.take(seen, pieces.get(group), found.reached)
        # Autograd fills the rest: plain groups, and leaves of the graph that are none of ours.
        filled = {id(p) for group in sampled if not group.is_hooked for p in group.block.parameters}
        rest = [leaf for leaf in found.leaves if id(leaf) not in filled]
        if rest:
            torch.autograd.backward([seen.prediction], [seen.slope], retain_graph=True, inputs=rest)
        return self._told(request, seen)

    def _told(self, request: Request, seen: Evaluated) -> Tensor:
        for watcher in self.watchers:
            watcher(request, seen, len(self._requests) == 1)
        return seen.mean

    @property
    def momentum_beta(self) -> float:
        """``β`` of the first parameter group."""
        return self._ready_groups()[0].beta

    def _ready_groups(self) -> list[Group]:
        for settings in self.param_groups[len(self._groups) :]:
            self._groups.append(Group(settings, self.linearizer, self._needs_samples))
        return self._groups

    def _begin_or_accumulate(self, groups: list[Group], request: Request, samples: int) -> None:
        if self._requests and all(p.grad is None for group in groups for p in group.block.parameters):
            self._forget()  # gradients were cleared, but not by our zero_grad
        if self._requests and samples != self._samples:
            raise ValueError(
                f"backward() got a batch of {samples} after one of {self._samples} in the same step. Accumulate "
                "batches of one size, or call step() and zero_grad() in between."
            )
        if request.batch is None and any(group.needs_function for group in groups):
            raise TypeError(
                "correction='oracle' and refresh evaluate past batches again: give backward() the batch as a function "
                "that returns (prediction, target), not the tensors."
            )
        if not self._requests:
            for group in groups:
                group.begin()
        self._requests.append(request)
        self._samples = samples

    def _refuse(self, health: Tensor) -> None:
        if self.defaults["on_nonfinite"] == "raise":
            raise FloatingPointError(
                f"the loss of this batch is {float(health)}: a prediction, target or weight is not finite, or training "
                "has diverged. Nothing was changed. Pass on_nonfinite='skip' to leave out such steps and count them."
            )
        self._refused = True

    # ---------------------------------------------------------------------- step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the parameters by the corrected momentum. ``closure``, if given, is called first, with gradients on,
        and should call :meth:`backward` itself."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._refused:
            shared = self.state_of("shared")
            shared["skipped"] = shared.get("skipped", 0) + 1
        else:
            groups = self._ready_groups()
            if not self._requests and any(group.needs_batch for group in groups):
                raise RuntimeError(
                    "step() came before backward(): call optimizer.backward(prediction, target) first. A gradient "
                    "left by loss.backward() alone says nothing of how it goes stale."
                )
            gradients = [group.gradients.read() for group in groups]
            scales = _known([group.scale(gradient) for group, gradient in zip(groups, gradients, strict=True)])
            # All directions first: an oracle must see the parameters of every group where they were.
            directions = [
                self._group_direction(group, self.state_of(f"group {number}"), gradients[number], scales[number])
                for number, group in enumerate(groups)
            ]
            for group, direction in zip(groups, directions, strict=True):
                if direction is not None:
                    group.block.move(direction, group.settings["lr"], group.settings["weight_decay"])
        self._forget()
        return loss

    def _group_direction(self, group: Group, state: State, gradient: Tensor, scale: Tensor | float) -> Tensor | None:
        """Where a group is to go; None for one that was added since the batch came."""
        settings = group.settings
        if not group.is_ready:
            return None
        batch = group.batch(scale)
        if not state:
            state["mu"] = torch.zeros_like(gradient)
            # On the CPU, where counting needs no kernel, and in double precision: 0.999^t must not be rounded.
            state["step"] = torch.zeros((), dtype=torch.float64)
            state["bounded"] = torch.zeros((), device=gradient.device)
            state["memory"] = {}
        state["step"] += 1
        momentum = mean_(state["mu"], gradient, group.beta)
        if group.corrects:
            eta = group.eta(state, batch, scale, self._requests)
            # The oracle expands nothing, so there is nothing to distrust.
            corrected = correct(momentum, eta, None if group.is_oracle else settings["trust"], out=group.scratch)
            momentum, state["mu_norm"], state["eta_norm"], kept = corrected
            if kept is not None:
                state["bounded"] += kept < 1
            if settings["recursion"] == "literal":
                state["literal"] = momentum * -settings["lr"]
        return self._direction(state, settings, momentum, gradient, batch)

    @abstractmethod
    def _direction(
        self, state: State, settings: dict[str, Any], momentum: Tensor, gradient: Tensor, batch: Linearization
    ) -> Tensor:
        """The corrected momentum, divided as the optimizer has it."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and with them the batches that made them, if no step has used them yet."""
        if set_to_none:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
        else:
            super().zero_grad(set_to_none)
        self._forget()

    def _forget(self) -> None:
        for group in self._groups:
            group.forget()
        self._requests = []
        self._refused = False

    # --------------------------------------------------------------------- state

    def state_of(self, name: str) -> State:
        """The state kept under a name: ``"group 0"`` and so on, or ``"shared"``. A group is one flat vector, so its
        state belongs to no single parameter."""
        return cast(dict[str, State], self.state)[name]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; tensors keep their precision and go to the device of their group's parameters."""
        if any("correction" not in settings for settings in state_dict["param_groups"]):
            raise ValueError("this state was saved by another kind of optimizer; it knows nothing of corrections.")
        super().load_state_dict(state_dict)
        states = cast(dict[str, State], self.state)
        devices = {f"group {n}": settings["params"][0].device for n, settings in enumerate(self.param_groups)}
        for name, state in states.items():
            states[name] = _copied(state, devices.get(name, "cpu"))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin()
        self.watchers = self.__dict__.get("watchers", [])


def _known(scales: list[Tensor | None]) -> list[Tensor | float]:
    """By how much each group's gradients were scaled. One that cannot tell (another loss reached all its tensors)
    goes by the others: clipping is mostly done to all at once."""
    told = [scale.cpu() if len(scales) > 1 else scale for scale in scales if scale is not None]
    if not told:
        return [1.0] * len(scales)
    common = torch.stack(told).nanmean().nan_to_num(1.0)
    return [1.0 if scale is None else torch.where(scale.isnan(), common.to(scale), scale) for scale in scales]


def _copied(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, copy=True)
    if isinstance(value, dict):
        return {key: _copied(part, "cpu" if key == "step" else device) for key, part in value.items()}
    if isinstance(value, list):
        return [_copied(part, device) for part in value]
    return value
