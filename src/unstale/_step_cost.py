"""The measured cost of a corrected step, and evaluations that leave no trace in a training run."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ._batch import BackwardCall
from ._flat_params import FlatParams
from .optimizers import CorrectedAdam, CorrectedSGD
from .per_sample.trace import leaves


@contextmanager
def untouched(modules: Iterable[nn.Module], params: FlatParams) -> Iterator[None]:
    """Restore ``.grad``, the modules' buffers and the states of random number generators afterwards."""
    gradients = [p.grad for p in params.parameters]
    buffers = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers()]
    devices = [params.device] if params.device.type == "cuda" else []
    with torch.random.fork_rng(devices), params.hooks_disabled():
        for p in params.parameters:
            p.grad = None
        try:
            yield
        finally:
            for p, gradient in zip(params.parameters, gradients, strict=True):
                p.grad = gradient
            with torch.no_grad():
                for buffer, before in buffers:
                    if not torch.equal(buffer, before):
                        buffer.copy_(before)


def measure(
    optimizer: Optimizer, params: FlatParams, followed: Sequence[Tensor], call: BackwardCall, steps: int, rounds: int
) -> float:
    """The time of a step with correction, divided by the time of one without, both with all defaults.

    Both optimizers are new ones with a learning rate of 0, and train copies of the parameters' values. Both evaluate
    the batch by its function, target with its graph; a loop that computes targets under ``torch.no_grad`` saves a
    little.

    Args:
        optimizer: of torch; decides which two are compared.
        params: of the model.
        followed: parameters of target networks, which the corrected optimizer follows.
        call: a batch that can be evaluated again.
        steps: per round.
        rounds: of both in turn. Their median is returned.
    """
    reached = leaves(call.evaluate_again().prediction)  # of other networks too
    if any(p._post_accumulate_grad_hooks for p in reached):
        raise RuntimeError(
            "the cost cannot be measured: the parameters have hooks that run after their gradients are accumulated."
        )
    kept = [p.data for p in params.parameters]
    gradients = [p.grad for p in reached]
    try:
        for p in reached:
            p.grad = None
        for p in params.parameters:
            p.data = p.data.clone()
        plain, corrected = _steps(optimizer, params, followed, call)
        ratios = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(rounds + 1):
                base = _seconds(plain, steps, params.device)
                ratios.append(_seconds(corrected, steps, params.device) / base)
    finally:
        for p, values in zip(params.parameters, kept, strict=True):
            p.data = values
        for p, gradient in zip(reached, gradients, strict=True):
            p.grad = gradient
    return statistics.median(ratios[1:])  # the first round allocates


def _steps(
    optimizer: Optimizer, params: FlatParams, followed: Sequence[Tensor], call: BackwardCall
) -> tuple[Callable[[], None], Callable[[], None]]:
    """A training step without correction, and one with it."""
    is_sgd = isinstance(optimizer, SGD)
    plain = SGD(params.parameters, lr=0.0, momentum=0.9) if is_sgd else torch.optim.Adam(params.parameters, lr=0.0)
    corrected = CorrectedSGD(params.parameters, lr=0.0) if is_sgd else CorrectedAdam(params.parameters, lr=0.0)
    if followed:
        corrected.follow(followed)
    function = call.function
    assert function is not None

    def plain_step() -> None:
        batch = call.evaluate_again()
        batch.prediction.backward(batch.slope.to(batch.prediction.dtype))
        plain.step()
        plain.zero_grad()

    def corrected_step() -> None:
        corrected.backward(function, loss=call.loss, weight=call.weight)
        corrected.step()
        corrected.zero_grad()

    return plain_step, corrected_step


def _seconds(step: Callable[[], None], steps: int, device: torch.device) -> float:
    for number in range(steps + 1):
        if number == 1:  # the first is not timed
            _wait(device)
            start = time.perf_counter()
        step()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
