"""Where the dense form of the full correction is faster than the window, and what `correction="auto"` chooses there.

PYTHONPATH=src python benchmarks/crossover.py

Prints a table, to which the constants of `unstale.corrections.cheaper_full_correction` were fitted by hand.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from data import pool
from models import INPUTS, mlp, size
from steps import Candidate, build
from timing import time_interleaved, warm_up

from unstale.corrections import cheaper_full_correction, default_horizon


def ten_steps(step: Callable[[], object]) -> Callable[[], None]:
    """Return a function that makes ten steps, because a large dense correction updates its matrix every tenth step."""

    def steps() -> None:
        for _ in range(10):
            step()

    return steps


def main() -> None:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    print("| n | batch | β | dense, ms | window, ms | faster | auto |\n| --- | --- | --- | --- | --- | --- | --- |")
    for width in (8, 16, 32):
        model = mlp(width)
        for samples in (1, 4, 16, 64):
            for beta in (0.9, 0.99):
                batches = pool(samples, [INPUTS], device)
                steps = {
                    name: ten_steps(build(Candidate(name, name), copy.deepcopy(model), batches, beta).step)
                    for name in ("dense", "window")
                }
                for step in steps.values():
                    warm_up(step, device, steps=2, seconds=2.0)
                measured = time_interleaved(steps, device, seconds=2.0)
                times = {name: timing.median * 1e3 / 10 for name, timing in measured.items()}
                auto = cheaper_full_correction(size(model), samples, default_horizon(beta))
                cells = [
                    size(model),
                    samples,
                    beta,
                    *(f"{times[name]:.2f}" for name in steps),
                    min(times, key=times.get),
                ]
                print(f"| {' | '.join(map(str, cells))} | {auto} |", flush=True)


if __name__ == "__main__":
    main()
