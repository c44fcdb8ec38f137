"""Measurements of staleness, and of the accuracy of the correction, from a running optimizer.

:func:`read` costs nothing: it reads the optimizer's state. A :class:`Monitor` remembers recent batches and evaluates
them again in :meth:`Monitor.read`, which costs one forward and backward pass per batch.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ._batch import BackwardCall, EvaluatedBatch
from ._flat_params import FlatParams
from ._optimizer import CorrectedOptimizer
from .corrections import describe, paper_horizon
from .per_sample.gradients import Linearization, split_at
from .per_sample.linearize import linearize, trace_batch


class GroupReading(NamedTuple):
    """One parameter group, as its last step left it."""

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


def read(optimizer: CorrectedOptimizer) -> list[GroupReading]:
    """The staleness of every parameter group, and the share of steps on which the trust bound was active.

    >>> import torch, unstale
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = unstale.CorrectedSGD(model, lr=0.1)
    >>> for _ in range(3):
    ...     value = model(torch.ones(4, 2)).squeeze(-1)
    ...     loss = optimizer.backward(value, 1 + 0.9 * model(torch.zeros(4, 2)).squeeze(-1))
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> (group,) = unstale.diagnostics.read(optimizer)
    >>> group.steps, group.bounded_share, 0 < group.staleness < 1
    (3, 0.0, True)
    """
    readings = []
    groups = optimizer.ready_groups()
    for number, settings in enumerate(optimizer.param_groups):
        state = optimizer.state_of(f"group {number}")
        steps = int(state.get("step", 0))
        readings.append(
            GroupReading(
                staleness=float(state["eta_norm"] / state["mu_norm"]) if state.get("eta_norm") else 0.0,
                bounded_share=float(state.get("bounded", 0)) / max(1, steps),
                steps=steps,
                correction=state["plan"]["correction"] if "plan" in state else settings["correction"],
                beta=groups[number].beta_at(steps + 1, state.get("plan")),
                chosen=describe(state["plan"], groups[number].given_beta) if "plan" in state else "",
            )
        )
    return readings


def skipped_steps(optimizer: CorrectedOptimizer) -> int:
    """The number of steps that were skipped because of non-finite numbers (``on_nonfinite="skip"``)."""
    return int(optimizer.state_of("shared").get("skipped", 0))


class _Remembered(NamedTuple):
    call: BackwardCall
    batch: Linearization
    point: Tensor
    target: Tensor | None
    step: int


class Monitor:
    """Remembers every ``every``-th batch of the last ``horizon`` steps.

    The default horizon is the paper's, ``2/(1-β)``, at the ``β`` of the time when the monitor is made.

    Pass batches to ``backward`` as functions, so that they can be evaluated again::

        monitor = unstale.diagnostics.Monitor(optimizer)
        optimizer.backward(lambda: (model(s), r + gamma * model(s_next)))
        ...
        print(monitor.read())
    """

    def __init__(self, optimizer: CorrectedOptimizer, horizon: int | None = None, every: int = 1) -> None:
        for name, value in (("horizon", horizon), ("every", every)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, got {value}.")
        self._optimizer = optimizer
        self._every = every
        self._horizon = horizon or paper_horizon(optimizer.momentum_beta)
        self._remembered: deque[_Remembered] = deque(maxlen=-(-self._horizon // every))
        self._steps = 0
        optimizer.watchers.append(self._watch)

    @cached_property
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
        self._remembered.append(
            _Remembered(call, self._linearized(batch), self._params.point(), _detached(batch.given_target), self._steps)
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
            if target is None or seen.given_target is None:
                drifts.append(now.new_zeros(()))
            else:
                drifts.append((seen.given_target - target).square().mean().to(now))
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


def _detached(target: Tensor | None) -> Tensor | None:
    return None if target is None else target.detach()


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return torch.nn.functional.cosine_similarity(a, b, dim=0)
