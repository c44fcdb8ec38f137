"""Measurements of staleness, and of the accuracy of the correction, from a running corrected optimizer.

:func:`read` and :func:`groups` read what the optimizer has computed anyway. A :class:`DriftMonitor` remembers recent
batches and evaluates them again in :meth:`DriftMonitor.read`, which costs one forward and backward pass per batch.
:class:`unstale.Monitor` measures other optimizers, those of torch.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

from ._batch import BackwardCall, EvaluatedBatch
from ._checks import is_count
from ._flat_params import FlatParams
from ._optimizer import CorrectedOptimizer
from .corrections import describe, paper_horizon
from .per_sample.gradients import Linearization, split_at
from .per_sample.linearize import linearize, trace_batch


class GroupReading(NamedTuple):
    """One parameter group, as its last step left it. What is not measured is NaN."""

    staleness: float  # ‖η‖ / ‖μ‖: the correction's size against the momentum's
    bounded_share: float  # the share of steps on which the trust bound was active
    steps: int
    correction: str  # what "auto" selected
    beta: float  # of the next step
    chosen: str  # what was decided at the first batch, and why; empty before


class Drift(NamedTuple):
    """Changes of recent batches since they were used."""

    drift: float  # mean squared change of their targets
    weighted_drift: float  # the same, each batch weighed as momentum weighs it, by β^age
    agreement: float  # mean cosine of their corrected gradients with their gradients at the current parameters
    stale_agreement: float  # the same for their gradients as they were, uncorrected
    batches: int


def read(optimizer: CorrectedOptimizer) -> dict[str, float]:
    """What to log, as a flat dictionary of numbers. What is not measured is NaN.

    With several parameter groups the names of all but ``skipped_steps`` end with the number of the group:
    ``staleness/0``, ``staleness/1`` and so on.

    The optimizer leaves these numbers on the device. Reading waits for them; training does not.

    - ``staleness``: ``‖η‖ / ‖μ‖`` of the last step, before the trust bound: how far the gradients in the momentum have
      changed since they came, relative to the momentum. 0: not at all. Above 1: they have changed by more than what is
      left of them in the average. NaN without correction, and before the first step.
    - ``bounded_share``: the share of steps on which the trust bound was active. NaN where there is no bound.
    - ``beta``: ``β`` of the next step.
    - ``memory``: ``1 / (1-β)``, the number of steps that momentum averages over.
    - ``steps``: the number of steps made.
    - ``skipped_steps``: the number of steps that ``on_nonfinite="skip"`` skipped.

    >>> import torch, unstale
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = unstale.CorrectedSGD(model, lr=0.1)
    >>> unstale.diagnostics.read(optimizer)["staleness"]
    nan
    >>> for _ in range(3):
    ...     value = model(torch.ones(4, 2)).squeeze(-1)
    ...     loss = optimizer.backward(value, 1 + 0.9 * model(torch.zeros(4, 2)).squeeze(-1))
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> reading = unstale.diagnostics.read(optimizer)
    >>> reading["steps"], reading["bounded_share"], 0 < reading["staleness"] < 1
    (3.0, 0.0, True)
    """
    readings = groups(optimizer)
    found: dict[str, float] = {}
    for number, group in enumerate(readings):
        suffix = f"/{number}" if len(readings) > 1 else ""
        found[f"staleness{suffix}"] = group.staleness
        found[f"bounded_share{suffix}"] = group.bounded_share
        found[f"beta{suffix}"] = group.beta
        found[f"memory{suffix}"] = 1 / (1 - group.beta)
        found[f"steps{suffix}"] = float(group.steps)
    found["skipped_steps"] = float(skipped_steps(optimizer))
    return found


def groups(optimizer: CorrectedOptimizer) -> list[GroupReading]:
    """The numbers of :func:`read` for every parameter group, with what was decided about it, in words."""
    _check_optimizer(optimizer)
    readings = []
    for number, group in enumerate(optimizer.ready_groups()):
        state, settings = optimizer.state_of(f"group {number}"), group.settings
        steps = int(state.get("step", 0))
        is_measured = "eta_norm" in state
        is_bounded = is_measured and group.needs_displacement and settings["trust"] is not None
        readings.append(
            GroupReading(
                staleness=_ratio(state["eta_norm"], state["mu_norm"]) if is_measured else math.nan,
                bounded_share=float(state["bounded"]) / steps if is_bounded else math.nan,
                steps=steps,
                correction=state["plan"]["correction"] if "plan" in state else settings["correction"],
                beta=float(group.beta_at(steps + 1, state.get("plan"))),
                chosen=describe(state["plan"], group.given_beta) if "plan" in state else "",
            )
        )
    return readings


def _ratio(eta_norm: Tensor, mu_norm: Tensor) -> float:
    """``‖η‖ / ‖μ‖``; 0 if nothing has changed, also where there is no momentum yet."""
    return float(eta_norm / mu_norm) if eta_norm else 0.0


def skipped_steps(optimizer: CorrectedOptimizer) -> int:
    """The number of steps that were skipped because of non-finite numbers (``on_nonfinite="skip"``)."""
    _check_optimizer(optimizer)
    return int(optimizer.state_of("shared").get("skipped", 0))


def _check_optimizer(optimizer: object) -> None:
    if not isinstance(optimizer, CorrectedOptimizer):
        raise TypeError(
            f"diagnostics read the optimizers of unstale, not {type(optimizer).__name__}; unstale.Monitor measures "
            "those of torch."
        )


class _Remembered(NamedTuple):
    call: BackwardCall
    batch: Linearization
    point: Tensor
    target: Tensor
    step: int


class DriftMonitor:
    """Remembers every ``every``-th batch of the last ``horizon`` steps.

    The default horizon is the paper's, ``2/(1-β)``, at the ``β`` of the time when the monitor is made.

    Pass batches to ``backward`` as functions, so that they can be evaluated again::

        monitor = unstale.diagnostics.DriftMonitor(optimizer)
        optimizer.backward(lambda s=s, r=r, s_next=s_next: (model(s), r + gamma * model(s_next)))
        ...
        print(monitor.read())
    """

    def __init__(self, optimizer: CorrectedOptimizer, horizon: int | None = None, every: int = 1) -> None:
        _check_optimizer(optimizer)
        for name, value in (("horizon", 1 if horizon is None else horizon), ("every", every)):
            if not isinstance(value, int) or not is_count(value, most=1 << 40):
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
        self._optimizer = optimizer
        self._every = every
        self._horizon = horizon or paper_horizon(optimizer.momentum_beta)
        self._remembered: deque[_Remembered] = deque(maxlen=-(-self._horizon // every))
        self._steps = 0
        optimizer.watchers.append(self._watch)

    @property
    def _params(self) -> FlatParams:
        """The optimizer's parameters, and those of the networks that it follows."""
        optimized = [p for settings in self._optimizer.param_groups for p in settings["params"]]
        return FlatParams(optimized, followed=self._optimizer.followed)

    def close(self) -> None:
        """Stop watching."""
        self._optimizer.watchers.remove(self._watch)

    def _watch(self, call: BackwardCall, batch: EvaluatedBatch, starts_a_step: bool) -> None:
        self._steps += starts_a_step
        if call.function is None or self._steps % self._every:
            return
        if batch.all_entries is not None:  # gradients are compared, for which one entry of a row is not enough
            call = call.exact()
            batch = call.evaluate_again()
        self._remembered.append(
            _Remembered(call, self._linearized(batch), self._params.point(), batch.target_value, self._steps)
        )

    def _linearized(self, batch: EvaluatedBatch) -> Linearization:
        with self._params.hooks_disabled():
            found = linearize(trace_batch(batch.prediction, batch.target, batch.columns), [self._params])
        slope, curvature = (x.to(self._params.device, self._params.dtype) for x in (batch.slope, batch.curvature))
        followed = sum(p.numel() for p in self._optimizer.followed)
        pieces = split_at(found.gradients[0], self._params.size - followed)
        return Linearization(pieces, slope, curvature, followed=followed)

    @torch.no_grad()
    def read(self) -> Drift:
        """Evaluate the remembered batches at the current parameters."""
        if not self._remembered:
            raise RuntimeError(
                "nothing was remembered yet: give optimizer.backward() the batch as a function that returns "
                "(prediction, target)."
            )
        now, beta = self._params.point(), self._optimizer.momentum_beta
        drifts, weights, corrected, stale = [], [], [], []
        for call, batch, point, target, step in self._remembered:
            seen = call.evaluate_again()
            true = self._linearized(seen)
            gradient = true.semi_gradient()
            fresh = batch.gradient(batch.slope + batch.curvature * batch.shift(now - point))
            corrected.append(_cosine(fresh, gradient))
            stale.append(_cosine(batch.semi_gradient(), gradient))
            drifts.append((seen.target_value - target).square().mean().to(now))
            weights.append(beta ** (self._steps - step))
        drift = torch.stack(drifts)
        weight = torch.tensor(weights).to(drift)
        return Drift(
            drift=float(drift.mean()),
            weighted_drift=float((drift * weight).sum() / weight.sum()),
            agreement=float(torch.stack(corrected).mean()),
            stale_agreement=float(torch.stack(stale).mean()),
            batches=len(drifts),
        )


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return torch.nn.functional.cosine_similarity(a, b, dim=0)
