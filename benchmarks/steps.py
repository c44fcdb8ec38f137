"""Whole training steps: forward of both states, backward, optimizer step, zero_grad; each on a model of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from data import GAMMA, Batch, target, value
from memory import MIB, state_bytes
from models import size
from plain import PlainCorrectedSGD
from torch import Tensor, nn

import unstale

LR = 1e-4  # small enough for nothing to diverge, at any width
LIMIT = {"cpu": 2 * 2**30, "cuda": 16 * 2**30}  # bytes beyond which a window is not tried
DENSE_LIMIT = 2 * 2**30


@dataclass(frozen=True)
class Candidate:
    """A way to train. Without a correction it is a baseline of ``torch.optim``, or the plain implementation.

    ``horizon`` None is the library's default, and ``observed`` False hands the optimizer bare parameters, whose
    per-sample gradients then come from batched vector-Jacobian products.
    """

    name: str
    correction: str | None = None
    kind: str = "SGD"  # or "Adam", or "plain"
    horizon: int | None = None
    observed: bool = True

    @property
    def baseline(self) -> str:
        """The name of the candidate whose time this one's is divided by."""
        return "Adam" if self.kind == "Adam" else "SGD"

    def remembers(self, beta: float) -> int:
        """How many batches are remembered; 0 for a correction that remembers none by themselves."""
        if self.correction not in ("window", "oracle", "auto"):
            return 0
        return self.horizon or unstale.corrections.default_horizon(beta)


@dataclass
class Training:
    """A candidate at work. ``fill`` is a step that remembers a batch as ``step`` does, without its cost."""

    step: Callable[[], None]
    fill: Callable[[], None]
    state: Callable[[], Any]


def build(candidate: Candidate, model: nn.Module, batches: Sequence[Batch], beta: float) -> Training:
    """A training of ``model`` itself, on ``batches`` taken in turn."""
    turn = cycle(batches)
    if candidate.kind == "plain":
        return _plain(model, turn, beta)
    optimizer = make_optimizer(candidate, model, beta)
    if candidate.correction is None:
        return _uncorrected(model, optimizer, turn)
    if candidate.correction == "oracle":
        return _oracle(model, optimizer, turn)
    return _corrected(model, optimizer, turn)


def make_optimizer(candidate: Candidate, model: nn.Module, beta: float) -> torch.optim.Optimizer:
    """The optimizer alone. Momentum is damped in ``unstale``, so SGD's rate is scaled to take the same steps."""
    if candidate.correction is None:
        if candidate.kind == "SGD":
            return torch.optim.SGD(model.parameters(), lr=LR * (1 - beta), momentum=beta)
        return torch.optim.Adam(model.parameters(), lr=LR, betas=(beta, 0.999))
    params = model if candidate.observed else list(model.parameters())
    options: dict[str, Any] = dict(lr=LR, correction=candidate.correction, horizon=candidate.horizon)
    if candidate.kind == "SGD":
        return unstale.CorrectedSGD(params, beta=beta, **options)
    return unstale.CorrectedAdam(params, betas=(beta, 0.999), **options)


def _uncorrected(model: nn.Module, optimizer: torch.optim.Optimizer, turn: Iterator[Batch]) -> Training:
    def step() -> None:
        batch = next(turn)
        prediction = value(model, batch.state, batch.action)
        with torch.no_grad():
            goal = target(model, batch)
        loss = 0.5 * (prediction - goal).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training(step, step, lambda: optimizer.state)


def _corrected(model: nn.Module, optimizer: Any, turn: Iterator[Batch]) -> Training:
    def step() -> None:
        batch = next(turn)
        optimizer.backward(value(model, batch.state, batch.action), target(model, batch))
        optimizer.step()
        optimizer.zero_grad()

    return Training(step, step, lambda: optimizer.state)


def _oracle(model: nn.Module, optimizer: Any, turn: Iterator[Batch]) -> Training:
    """The oracle evaluates what it remembers at every step, so filling it takes the square of its horizon. While it
    fills, its batches answer with a trifle instead of the network; once full, they are what they always were."""
    filling = False
    smallest = min(model.parameters(), key=Tensor.numel)

    def remembered(batch: Batch) -> Callable[[], tuple[Tensor, Tensor]]:
        def evaluate() -> tuple[Tensor, Tensor]:
            if filling:
                trifle = smallest.sum().expand_as(batch.reward)
                return trifle, batch.reward + GAMMA * trifle
            return value(model, batch.state, batch.action), target(model, batch)

        return evaluate

    def step() -> None:
        optimizer.backward(remembered(next(turn)))
        optimizer.step()
        optimizer.zero_grad()

    def fill() -> None:
        nonlocal filling
        filling = True
        step()
        filling = False

    return Training(step, fill, lambda: optimizer.state)


def _plain(model: nn.Module, turn: Iterator[Batch], beta: float) -> Training:
    learner = PlainCorrectedSGD(model, alpha=LR, beta=beta)

    def step() -> None:
        batch = next(turn)
        learner.step(batch.state, batch.following, batch.reward, GAMMA, batch.not_done)

    return Training(step, step, lambda: learner.state)


def too_large(candidate: Candidate, model: nn.Module, device: torch.device, expected_bytes: int) -> str | None:
    """Why a candidate cannot be measured here for its memory, or None if it can."""
    n = size(model)
    if (candidate.correction == "dense" or candidate.kind == "plain") and n * n * 4 > DENSE_LIMIT:
        return f"its matrix would take {_in_units(n * n * 4)}"
    if expected_bytes > LIMIT[device.type]:
        return f"its window would take {_in_units(expected_bytes)}"
    return None


def window_bytes(candidate: Candidate, model: nn.Module, batches: Sequence[Batch], beta: float) -> int:
    """What the state of a window will take, found from the states of windows of one and of two batches."""
    sizes = []
    for horizon in (1, 2):
        short = Candidate(candidate.name, "window", candidate.kind, horizon, candidate.observed)
        training = build(short, copy.deepcopy(model), batches, beta)
        for _ in range(horizon):
            training.step()
        sizes.append(state_bytes(training.state()))
    one, two = sizes
    return one + (candidate.remembers(beta) - 1) * (two - one)


def _in_units(size_in_bytes: int) -> str:
    gib = size_in_bytes / (1024 * MIB)
    return f"{gib / 1024:.0f} TiB" if gib > 10 * 1024 else f"{gib:.1f} GiB"
