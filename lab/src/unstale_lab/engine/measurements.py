"""What is measured along a run besides errors, over the batches of the last ``2/(1-β)`` steps.

``drift``            how far the value of a successor has moved since its sample was used, (V_θi(s'_i) - V_θt(s'_i))²
``agreement``        cosine of a Taylor-corrected past gradient with its true value, per sample and per batch
``batch agreement``  the same per batch only, which large networks can afford
``trust``            staleness of the momentum since the last measurement, and the share of steps with a bounded
                     correction
``phases``           seconds per step and run in passes through the network and in the correction; on a GPU those of
                     kernels (``phase_timer``)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from unstale.momentum import Corrected
from unstale.per_sample.gradients import Linearization

from .data import Samples

if TYPE_CHECKING:
    from .training import Training


MAX_GRADIENT_ELEMENTS = 1e10  # of per-sample gradients in memory at once, if all were materialized


class ParameterHistory:
    """Ring buffer with the parameters of recent steps."""

    def __init__(self, theta: Tensor, horizon: int) -> None:
        self.ring = theta.new_zeros(horizon, *theta.shape)

    def append(self, theta: Tensor, step: Tensor) -> None:
        """Store the parameters before ``step``."""
        self.ring.index_copy_(0, (step % len(self.ring)).reshape(1), theta.unsqueeze(0))

    def before(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parameters before each of the last steps, ``[steps, runs, n]``, oldest first, and which exist."""
        steps = step - torch.arange(len(self.ring), 0, -1, device=step.device)
        return self.ring[steps % len(self.ring)], steps >= 0


def drift(training: Training) -> dict[str, Tensor]:
    """Return the mean drift of recent samples, ``[runs]``."""
    past, exists = _history(training).before(training.step_number)
    rows = training.feed.recent(skip=1).rows.chunk(2, -2)[1].unflatten(1, (len(past), -1)).movedim(1, 0)
    network = training.network
    squared_change = (network.values(past, rows) - network.values(training.theta, rows)).square().mean(-1)
    return {"drift": _mean_over_steps(squared_change, exists, default=0.0)}


def agreement(training: Training) -> dict[str, Tensor]:
    """Return mean cosines with the true gradients at the current parameters, ``[runs]`` each.

    They are those of corrected per-sample gradients, of corrected batch gradients and of stale batch gradients.
    """
    return _mean_cosines(training, [_sample_cosines, _batch_cosines])


def batch_agreement(training: Training) -> dict[str, Tensor]:
    """Return the mean cosines of ``agreement`` for batch gradients only."""
    return _mean_cosines(training, [_batch_cosines])


# From the linearization when the batch was used, that at the current parameters, and the Taylor-corrected slopes
# [steps, runs, k] to cosines [steps, runs].
CosineFunction = Callable[[Linearization, Linearization, Tensor], dict[str, Tensor]]


def _sample_cosines(then: Linearization, now: Linearization, corrected_slope: Tensor) -> dict[str, Tensor]:
    (v_then, _), (v_now, _) = then.matrices(), now.matrices()
    per_sample = cosine_similarity(v_then, v_now, dim=-1) * torch.sign(corrected_slope * now.slope)
    return {"agreement": per_sample.mean(-1)}


def _batch_cosines(then: Linearization, now: Linearization, corrected_slope: Tensor) -> dict[str, Tensor]:
    true = now.semi_gradient()
    return {
        "agreement of batches": cosine_similarity(then.gradient(corrected_slope), true, dim=-1),
        "agreement if uncorrected": cosine_similarity(then.semi_gradient(), true, dim=-1),
    }


def _mean_cosines(training: Training, functions: Sequence[CosineFunction]) -> dict[str, Tensor]:
    """Average cosines over the recent steps, in chunks of steps that fit into memory."""
    past, exists = _history(training).before(training.step_number)
    batches = _split_by_step(training.feed.recent(skip=1), len(past))
    elements_per_step = training.network.size * len(training.runs) * training.runs[0].batch
    chunk = max(1, int(MAX_GRADIENT_ELEMENTS / elements_per_step))
    found: list[dict[str, Tensor]] = []
    for start in range(0, len(past), chunk):
        steps = slice(start, start + chunk)
        theta, samples = past[steps], batches.select(steps)
        then, now = (_linearize(training, at, samples) for at in (theta, training.theta.expand_as(theta)))
        shift = then.shift(training.theta - theta)
        if training.uses_mean_gradients:  # of the batch: Zᵀ d = mean(v) mean(u · d)
            shift = shift.mean(-1, keepdim=True)
        corrected_slope = then.slope + then.curvature * shift
        found.append({name: x for function in functions for name, x in function(then, now, corrected_slope).items()})
    return {name: _mean_over_steps(torch.cat([part[name] for part in found]), exists, default=1.0) for name in found[0]}


class TrustStatistics:
    """Staleness and share of bounded steps since the last ``pop``."""

    def __init__(self, theta: Tensor) -> None:
        self.sums = theta.new_zeros(3, len(theta))  # steps, bounded steps, staleness

    def update(self, corrected: Corrected) -> None:
        steps, bounded, staleness = self.sums
        steps += 1
        if corrected.kept is not None:
            bounded += corrected.kept < 1
        staleness += (corrected.eta_norm / corrected.mu_norm).nan_to_num(0.0, 0.0)

    def pop(self) -> dict[str, Tensor]:
        """Return the means, ``[runs]`` each, and start over."""
        steps, bounded, staleness = self.sums
        means = {name: total / steps.clamp(min=1) for name, total in (("bounded", bounded), ("staleness", staleness))}
        self.sums.zero_()
        return means


def trust(training: Training) -> dict[str, Tensor]:
    """Return the means of ``TrustStatistics``, ``[runs]`` each; empty if the method corrects nothing."""
    return {} if training.trust_statistics is None else training.trust_statistics.pop()


def phases(training: Training) -> dict[str, Tensor]:
    """Return the mean seconds per step of each phase, ``[runs]`` each."""
    assert training.phase_timer is not None
    return training.phase_timer.means(len(training.runs))


def _history(training: Training) -> ParameterHistory:
    assert training.history is not None
    return training.history


def _split_by_step(samples: Samples, steps: int) -> Samples:
    """Split one long batch into its batches: ``[runs, steps · k, ...]`` to ``[steps, runs, k, ...]``."""
    assert samples.discount is not None

    def split(x: Tensor) -> Tensor:
        return x.unflatten(1, (steps, -1)).movedim(1, 0)

    rows = torch.cat([split(part) for part in samples.rows.chunk(2, -2)], 2)
    return Samples(rows, split(samples.reward), split(samples.discount))


def _linearize(training: Training, theta: Tensor, samples: Samples) -> Linearization:
    """Linearize batches, each at its own row of ``theta [steps, runs, n]``."""
    forward = training.network.forward(theta, samples.rows)
    _, slope, curvature = training.loss(samples.residual(forward.values))
    return training.network.linearize(theta, forward, samples.discount, slope, curvature)


def _mean_over_steps(x: Tensor, exists: Tensor, default: float) -> Tensor:
    """Average ``x [steps, runs]`` over the steps that exist; return ``default`` if there are none."""
    total = torch.where(exists.unsqueeze(-1), x, 0.0).sum(0)
    return torch.where(exists.any(), total / exists.sum().clamp(min=1), default)


# By the names in ``Run.measure``.
MEASUREMENTS: dict[str, Callable[[Training], dict[str, Tensor]]] = {
    "drift": drift,
    "agreement": agreement,
    "batch agreement": batch_agreement,
    "trust": trust,
    "phases": phases,
}
