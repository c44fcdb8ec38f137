"""How stale is the momentum of an optimizer of torch, and would the correction pay off?

A :class:`Monitor` stands beside the user's own optimizer and changes nothing. It remembers recent batches in a window
(:class:`~unstale.corrections.window.Window`), as a correction does, and compares momentum with what it would be at the
current parameters::

    μ  = Σ_i w_i g_i                 as the optimizer keeps it; w_i the weight that batch i has in it now
    μ* = Σ_i w_i ∇J_i(θ)             the same with every remembered batch at the current parameters
    μ̂  = μ − min(1, ‖μ‖ / ‖η‖) η      the same to first order: what the correction would use
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import _step_cost, losses
from ._advice import MEANINGS, advise, table
from ._batch import (
    BackwardCall,
    BatchFunction,
    EvaluatedBatch,
    explained_freed_graph,
    read_batch,
    warn_constant_target,
    warn_replaced_target,
)
from ._batch_graph import UNRELATED_PREDICTION
from ._checks import is_count
from ._flat_params import FlatParams
from ._follow import check_live, check_still, extended, followable, replacing, target_leaves, target_warning
from ._grad_scaling import common_factor
from ._params import expanded
from ._torch_momentum import TorchMomentum
from ._warnings import warn_once
from .corrections import Window, paper_horizon, slots
from .losses import Loss, RowLoss
from .momentum import correct
from .per_sample.gradients import Linearization, merged, split_at
from .per_sample.linearize import TracedBatch, linearize, trace_batch
from .per_sample.slow import warn_slow

TRUST = 1.0  # the bound that corrected optimizers have by default


@dataclass
class _Batch:
    """A batch as it was when it was observed."""

    call: BackwardCall
    target: Tensor
    gradient: Tensor | None = None  # as it went into the momentum, if the batch can be evaluated again
    scale: float = 1.0  # of .grad, relative to the gradient of the observed loss (clipping, another factor of the loss)
    weight: float = 0.0  # in the momentum


class Monitor:
    """Measures the staleness of momentum beside ``torch.optim.SGD``, ``Adam`` or ``AdamW``. Training does not change.

    Call :meth:`observe` before every step. Give it the batch as a function that returns ``(prediction, target)`` to
    measure everything; with tensors, past batches cannot be evaluated again, and readings that need this are NaN.

    Observing costs about as much as correcting: per-sample gradients, and the samples of ``horizon`` batches in memory,
    with the gradient of each batch (``n`` numbers) if it came as a function.

    Args:
        model: the network whose values are learned.
        optimizer: which trains all of its trainable parameters.
        horizon: the number of batches to remember; ``None`` for ``2/(1-β)``, six sevenths of the momentum's weight.

    >>> import torch, unstale
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    >>> monitor = unstale.Monitor(model, optimizer)
    >>> for _ in range(30):
    ...     s, s_next, r = torch.randn(8, 2), torch.randn(8, 2), torch.randn(8)
    ...     batch = lambda s=s, s_next=s_next, r=r: (model(s).squeeze(-1), r + 0.9 * model(s_next).squeeze(-1))
    ...     value, target = monitor.observe(batch)
    ...     torch.nn.functional.mse_loss(value, target.detach()).backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> reading = monitor.read()
    >>> 0 < reading["staleness"] < 1, reading["cost"]
    (True, nan)
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, horizon: int | None = None) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch module, not {type(model).__name__}.")
        if horizon is not None and (not isinstance(horizon, int) or not is_count(horizon, most=1 << 40)):
            raise ValueError(f"horizon must be a whole number of at least 1, got {horizon!r}.")
        self._optimizer = optimizer
        self._momentum = TorchMomentum(model, optimizer)
        self._params = self._momentum.params
        self._joint = self._params  # with the parameters of followed networks after them
        self._followed: list[Tensor] = []
        self._modules = [model]  # whose buffers are restored
        self.horizon = horizon or paper_horizon(self._momentum.beta)
        self._window = Window(self.horizon)
        self._memory: dict[str, Any] = {}  # the window's
        self._steps: deque[list[_Batch]] = deque(maxlen=self.horizon)  # the batches of each observed step
        self._pending: list[tuple[_Batch, Linearization]] = []  # observed for the next step
        self._warned: set[str] = set()
        self._point = self._anchor = self._joint.point()  # of the pending batches, and of the window
        self._decay = 1.0  # since the last observed step
        self._match = self._cost = math.nan
        self._handle = optimizer.register_step_post_hook(lambda *_: self._after_step())

    def close(self) -> None:
        """Stop watching the optimizer."""
        self._handle.remove()

    def follow(self, network: nn.Module | Iterable[nn.Module | Tensor]) -> None:
        """Follow a target network: predict also how targets change when *its* parameters move.

        As ``optimizer.follow`` of the corrected optimizers: once, before the first :meth:`observe`; again, between
        steps, if another network of the same shapes takes its place. Targets have to be computed with the network live.

        Args:
            network: a module, a list of modules, or parameters. Parameters of the model among them are left out.
        """
        if isinstance(network, Iterator):
            network = list(network)
        new = followable(expanded(network), self._params.parameters)
        if self._pending:
            raise RuntimeError("follow() comes before the first observe() of a step: its batches are pending.")
        if self._steps:
            self._followed = replacing(self._followed, new, "observe")
            self._warned.discard(warn_replaced_target.__name__)
            del self._modules[1:]
        else:
            self._followed = extended(self._followed, new)
        modules = [network] if isinstance(network, nn.Module) else network
        self._modules += [part for part in modules if isinstance(part, nn.Module)]
        self._joint = FlatParams(self._params.parameters, followed=self._followed)
        if not self._steps:
            self._point = self._anchor = self._joint.point()

    # ---------------------------------------------------------------------------------------------------- observe

    def observe(
        self,
        prediction: Tensor | BatchFunction,
        target: Tensor | float | None = None,
        loss: Loss | str = losses.half_squared,
        *,
        weight: Tensor | float = 1.0,
    ) -> tuple[Tensor, Tensor | float]:
        """Look at the batch of the next step. Call it where the prediction is computed, before ``loss.backward()``.

        A batch that is not finite is not remembered. Several batches before one step are those of one gradient.

        Args:
            prediction: the network's values, or the batch as a function that returns ``(prediction, target)``. Bind its
                data as default arguments: it is called again later, and reading a variable that was assigned to since
                is an error.
            target: TD target of the same shape, not detached.
            loss: as in ``optimizer.backward`` of the corrected optimizers. A constant factor does not matter; it is
                found from ``.grad``, unless other losses add to that.
            weight: factor of the loss, as there.

        Returns:
            Prediction and target, to compute the loss from.
        """
        if isinstance(prediction, Tensor) and target is None:
            raise TypeError("observe() needs a target: call observe(prediction, target), or give it a function.")
        function, prediction, target = read_batch(prediction, target)
        call = BackwardCall(function, loss, weight.detach() if isinstance(weight, Tensor) else weight).exact()
        batch = call.evaluate(prediction, target)
        with explained_freed_graph("monitor.observe()"):
            traced = trace_batch(batch.prediction, batch.target, batch.columns)
        if not any(id(p) in traced.reached for p in self._params.parameters):
            raise ValueError(UNRELATED_PREDICTION)
        traced = self._checked_target(batch, traced)
        check_live(self._followed)
        with self._joint.hooks_disabled(), explained_freed_graph("monitor.observe()"):
            found = linearize(traced, [self._joint])
            if "slow" not in self._warned:
                again = partial(linearize, traced, [self._joint])
                if warn_slow(found, [self._joint], batch.prediction, again, batch.is_row_loss):
                    self._warned.add("slow")
        if math.isfinite(batch.check) and found.is_finite:
            if not self._pending:
                self._point = self._joint.point()
            elif self._followed:
                own = self._params.size
                check_still(self._point[own:], self._joint.point()[own:], "observe")
            slope, curvature = (x.to(self._params.device, self._params.dtype) for x in (batch.slope, batch.curvature))
            pieces, followed = found.gradients[0], self._joint.size - self._params.size
            if followed:
                pieces = split_at(pieces, self._params.size)
            samples = Linearization(pieces, slope, curvature, followed=followed)
            self._pending.append((_Batch(call, batch.target_value.clone()), samples))
        return prediction, target

    def _checked_target(self, batch: EvaluatedBatch, traced: TracedBatch) -> TracedBatch:
        """The batch without its target if that depends on nothing that is followed, which is warned about once."""
        own = self._params.parameters
        leaves = target_leaves(batch, traced)
        warn = target_warning(leaves, own, own, self._followed) if leaves else warn_constant_target
        if warn is not None:
            warn_once(self._warned, warn.__name__, partial(warn, "monitor"))
        is_followed = any(id(p) in leaves for p in self._joint.parameters)
        return traced if is_followed or batch.is_row_loss else traced.without_target()

    @torch.no_grad()
    def _after_step(self) -> None:
        """Let the remembered batches decay as in the momentum, and add those that were observed for this step."""
        if all(p.grad is None for p in self._params.parameters):
            self._pending.clear()  # torch's optimizers leave such parameters and their momentum alone
            return
        beta, fresh = self._momentum.after_step()
        self._decay *= beta
        for batch in (batch for step in self._steps for batch in step):
            batch.weight *= beta
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        batch_of_step = cast(Linearization, merged([samples for _, samples in pending]))
        observed, actual = batch_of_step.semi_gradient(), self._params.gradient()
        precision = max((torch.finfo(p.dtype) for p in self._params.parameters), key=lambda info: info.eps)
        scale = common_factor(observed, actual, precision, tolerance=1000) or 1.0
        self._match = _cosine(observed, actual)
        for batch, samples in pending:
            batch.scale, batch.weight = scale, fresh
            if batch.call.function is not None:
                batch.gradient = samples.semi_gradient() * scale
        # The window weighs a new batch by 1 - β, with the β that its older ones decay by.
        weighed = batch_of_step.scaled(scale * fresh / (1 - self._decay))
        self._window.update(self._memory, weighed, self._point - self._anchor, self._decay)
        self._anchor, self._decay = self._point, 1.0
        self._steps.append([batch for batch, _ in pending])

    # ------------------------------------------------------------------------------------------------------- read

    @torch.no_grad()
    def read(self) -> dict[str, float]:
        """All readings at the current parameters, as a flat dictionary of floats. What is not measured is NaN.

        Evaluates the remembered batches again: a forward and backward pass for each that came as a function. Restores
        ``.grad``, buffers and random number generators. ``print(monitor)`` explains every name.
        """
        found = dict.fromkeys(MEANINGS, math.nan)
        found.update(cost=self._cost, gradient_match=self._match, memory=1 / (1 - self._momentum.beta), coverage=0.0)
        if not self._steps:
            return found
        mu, point = self._momentum.read(), self._joint.point()
        slots.move(self._memory, point - self._anchor, 1.0)
        self._anchor = point
        eta = slots.eta(self._memory) * self._decay
        corrected, mu_norm, eta_norm, kept = correct(mu, eta, TRUST)
        assert kept is not None
        found["coverage"] = sum(step[0].weight for step in self._steps) / self._momentum.total
        found["batch"] = sum(batch.target.numel() for step in self._steps for batch in step) / len(self._steps)
        found["predicted_staleness"] = float(eta_norm / mu_norm)
        found["change"] = float(kept * eta_norm / mu_norm)
        batches = [batch for step in self._steps for batch in step]
        if all(batch.gradient is not None for batch in batches):
            found.update(self._compared(batches, mu, corrected))
        return found

    def _compared(self, batches: list[_Batch], mu: Tensor, corrected: Tensor) -> dict[str, float]:
        """The readings for which batches are evaluated again."""
        change, total, squares = torch.zeros_like(mu), torch.zeros_like(mu), 0.0
        drift = error = weight = 0.0
        with _step_cost.untouched(self._modules, self._params):
            for batch in batches:
                now = batch.call.evaluate_again()
                gradient = self._params.gradient_of(now.prediction, now.slope)
                assert batch.gradient is not None
                change += batch.weight * (batch.gradient - batch.scale * gradient)
                total += gradient
                squares += float(gradient.square().sum())
                drift += batch.weight * _mean_square(now.target_value - batch.target)
                error += batch.weight * _squared_error(batch.call, now)
                weight += batch.weight
        fresh, count = mu - change, len(batches)
        signal = (float(total.square().sum()) - squares) / (count * (count - 1)) if count > 1 else math.nan
        return {
            "staleness": float(change.norm() / mu.norm()),
            "agreement": _cosine(mu, fresh),
            "corrected_agreement": _cosine(corrected, fresh),
            "drift": math.sqrt(drift / weight),
            "relative_drift": math.sqrt(drift / error) if error else math.nan,
            "noise": 1 - signal * count / squares if squares else math.nan,
        }

    def measure_cost(self, steps: int = 20, rounds: int = 5) -> float:
        """The time of a training step with the corrected optimizer, relative to one without; :meth:`read` has it then.

        Trains copies of the parameters with the newest batch, ``rounds`` times ``steps`` steps with either optimizer.
        NaN if no batch came as a function. Call it between steps.
        """
        for name, value in (("steps", steps), ("rounds", rounds)):
            if not isinstance(value, int) or not is_count(value, most=1 << 40):
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
        calls = [batch.call for step in self._steps for batch in step if batch.call.function is not None]
        if calls:
            with _step_cost.untouched(self._modules, self._params):
                self._cost = _step_cost.measure(self._optimizer, self._params, self._followed, calls[-1], steps, rounds)
        return self._cost

    def advice(self) -> str:
        """One sentence: whether to use the correction here."""
        return self._advice(self.read())

    def __str__(self) -> str:
        """All readings with their meanings, and the advice."""
        reading, name = self.read(), type(self._optimizer).__name__
        heading = f"Momentum of {name}, {len(self._steps)} steps remembered"
        return "\n".join([heading, table(reading), self._advice(reading)])

    def _advice(self, reading: dict[str, float]) -> str:
        steps = math.inf if len(self._steps) == self.horizon else len(self._steps)
        sees_target = not self._warned - {"slow"}  # the other warnings are about targets
        return advise(reading, type(self._optimizer).__name__, steps, sees_target)


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def _squared_error(call: BackwardCall, batch: EvaluatedBatch) -> float:
    """The mean squared TD error; NaN for a loss of whole rows, whose predictions are not in units of the target."""
    if isinstance(call.loss, RowLoss):
        return math.nan
    return _mean_square(batch.prediction.detach() - batch.target_value)


def _mean_square(x: Tensor) -> float:
    return float(x.square().mean())
