"""What is measured along a run besides its errors, over the batches of the last 2/(1-β) steps.

``drift``       how far the value of a successor has moved since its sample was seen, (V_θi(s'_i) - V_θt(s'_i))²
``agreement``   the cosine of a Taylor-corrected past gradient with the gradient that it stands for
``batch agreement``  the same of whole batches alone, which large networks can afford
``trust``       how stale momentum was since the last measurement, and in how many steps its correction was bounded
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from unstale.momentum import Corrected
from unstale.samples import Linearization

from .data import Samples

if TYPE_CHECKING:
    from .training import Training


LINEARIZED = 1e10  # numbers of per-sample gradients, were all of them written out, that are looked at together


class Recent:
    """The parameters of recent steps, with which anything about them can be worked out again."""

    def __init__(self, theta: Tensor, horizon: int) -> None:
        self.ring = theta.new_zeros(horizon, *theta.shape)

    def remember(self, theta: Tensor, step: Tensor) -> None:
        self.ring.index_copy_(0, (step % len(self.ring)).reshape(1), theta.unsqueeze(0))

    def before(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """The parameters before each of the last steps, ``[steps, runs, n]``, oldest first; and which of them exist."""
        numbers = step - torch.arange(len(self.ring), 0, -1, device=step.device)
        return self.ring[numbers % len(self.ring)], numbers >= 0


def drift(training: Training) -> dict[str, Tensor]:
    """The mean drift of recent samples, ``[runs]``."""
    past, exists = _recent(training).before(training.step_number)
    rows = training.feed.recent(until=1).rows.chunk(2, -2)[1].unflatten(1, (len(past), -1)).movedim(1, 0)
    network = training.network
    moved = (network.values(past, rows) - network.values(training.theta, rows)).square().mean(-1)
    return {"drift": _mean(moved, exists, when_none=0.0)}


def agreement(training: Training) -> dict[str, Tensor]:
    """Mean cosines with the true gradients at today's parameters, ``[runs]``: of samples' corrected gradients; of whole
    batches' corrected gradients; and of whole batches' gradients as they were, stale."""
    return _cosines(training, [_of_samples, _of_batches])


def batch_agreement(training: Training) -> dict[str, Tensor]:
    return _cosines(training, [_of_batches])


# From batches as they were and as they are, and the slopes that a Taylor expansion gives them, ``[steps, runs]`` each.
Cosines = Callable[[Linearization, Linearization, Tensor], dict[str, Tensor]]


def _of_samples(then: Linearization, now: Linearization, corrected: Tensor) -> dict[str, Tensor]:
    (v_then, _), (v_now, _) = then.matrices(), now.matrices()
    by_sample = cosine_similarity(v_then, v_now, dim=-1) * torch.sign(corrected * now.slope)
    return {"agreement": by_sample.mean(-1)}


def _of_batches(then: Linearization, now: Linearization, corrected: Tensor) -> dict[str, Tensor]:
    true = now.semi_gradient()
    return {
        "agreement of batches": cosine_similarity(then.gradient(corrected), true, dim=-1),
        "agreement if uncorrected": cosine_similarity(then.semi_gradient(), true, dim=-1),
    }


def _cosines(training: Training, kinds: Sequence[Cosines]) -> dict[str, Tensor]:
    """Means over the recent steps that exist, of which few are looked at together: per-sample gradients take room."""
    past, exists = _recent(training).before(training.step_number)
    batches = _by_step(training.feed.recent(until=1), len(past))
    room = int(LINEARIZED / (training.network.size * len(training.runs) * training.runs[0].batch))
    found: list[dict[str, Tensor]] = []
    for start in range(0, len(past), max(1, room)):
        some = slice(start, start + max(1, room))
        theta, samples = past[some], batches.at(some)
        then, now = (_linearized(training, at, samples) for at in (theta, training.theta.expand_as(theta)))
        corrected = then.slope + then.curvature * then.shift(training.theta - theta)
        found.append({name: cosine for kind in kinds for name, cosine in kind(then, now, corrected).items()})
    return {name: _mean(torch.cat([part[name] for part in found]), exists, when_none=1.0) for name in found[0]}


class TrustLog:
    """What the bound on the correction did since it was last read."""

    def __init__(self, theta: Tensor) -> None:
        self.sums = theta.new_zeros(3, len(theta))  # steps, those that were bounded, staleness

    def note(self, corrected: Corrected) -> None:
        steps, bounded, staleness = self.sums
        steps += 1
        if corrected.kept is not None:
            bounded += corrected.kept < 1
        staleness += (corrected.eta_norm / corrected.mu_norm).nan_to_num(0.0, 0.0)

    def read(self) -> dict[str, Tensor]:
        steps, bounded, staleness = self.sums
        read = {name: total / steps.clamp(min=1) for name, total in (("bounded", bounded), ("staleness", staleness))}
        self.sums.zero_()
        return read


def trust(training: Training) -> dict[str, Tensor]:
    """``[runs]`` each; nothing where nothing is corrected."""
    return {} if training.trust_log is None else training.trust_log.read()


def _recent(training: Training) -> Recent:
    assert training.recent is not None
    return training.recent


def _by_step(samples: Samples, steps: int) -> Samples:
    """One long batch of states and one of successors, taken apart into the batches they were made of, ``[steps, runs]``
    each."""
    assert samples.discount is not None

    def apart(x: Tensor) -> Tensor:
        return x.unflatten(1, (steps, -1)).movedim(1, 0)

    rows = torch.cat([apart(part) for part in samples.rows.chunk(2, -2)], 2)
    return Samples(rows, apart(samples.reward), apart(samples.discount))


def _linearized(training: Training, theta: Tensor, samples: Samples) -> Linearization:
    """Batches, each at its own row of ``theta [steps, runs, n]``."""
    seen = training.network.forward(theta, samples.rows)
    _, slope, curvature = training.network.head.loss(samples.residual(seen.values))
    return training.network.linearize(theta, seen, samples.discount, slope, curvature)


def _mean(x: Tensor, exists: Tensor, when_none: float) -> Tensor:
    """The mean over the steps that exist, ``[steps, runs] → [runs]``."""
    total = torch.where(exists.unsqueeze(-1), x, 0.0).sum(0)
    return torch.where(exists.any(), total / exists.sum().clamp(min=1), when_none)


INSTRUMENTS: dict[str, Callable[[Training], dict[str, Tensor]]] = {
    "drift": drift,
    "agreement": agreement,
    "batch agreement": batch_agreement,
    "trust": trust,
}
