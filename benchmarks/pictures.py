"""What steps of MsPacman's figures cost in the laboratory's engine, beside Adam's; and how fast games are played.

    PYTHONPATH=src python benchmarks/pictures.py --device cuda

Steps as the engine makes them: on a GPU recorded once as a graph and replayed, so that what is measured is work and not
the launching of it. Pictures are noise: a step costs the same whatever is on them. Results go to
``results/pictures-<device>.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from machine import describe
from timing import Timing, interleaved

from unstale_lab import problems
from unstale_lab.engine.training import Training, make_stepper
from unstale_lab.experiment import Run
from unstale_lab.precision import matmul_precision
from unstale_lab.problems.base import Transitions, ValueSet, seeded
from unstale_lab.problems.pictures import Film

UNROLL = 10
FRAMES = 2000
METHODS = ["adam", "adam_diagonal", "adam_window", "adam_oracle", "adam_frozen"]
SMALL_METHODS = ["adam", "adam_linearized", "adam_window", "adam_dense"]


class Noise:
    """Frames without a meaning, and transitions between them."""

    inputs = 2
    bootstraps = True

    @cache  # noqa: B019
    def pictures(self, device: str) -> Film:
        frames = torch.randint(0, 256, (FRAMES + 1, 84, 84), dtype=torch.uint8, generator=seeded("noise"))
        newest = 1 + torch.arange(FRAMES)
        return Film(frames.to(device), newest.to(device), torch.ones_like(newest).to(device), answers=9)

    def stream(self, seed: int, batch: int, n_step: int) -> Callable[[int], Transitions]:
        numbers = seeded("noise", seed)

        def take(count: int) -> Transitions:
            frame, action, other = torch.randint(9 * FRAMES, (3, count, batch), generator=numbers)
            state = torch.stack([frame % (FRAMES - 1), action % 9], -1)
            following = torch.stack([frame % (FRAMES - 1) + 1, other % 9], -1)
            return Transitions(state, (frame % 2).float(), torch.full((count, batch), 0.99), following)

        return take

    def values(self) -> dict[str, ValueSet]:
        return {}

    def fingerprint(self) -> str:
        return "noise"


@dataclass(frozen=True)
class Cell:
    network: str
    precision: str
    side_by_side: int
    method: str
    parameters: int
    timing: Timing  # of a step of all runs together
    ratio: float  # to Adam's, all else being equal
    extra_mib: float  # the most that tensors took, beyond what they took with Adam


def measure(base: Run, methods: list[str], runs: int, device: str, seconds: float) -> list[Cell]:
    steps: dict[str, Callable[[], None]] = {}
    peaks: dict[str, float] = {}
    with matmul_precision(base.precision):
        # The first one twice: it pays for what libraries allocate once, and only its second time counts.
        for method in [methods[0], *methods]:
            gc.collect()
            before = _memory(device, reset=True)
            training = Training([replace(base, method=method, seed=seed) for seed in range(runs)], device)
            advance = make_stepper(training, 0)

            def step(training: Training = training, advance: Callable[[int], None] = advance) -> None:
                training.feed.fill(UNROLL)
                advance(UNROLL)

            for _ in range(4):  # until windows are full and graphs recorded
                step()
            peaks[method] = _memory(device) - before
            steps[method] = step
        times = interleaved(steps, torch.device(device), seconds)
    cells = []
    for method in methods:
        each = times[method]
        own = Timing(
            each.median / UNROLL, each.low / UNROLL, each.high / UNROLL, each.turns, each.steps_per_turn * UNROLL
        )
        ratio = each.median / times["adam"].median
        extra = (peaks[method] - peaks["adam"]) / 2**20
        n = training.network.size
        cells.append(Cell(base.network, base.precision, runs, method, n, own, ratio, extra))
    return cells


def _memory(device: str, reset: bool = False) -> float:
    if device == "cpu":
        return 0.0
    torch.cuda.synchronize()
    if reset:
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return torch.cuda.max_memory_allocated()


def play(games: int, seconds: float) -> float:
    """Steps a second of so many games side by side, at random, preprocessing included."""
    from unstale_lab.atari.games import make_games

    played = make_games("ms_pacman", games, seed=0)
    played.reset()
    numbers = np.random.default_rng(0)
    for _ in range(10):
        played.step(numbers.integers(0, 9, games))
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        played.step(numbers.integers(0, 9, games))
        steps += games
    rate = steps / (time.perf_counter() - started)
    played.close()
    return rate


def page(about: dict, cells: list[Cell], rates: dict[int, float], command: str) -> str:
    machine = (
        f"{about.get('gpu', 'CPU')}, {about['cpu']}, {about['cores']} cores, torch {about['torch']}, {about['date']}"
    )
    lines = [
        "# Pictures and games",
        "",
        f"{machine}. Run: `{command}`. Medians, quartiles in brackets; steps are those of all runs side by side.",
        "",
        "| network | precision | side by side | method | ms a step | × Adam | extra MiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for c in cells:
        t = c.timing
        lines.append(
            f"| {c.network}, n = {c.parameters:,} | {c.precision} | {c.side_by_side} | {c.method} "
            f"| {1e3 * t.median:.3f} ({1e3 * t.low:.3f} to {1e3 * t.high:.3f}) | {c.ratio:.2f} | {c.extra_mib:,.0f} |"
        )
    if rates:
        lines += ["", "| games side by side | steps a second |", "| --- | --- |"]
    lines += [f"| {games} | {rate:,.0f} |" for games, rate in rates.items()]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seconds", type=float, default=3.0, help="of timing, for every method")
    parser.add_argument("--networks", nargs="*", default=["dqn", "small_atari"])
    parser.add_argument("--games", nargs="*", type=int, default=[16, 128], help="how many to play side by side")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    asked = parser.parse_args()
    problems.PROBLEMS["noise"] = Noise
    large = Run(problem="noise", network="dqn", width=32, batch=32, beta=0.9, alpha=1e-4, steps=10_000)
    small = replace(large, network="small_atari", width=16, precision="tf32")
    cells: list[Cell] = []
    for base, methods, runs in [
        (large, METHODS, 1),
        (small, SMALL_METHODS, 5),
    ]:
        if base.network not in asked.networks:
            continue
        if asked.device == "cpu":  # one run of the small network is enough to see that it works
            if base.network == "dqn":
                continue
            runs = 1
        cells += measure(base, methods, runs, asked.device, asked.seconds * len(methods))
    rates = {games: play(games, asked.seconds) for games in asked.games}
    about = describe(torch.device(asked.device))
    chosen = ["--networks", *asked.networks, "--games", *map(str, asked.games), "--seconds", f"{asked.seconds:g}"]
    command = " ".join(["PYTHONPATH=src python benchmarks/pictures.py --device", asked.device, *chosen])
    result = {"machine": about, "command": command, "cells": [asdict(c) for c in cells], "games": rates}
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / f"pictures-{asked.device}.json").write_text(json.dumps(result, indent=1))
    text = page(about, cells, rates, command)
    (asked.out / f"pictures-{asked.device}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
