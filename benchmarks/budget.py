"""Compare the cost of a reservoir with the prediction from which its number of slots follows.

    PYTHONPATH=src python benchmarks/budget.py --device cpu

Measures the time of a whole training step relative to Adam, for MLPs of several widths, batches and numbers of slots,
and prints it beside the prediction of `unstale.corrections.select`,

    ratio = FIXED_COST + 3 K n / (OVERHEAD + 6 m n)

for `K` slots, `n` parameters and batches of `m`. *every* is the number of steps between samples that enter, which the
prediction ignores. The last line has the constants that fit the measurements best.
"""

from __future__ import annotations

import argparse
import math
import statistics
from typing import NamedTuple

import torch
from cell import measure
from data import pool
from models import INPUTS, mlp, size
from steps import Candidate

from unstale.corrections.select import FIXED_COST, OVERHEAD

WIDTHS, BATCHES, SLOTS = (16, 64, 128), (1, 16, 128), (64, 256, 1024, 4096)
STEPS_PER_TURN = 100  # a multiple of all intervals at which samples enter


class Measurement(NamedTuple):
    """The measured cost of a step with ``slots`` slots, relative to Adam."""

    parameters: int
    batch: int
    slots: int
    every: int  # steps between samples that enter
    ratio: float


def predicted(found: Measurement, overhead: float, fixed_cost: float) -> float:
    """Return the predicted cost of the measured step."""
    return fixed_cost + marginal(found, overhead)


def marginal(found: Measurement, overhead: float) -> float:
    """Return the predicted share of the slots in the cost."""
    return 3 * found.slots * found.parameters / (overhead + 6 * found.batch * found.parameters)


def fit(found: list[Measurement]) -> tuple[float, float]:
    """Return the ``OVERHEAD`` and ``FIXED_COST`` with the smallest mean squared logarithm of predicted / measured."""

    def error(constants: tuple[float, float]) -> float:
        return statistics.fmean(math.log(predicted(each, *constants) / each.ratio) ** 2 for each in found)

    overheads = [10 ** (exponent / 10) for exponent in range(50, 121)]
    fixed_costs = [1 + tenth / 10 for tenth in range(41)]
    return min(((overhead, fixed) for overhead in overheads for fixed in fixed_costs), key=error)


def measure_slots(
    width: int, samples: int, slots: tuple[int, ...], device: torch.device, seconds: float
) -> list[Measurement]:
    """Return the cost of each number of slots on an MLP."""
    torch.manual_seed(0)
    model = mlp(width).to(device)
    candidates = [Candidate("Adam", kind="Adam")]
    candidates += [Candidate(f"{number} slots", "reservoir", kind="Adam", slots=number) for number in slots]
    rows = measure(candidates, model, pool(samples, [INPUTS], device), None, seconds, STEPS_PER_TURN)
    return [
        Measurement(size(model), samples, row["plan"]["slots"], row["plan"]["every"], row["ratio"]) for row in rows[1:]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted and measured cost of a reservoir.")
    parser.add_argument("--device", choices=tuple(OVERHEAD), default="cpu")
    parser.add_argument("--quick", action="store_true", help="one small network, as a smoke test")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    found: list[Measurement] = []
    print("| n | batch | slots | every | predicted | measured |\n| --- | --- | --- | --- | --- | --- |")
    for width in WIDTHS[:1] if options.quick else WIDTHS:
        for samples in BATCHES[1:2] if options.quick else BATCHES:
            slots, seconds = (SLOTS[:2], 2.0) if options.quick else (SLOTS, 15.0)
            for each in measure_slots(width, samples, slots, device, seconds):
                found.append(each)
                expected = predicted(each, OVERHEAD[device.type], FIXED_COST)
                sizes = f"{each.parameters:,} | {each.batch} | {each.slots:,} | {each.every}"
                print(f"| {sizes} | {expected:.2f} | {each.ratio:.2f} |", flush=True)
    if not options.quick:
        overhead, fixed_cost = fit(found)
        print(f"\nOVERHEAD = {OVERHEAD[device.type]:.1e}, FIXED_COST = {FIXED_COST:.1f}")
        print(f"fitted:    {overhead:.1e},              {fixed_cost:.1f}")


if __name__ == "__main__":
    main()
