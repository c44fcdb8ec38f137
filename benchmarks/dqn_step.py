"""Measure a training step of DQN's network on a GPU: CorrectedAdam relative to Adam, in a minute.

The suite `adam` of `run.py` measures the same with more candidates and takes five minutes.

PYTHONPATH=src:benchmarks python benchmarks/dqn_step.py
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from models import ACTIONS, FRAMES, dqn

import unstale

BATCH, STEPS, ROUNDS = 32, 100, 5
CANDIDATES: dict[str, dict[str, Any] | None] = {
    "Adam": None,
    "default": {},
    "256 slots": {"slots": 256},
    "1,024 slots": {"slots": 1024},
    "window, H = 20": {"correction": "window", "horizon": 20, "betas": (0.9, 0.999)},
}
WARM_UP_STEPS = 200


def make_step(network: torch.nn.Module, options: dict[str, Any] | None) -> tuple[Callable[[], None], Any]:
    """Return a function that makes a training step of a copy of the network, and its optimizer."""
    network = copy.deepcopy(network)
    optimizer: Any
    if options is None:
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-4)
    else:
        optimizer = unstale.CorrectedAdam(network, lr=1e-4, **options)
    shape = (BATCH, *FRAMES)
    state, following = torch.rand(shape, device="cuda"), torch.rand(shape, device="cuda")
    reward = torch.randn(BATCH, device="cuda")
    action = torch.randint(ACTIONS, (BATCH, 1), device="cuda")

    def step() -> None:
        value = network(state).gather(1, action).squeeze(1)
        optimizer.zero_grad()
        if options is None:
            with torch.no_grad():
                target = reward + 0.99 * network(following).max(1).values
            (0.5 * (value - target) ** 2).mean().backward()
        else:
            optimizer.backward(value, reward + 0.99 * network(following).max(1).values)
        optimizer.step()

    return step, optimizer


def seconds_per_step(step: Callable[[], None], steps: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def main() -> None:
    torch.manual_seed(0)
    network = dqn().cuda()
    made, memory = {}, {}
    for name, options in CANDIDATES.items():
        before = torch.cuda.memory_allocated()
        made[name] = make_step(network, options)
        seconds_per_step(made[name][0], WARM_UP_STEPS)
        memory[name] = (torch.cuda.memory_allocated() - before) / 2**30
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(ROUNDS):
        for name, (step, _) in made.items():
            times[name].append(seconds_per_step(step, STEPS))
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, float32, batches of {BATCH}")
    for name, median in medians.items():
        print(f"{name:16} {median * 1e3:6.2f} ms  ratio {median / medians['Adam']:5.2f}  {memory[name]:5.2f} GiB")


if __name__ == "__main__":
    main()
