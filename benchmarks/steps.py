"""Whole training steps: two forward passes, backward, optimizer step, zero_grad; each candidate has its own model."""

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
from unstale.corrections import DEFAULT_BETA, default_horizon

LR = 1e-4  # small enough not to diverge at any width
MAX_WINDOW_BYTES = {"cpu": 2 * 2**30, "cuda": 16 * 2**30}
MAX_DENSE_BYTES = 2 * 2**30


@dataclass(frozen=True)
class Candidate:
    """A training method: a baseline of ``torch.optim``, the plain implementation, or a corrected optimizer."""

    name: str
    correction: str | None = None  # None: not corrected
    kind: str = "SGD"  # or "Adam", or "plain"
    horizon: int | None = None  # None: the library's default
    slots: int | None = None  # of a reservoir; None: the library's default

    @property
    def baseline(self) -> str:
        """The name of the candidate that this one's time is divided by."""
        return "Adam" if self.kind == "Adam" else "SGD"

    def batches_remembered(self, beta: float | None) -> int:
        """Return the horizon in batches; 0 for corrections without one, such as "auto" with a growing ``β``."""
        if self.correction not in ("window", "oracle", "auto") or (self.correction == "auto" and beta is None):
            return 0
        return self.horizon or default_horizon(DEFAULT_BETA if beta is None else beta)


@dataclass
class Training:
    """A candidate ready to run. ``fill`` stores a batch like ``step``, but cheaply."""

    step: Callable[[], None]
    fill: Callable[[], None]
    state: Callable[[], Any]
    group_state: Callable[[], dict[str, Any]] = dict  # of a corrected optimizer; otherwise empty


def build(candidate: Candidate, model: nn.Module, batches: Sequence[Batch], beta: float | None) -> Training:
    """Return a training of ``model`` (in place) on ``batches`` in turn. Without ``beta``, defaults are used."""
    turn = cycle(batches)
    if candidate.kind == "plain":
        assert beta is not None
        return _plain(model, turn, beta)
    optimizer = make_optimizer(candidate, model, beta)
    if candidate.correction is None:
        return _uncorrected(model, optimizer, turn)
    if candidate.correction == "oracle":
        return _oracle(model, optimizer, turn)
    return _corrected(model, optimizer, turn)


def make_optimizer(candidate: Candidate, model: nn.Module, beta: float | None) -> torch.optim.Optimizer:
    """Return the optimizer. ``unstale`` damps momentum, so SGD's learning rate is scaled to take the same steps."""
    betas: dict[str, Any] = {} if beta is None else dict(betas=(beta, 0.999))
    if candidate.correction is None:
        if candidate.kind == "SGD":
            assert beta is not None
            return torch.optim.SGD(model.parameters(), lr=LR * (1 - beta), momentum=beta)
        return torch.optim.Adam(model.parameters(), lr=LR, **betas)
    options: dict[str, Any] = dict(
        lr=LR, correction=candidate.correction, horizon=candidate.horizon, slots=candidate.slots
    )
    if candidate.kind == "SGD":
        return unstale.CorrectedSGD(model, beta=beta, **options)
    return unstale.CorrectedAdam(model, **betas, **options)


def _uncorrected(model: nn.Module, optimizer: torch.optim.Optimizer, turn: Iterator[Batch]) -> Training:
    def step() -> None:
        batch = next(turn)
        prediction = value(model, batch.state, batch.action)
        with torch.no_grad():
            targets = target(model, batch)
        loss = 0.5 * (prediction - targets).square().mean()
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

    return Training(step, step, lambda: optimizer.state, lambda: optimizer.state_of("group 0"))


def _oracle(model: nn.Module, optimizer: Any, turn: Iterator[Batch]) -> Training:
    """Return a training with the oracle.

    The oracle evaluates its history in every step, so that filling it takes time quadratic in the horizon. While it is
    filled, batches return a cheap placeholder instead of the network's values.
    """
    filling = False
    smallest = min(model.parameters(), key=Tensor.numel)

    def make_closure(batch: Batch) -> Callable[[], tuple[Tensor, Tensor]]:
        def evaluate() -> tuple[Tensor, Tensor]:
            if filling:
                placeholder = smallest.sum().expand_as(batch.reward)
                return placeholder, batch.reward + GAMMA * placeholder
            return value(model, batch.state, batch.action), target(model, batch)

        return evaluate

    def step() -> None:
        optimizer.backward(make_closure(next(turn)))
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
        learner.step(batch.state, batch.next_state, batch.reward, GAMMA, batch.not_done)

    return Training(step, step, lambda: learner.state)


def too_large(candidate: Candidate, model: nn.Module, device: torch.device, expected_bytes: int) -> str | None:
    """Return why a candidate needs too much memory, or None if it does not."""
    n = size(model)
    if (candidate.correction == "dense" or candidate.kind == "plain") and n * n * 4 > MAX_DENSE_BYTES:
        return f"its matrix would take {_format_bytes(n * n * 4)}"
    if expected_bytes > MAX_WINDOW_BYTES[device.type]:
        return f"its window would take {_format_bytes(expected_bytes)}"
    return None


def window_bytes(candidate: Candidate, model: nn.Module, batches: Sequence[Batch], beta: float | None) -> int:
    """Return the bytes of a full window's state, extrapolated from windows of one and two batches."""
    sizes = []
    for horizon in (1, 2):
        short = Candidate(candidate.name, "window", candidate.kind, horizon)
        training = build(short, copy.deepcopy(model), batches, beta)
        for _ in range(horizon):
            training.step()
        sizes.append(state_bytes(training.state()))
    one, two = sizes
    return one + (candidate.batches_remembered(beta) - 1) * (two - one)


def _format_bytes(size_in_bytes: int) -> str:
    gib = size_in_bytes / (1024 * MIB)
    return f"{gib / 1024:.0f} TiB" if gib > 10 * 1024 else f"{gib:.1f} GiB"
