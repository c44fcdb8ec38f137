"""Time training steps of two versions of the library in one process.

    python benchmarks/compare.py OTHER_CHECKOUT/src/unstale

Prints, for MLPs of several widths and batch sizes, the median time of a whole training step over that of
``torch.optim.SGD`` with momentum, for the other version and for this one. All take turns, warm, on one thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

CELLS = [(16, 1), (16, 16), (64, 16), (64, 64), (256, 16), (256, 64), (1024, 64)]
CORRECTIONS = ("diagonal", "window", "dense")
MAX_DENSE_WIDTH = 16
LARGE_WIDTH = 1024


def load(name: str, folder: Path) -> ModuleType:
    """The package in ``folder``, imported under another name."""
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def make_step(library: ModuleType | None, correction: str, width: int, samples: int) -> Callable[[], None]:
    """A training step on fixed data, with ``torch.optim.SGD`` if ``library`` is None."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(2) for layer in (nn.Linear(width, width), nn.LeakyReLU())]
    model = nn.Sequential(nn.Linear(2, width), nn.LeakyReLU(), *hidden, nn.Linear(width, 1))
    state, following, reward = torch.randn(samples, 2), torch.randn(samples, 2), torch.randn(samples)
    if library is None:
        sgd = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)

        def uncorrected() -> None:
            value = model(state).squeeze(-1)
            with torch.no_grad():
                target = reward + 0.9 * model(following).squeeze(-1)
            (0.5 * (value - target).square()).mean().backward()
            sgd.step()
            sgd.zero_grad()

        return uncorrected
    optimizer = library.CorrectedSGD(model, lr=1e-4, beta=0.9, correction=correction)

    def corrected() -> None:
        optimizer.backward(model(state).squeeze(-1), reward + 0.9 * model(following).squeeze(-1))
        optimizer.step()
        optimizer.zero_grad()

    return corrected


def median_seconds(steps: dict[str, Callable[[], None]], rounds: int, per_turn: int) -> dict[str, float]:
    """The median time of each step, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(per_turn):
                step()
            times[name].append((time.perf_counter() - start) / per_turn)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the folder src/unstale of another checkout")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    libraries = {"other": load("unstale_other", arguments.other), "this": importlib.import_module("unstale")}
    print("| width | batch | SGD, µs | correction | other | this | this / other |\n" + "| --- " * 7 + "|")
    for width, samples in CELLS:
        steps = {"SGD": make_step(None, "", width, samples)}
        for correction in CORRECTIONS if width <= MAX_DENSE_WIDTH else CORRECTIONS[:2]:
            for name, library in libraries.items():
                steps[f"{correction} {name}"] = make_step(library, correction, width, samples)
        large = width >= LARGE_WIDTH
        for step in steps.values():
            for _ in range(8 if large else 70):
                step()
        found = median_seconds(steps, rounds=7 if large else 25, per_turn=2 if large else 20)
        for correction in CORRECTIONS:
            if f"{correction} this" in found:
                other, this = (found[f"{correction} {name}"] / found["SGD"] for name in libraries)
                cells = [width, samples, round(found["SGD"] * 1e6), correction]
                cells += [f"{ratio:.2f}" for ratio in (other, this, this / other)]
                print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main()
