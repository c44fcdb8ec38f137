"""Step time and memory of the MsPacman figures in the laboratory's engine, relative to Adam; and emulator speed.

    PYTHONPATH=src:lab/src python benchmarks/images.py --device cuda

Steps are made as in the engine: on a GPU by replaying a CUDA graph, so that kernel launches do not dominate. The images
are noise, because the time of a step does not depend on them. Results go to ``results/images-<device>.json`` and
``.md``.
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
from timing import Timing, time_interleaved

from unstale_lab import problems
from unstale_lab.engine.training import Training, make_stepper
from unstale_lab.experiment import Run
from unstale_lab.precision import matmul_precision
from unstale_lab.problems.images import FrameStacks
from unstale_lab.problems.problem import Transitions, ValueSet, seeded

STEPS_PER_CALL = 10
FRAMES = 2000
METHODS = ["adam", "adam_diagonal", "adam_window", "adam_oracle", "adam_frozen"]
SMALL_METHODS = ["adam", "adam_linearized", "adam_window", "adam_dense"]


class Noise:
    """Random frames, and transitions between them."""

    inputs = 2
    bootstraps = True

    @cache  # noqa: B019
    def images(self, device: str) -> FrameStacks:
        frames = torch.randint(0, 256, (FRAMES + 1, 84, 84), dtype=torch.uint8, generator=seeded("noise"))
        newest = 1 + torch.arange(FRAMES)
        return FrameStacks(frames.to(device), newest.to(device), torch.ones_like(newest).to(device), outputs=9)

    def stream(self, seed: int, batch: int, n_step: int) -> Callable[[int], Transitions]:
        generator = seeded("noise", seed)

        def take(count: int) -> Transitions:
            frame, action, other = torch.randint(9 * FRAMES, (3, count, batch), generator=generator)
            state = torch.stack([frame % (FRAMES - 1), action % 9], -1)
            next_state = torch.stack([frame % (FRAMES - 1) + 1, other % 9], -1)
            return Transitions(state, (frame % 2).float(), torch.full((count, batch), 0.99), next_state)

        return take

    def values(self) -> dict[str, ValueSet]:
        return {}

    def fingerprint(self) -> str:
        return "noise"


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    network: str
    precision: str
    side_by_side: int
    method: str
    parameters: int
    timing: Timing  # of a step of all runs
    ratio: float  # to the time of Adam
    extra_mib: float  # peak memory minus that of Adam


def measure(base: Run, methods: list[str], runs: int, device: str, seconds: float) -> list[Cell]:
    """Time steps of several methods on ``runs`` runs."""
    steps: dict[str, Callable[[], None]] = {}
    peaks: dict[str, float] = {}
    with matmul_precision(base.precision):
        # Run the first method twice: the first time includes one-time allocations of libraries.
        for method in [methods[0], *methods]:
            gc.collect()
            before = _memory(device, reset=True)
            training = Training([replace(base, method=method, seed=seed) for seed in range(runs)], device)
            advance = make_stepper(training, 0)

            def step(training: Training = training, advance: Callable[[int], None] = advance) -> None:
                training.feed.fill(STEPS_PER_CALL)
                advance(STEPS_PER_CALL)

            for _ in range(4):  # until windows are full and graphs captured
                step()
            peaks[method] = _memory(device) - before
            steps[method] = step
        times = time_interleaved(steps, torch.device(device), seconds)
    cells = []
    for method in methods:
        each = times[method]
        own = Timing(
            each.median / STEPS_PER_CALL,
            each.low / STEPS_PER_CALL,
            each.high / STEPS_PER_CALL,
            each.turns,
            each.steps_per_turn * STEPS_PER_CALL,
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


def emulator_speed(games: int, seconds: float) -> float:
    """Return steps per second of parallel games with random actions, preprocessing included."""
    from unstale_lab.atari.games import make_games

    env = make_games("ms_pacman", games, seed=0)
    env.reset()
    rng = np.random.default_rng(0)
    for _ in range(10):
        env.step(rng.integers(0, 9, games))
    started, steps = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        env.step(rng.integers(0, 9, games))
        steps += games
    rate = steps / (time.perf_counter() - started)
    env.close()
    return rate


def page(machine_info: dict, cells: list[Cell], rates: dict[int, float], command: str) -> str:
    """Render the results as Markdown."""
    hardware = f"{machine_info.get('gpu', 'CPU')}, {machine_info['cpu']}, {machine_info['cores']} cores"
    machine = f"{hardware}, torch {machine_info['torch']}, {machine_info['date']}"
    lines = [
        "# Image networks and Atari games",
        "",
        f"{machine}. Run: `{command}`. Medians, with quartiles in parentheses; a step advances all runs of the batch.",
        "",
        "| network | precision | runs | method | ms per step | × Adam | extra MiB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for c in cells:
        t = c.timing
        lines.append(
            f"| {c.network}, n = {c.parameters:,} | {c.precision} | {c.side_by_side} | {c.method} "
            f"| {1e3 * t.median:.3f} ({1e3 * t.low:.3f} to {1e3 * t.high:.3f}) | {c.ratio:.2f} | {c.extra_mib:,.0f} |"
        )
    if rates:
        lines += ["", "| parallel games | steps per second |", "| --- | --- |"]
    lines += [f"| {games} | {rate:,.0f} |" for games, rate in rates.items()]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of timing per method")
    parser.add_argument("--networks", nargs="*", default=["dqn", "small_atari"])
    parser.add_argument("--games", nargs="*", type=int, default=[16, 128], help="numbers of parallel games")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    problems.PROBLEMS["noise"] = Noise
    large = Run(problem="noise", network="dqn", width=32, batch=32, beta=0.9, alpha=1e-4, steps=10_000)
    small = replace(large, network="small_atari", width=16, precision="tf32")
    cells: list[Cell] = []
    for base, methods, runs in [
        (large, METHODS, 1),
        (small, SMALL_METHODS, 5),
    ]:
        if base.network not in options.networks:
            continue
        if options.device == "cpu":  # one run of the small network is enough for a smoke test
            if base.network == "dqn":
                continue
            runs = 1
        cells += measure(base, methods, runs, options.device, options.seconds * len(methods))
    rates = {games: emulator_speed(games, options.seconds) for games in options.games}
    machine_info = describe(torch.device(options.device))
    chosen = ["--networks", *options.networks, "--games", *map(str, options.games), "--seconds", f"{options.seconds:g}"]
    command = " ".join(["PYTHONPATH=src:lab/src python benchmarks/images.py --device", options.device, *chosen])
    result = {"machine": machine_info, "command": command, "cells": [asdict(c) for c in cells], "games": rates}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"images-{options.device}.json").write_text(json.dumps(result, indent=1))
    text = page(machine_info, cells, rates, command)
    (options.out / f"images-{options.device}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
