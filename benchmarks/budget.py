"""Compare the cost of a reservoir with the prediction from which its number of slots follows.

    PYTHONPATH=src python benchmarks/budget.py --device cpu

Measures the time of a whole training step relative to Adam, for MLPs of several widths, batches and numbers of slots,
and prints it beside the prediction of `unstale.corrections.select`,

    ratio = FIXED_COST + K (3 n + SLOT_NUMBER_WORK s) / (OVERHEAD + 6 m n)

for `K` slots of `s` numbers each, `n` parameters and batches of `m`: what `slots_within` solves for `K`. *every* is the
number of steps between samples that enter, which the prediction ignores. The last line has the constants that fit the
measurements best. DENSE_ENTRY_WORK is not fitted here.
"""

from __future__ import annotations

import argparse
import math
import statistics
from itertools import product
from operator import mul
from typing import NamedTuple

import torch
from cell import measure
from data import pool
from models import INPUTS, mlp, size
from steps import Candidate

from unstale.corrections.select import FIXED_COST, OVERHEAD, SLOT_NUMBER_WORK, slot_numbers

WIDTHS, BATCHES, SLOTS = (16, 64, 128), (1, 16, 128), (64, 256, 1024, 4096)
STEPS_PER_TURN = 100  # a multiple of all intervals at which samples enter


class Measurement(NamedTuple):
    """The measured cost of a step with ``slots`` slots, relative to Adam."""

    parameters: int
    slot_numbers: int  # stored per sample in a slot
    batch: int
    slots: int
    every: int  # steps between samples that enter
    ratio: float


class Constants(NamedTuple):
    """The constants of the prediction, for one kind of device."""

    overhead: float
    slot_number_work: float
    fixed_cost: float


def current_constants(device: str) -> Constants:
    """Return the constants of `unstale.corrections.select`."""
    return Constants(OVERHEAD[device], SLOT_NUMBER_WORK, FIXED_COST)


def predicted(found: Measurement, constants: Constants) -> float:
    """Return the predicted cost of the measured step."""
    uncorrected = constants.overhead + 6 * found.batch * found.parameters
    slot_work = 3 * found.parameters + constants.slot_number_work * found.slot_numbers
    return constants.fixed_cost + found.slots * slot_work / uncorrected


def fit(found: list[Measurement], start: Constants) -> Constants:
    """Return the constants with the smallest mean squared logarithm of predicted / measured.

    Constants are multiplied and divided in turn by factors that become smaller, as long as that reduces the error.
    """

    def error(constants: Constants) -> float:
        return statistics.fmean(math.log(predicted(each, constants) / each.ratio) ** 2 for each in found)

    best, factor = start, 2.0
    while factor > 1.001:
        scales = [scale for scale in product((1 / factor, 1.0, factor), repeat=3) if scale != (1, 1, 1)]
        tried = min((Constants(*map(mul, best, scale)) for scale in scales), key=error)
        if error(tried) < error(best):
            best = tried
        else:
            factor **= 0.5
    return best


def measure_slots(
    width: int, samples: int, slots: tuple[int, ...], device: torch.device, seconds: float
) -> list[Measurement]:
    """Return the cost of each number of slots on an MLP."""
    torch.manual_seed(0)
    model = mlp(width).to(device)
    candidates = [Candidate("Adam", kind="Adam")]
    candidates += [Candidate(f"{number} slots", "reservoir", kind="Adam", slots=number) for number in slots]
    rows = measure(candidates, model, pool(samples, [INPUTS], device), None, seconds, STEPS_PER_TURN)
    numbers = slot_numbers(list(model.parameters()))
    return [
        Measurement(size(model), numbers, samples, row["plan"]["slots"], row["plan"]["every"], row["ratio"])
        for row in rows[1:]
    ]


def format_constants(constants: Constants) -> str:
    """Return the constants under their names in `unstale.corrections.select`."""
    overhead, slot_number_work, fixed_cost = constants
    return f"OVERHEAD = {overhead:.1e}, SLOT_NUMBER_WORK = {slot_number_work:.0f}, FIXED_COST = {fixed_cost:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted and measured cost of a reservoir.")
    parser.add_argument("--device", choices=tuple(OVERHEAD), default="cpu")
    parser.add_argument("--quick", action="store_true", help="one small network, as a smoke test")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    constants = current_constants(device.type)
    found: list[Measurement] = []
    print("| n | batch | slots | every | predicted | measured |\n| --- | --- | --- | --- | --- | --- |")
    for width in WIDTHS[:1] if options.quick else WIDTHS:
        for samples in BATCHES[1:2] if options.quick else BATCHES:
            slots, seconds = (SLOTS[:2], 2.0) if options.quick else (SLOTS, 15.0)
            for each in measure_slots(width, samples, slots, device, seconds):
                found.append(each)
                expected = predicted(each, constants)
                sizes = f"{each.parameters:,} | {each.batch} | {each.slots:,} | {each.every}"
                print(f"| {sizes} | {expected:.2f} | {each.ratio:.2f} |", flush=True)
    if not options.quick:
        print(f"\n{format_constants(constants)}\nfitted: {format_constants(fit(found, constants))}")


if __name__ == "__main__":
    main()
