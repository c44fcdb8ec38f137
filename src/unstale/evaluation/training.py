"""Trains several value networks together by corrected temporal-difference learning."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..corrections import NAMES
from ..diagnostics import DriftMonitor
from ..optimizers import CorrectedAdam
from ..targets import td
from .errors import EvaluationError
from .spaces import Array
from .values import Samples, ValueNetwork

Mode = Literal["replay", "stream"]
MAX_SEED = 1 << 32  # what numpy and Gymnasium take
# Beyond these a machine runs out of memory, or of time.
MOST = {"networks": 1000, "width": 10_000, "steps": 10**9, "batch": 10**6, "n_step": 10**6}
MAX_LR = 1e3
READINGS = 40  # of the estimate, during training
DRIFT_READINGS = 10  # fewer: each evaluates the remembered batches again
MONITORED_BATCHES, MONITORED_EVERY = 4, 25


@dataclass(frozen=True)
class Settings:
    """How the networks are trained.

    Attributes:
        mode: ``"replay"`` draws batches from all transitions; ``"stream"`` takes them in order, each once.
        steps: batches of a replay; a stream has as many as there are.
        n_step: rewards before bootstrapping.
        correction: an option of ``CorrectedAdam``; ``"none"`` is Adam.
        lr: the learning rate, which is lowered to zero linearly.
    """

    networks: int = 5
    width: int = 16
    mode: Mode = "replay"
    steps: int = 2000
    batch: int = 64
    n_step: int = 1
    lr: float = 1e-2
    correction: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("networks", "width", "steps", "batch", "n_step"):
            least = 2 if name == "networks" else 1
            if getattr(self, name) < least:
                raise EvaluationError(f"{name} must be at least {least}, got {getattr(self, name)}.")
            if getattr(self, name) > MOST[name]:
                raise EvaluationError(f"{name} must be at most {MOST[name]:,}, got {getattr(self, name)}.")
        if self.mode not in ("replay", "stream"):
            raise EvaluationError(f"mode must be replay or stream, got {self.mode}.")
        if self.correction not in NAMES:
            raise EvaluationError(f"correction must be one of {', '.join(NAMES)}, got {self.correction}.")
        if not 0 <= self.seed < MAX_SEED:
            raise EvaluationError(f"seed must be at least 0 and below 2^32, got {self.seed}.")
        if not 0 < self.lr <= MAX_LR:
            raise EvaluationError(f"lr must be positive and at most {MAX_LR:g}, got {self.lr:g}.")


@dataclass
class History:
    """What was measured during training: estimates after each of ``steps`` updates, drift after ``drift_steps``."""

    steps: list[int] = field(default_factory=list)
    drift_steps: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)  # transitions drawn so far, per network
    estimates: list[list[float]] = field(default_factory=list)  # of every network
    drift: list[float] = field(default_factory=list)  # root mean squared change of recent targets, in units of reward
    agreement: list[float] = field(default_factory=list)  # cosine of corrected past gradients with true ones
    stale_agreement: list[float] = field(default_factory=list)  # of uncorrected ones


def make_networks(inputs: int, outputs: int, settings: Settings) -> list[ValueNetwork]:
    """Networks that differ in their initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return [ValueNetwork(inputs, outputs, settings.width) for _ in range(settings.networks)]


def train(
    networks: Sequence[ValueNetwork],
    samples: Samples,
    rows: Sequence[Array],
    settings: Settings,
    estimate: Callable[[], list[float]],
    progress: Callable[[int, int, list[float]], None],
) -> History:
    """Train network ``k`` on the transitions ``rows[k]``.

    Args:
        estimate: the value of the start states by every network.
        progress: called with the step, the number of steps and the estimates.
    """
    optimizer = CorrectedAdam(
        [{"params": list(network.parameters())} for network in networks], lr=settings.lr, correction=settings.correction
    )
    monitor = DriftMonitor(optimizer, horizon=MONITORED_BATCHES * MONITORED_EVERY, every=MONITORED_EVERY)
    scaled = [_scaled_rewards(network, samples) for network in networks]
    discounts = samples.discounts.float()
    batch_size, steps = settings.batch, settings.steps
    if settings.mode == "stream":
        batch_size = min(settings.batch, *map(len, rows))
        steps = math.ceil(min(map(len, rows)) / batch_size)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    generator = np.random.default_rng(settings.seed)
    history, every = History(), max(1, steps // READINGS)
    for step in range(1, steps + 1):
        drawn = [torch.as_tensor(_draw(of, step, batch_size, settings.mode, generator)) for of in rows]

        def evaluate(drawn: list[Tensor] = drawn) -> tuple[Tensor, Tensor]:
            predictions, targets = [], []
            for network, reward, batch in zip(networks, scaled, drawn, strict=True):
                predictions.append(samples.prediction(network, batch))
                following = samples.next_value(network, batch)
                targets.append(td(reward[batch], following, torch.zeros_like(reward[batch]), discounts[batch]))
            return torch.stack(predictions, -1), torch.stack(targets, -1)

        try:
            optimizer.backward(evaluate)
            optimizer.step()
        except FloatingPointError as error:
            raise EvaluationError(f"training diverged after {step} steps; lower --lr from {settings.lr:g}.") from error
        optimizer.zero_grad()
        schedule.step()
        if step % every == 0 or step == steps:
            history.steps.append(step)
            history.samples.append(step * batch_size)
            history.estimates.append(estimate())
            progress(step, steps, history.estimates[-1])
        if step >= MONITORED_EVERY and step % max(1, steps // DRIFT_READINGS) == 0:
            _record_drift(history, step, monitor, networks)
    monitor.close()
    return history


def _draw(rows: Array, step: int, size: int, mode: Mode, generator: np.random.Generator) -> Array:
    if mode == "stream":
        found = rows[(step - 1) * size : step * size]
        return found if len(found) == size else rows[-size:]
    return np.asarray(rows[generator.integers(len(rows), size=size)])


def _scaled_rewards(network: ValueNetwork, samples: Samples) -> Tensor:
    """Rewards of the normalized values ``f``: ``(r - offset (1 - discount)) / scale``."""
    return ((samples.rewards - network.offset * (1 - samples.discounts)) / network.scale).float()


def _record_drift(history: History, step: int, monitor: DriftMonitor, networks: Sequence[ValueNetwork]) -> None:
    reading = monitor.read()
    history.drift_steps.append(step)
    history.drift.append(math.sqrt(reading.drift) * float(np.mean([float(network.scale) for network in networks])))
    measured = reading.agreement != 0 or reading.stale_agreement != 0  # a cosine with a gradient of zero is not
    history.agreement.append(reading.agreement if measured else math.nan)
    history.stale_agreement.append(reading.stale_agreement if measured else math.nan)
