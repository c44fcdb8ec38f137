"""The laboratory's engine compared with a plain loop, on the settings of figure 3.

PYTHONPATH=src:lab/src python benchmarks/engine.py

Every method, width, batch size and β of the figure is timed for a few steps: the plain loop with one run, the engine
with as many runs per batch as its plan for a CPU. First one process runs alone, then two processes run at the same
time, because they share caches and memory bandwidth.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import harmonic_mean, median
from threading import Barrier
from typing import Any, NamedTuple

import gymnasium
import torch
from machine import describe
from plain_lab import PlainRun
from report import source, table
from targets import Target

from unstale_lab import problems
from unstale_lab.engine.batch import prepare
from unstale_lab.engine.plan import plan
from unstale_lab.engine.training import EVALUATIONS_PER_RUN, Training
from unstale_lab.experiment import Run
from unstale_lab.figures import find

METHODS = ("momentum", "diagonal", "full", "oracle")  # of the paper
RUNS = [run for run in find("fig3").runs("paper") if run.method in METHODS and run.convention == "text"]
STEPS = RUNS[0].steps
ALPHA = 0.1  # of the plain loop; its time does not depend on it
PROCESSES = 2  # the targets are for two cores
TURNS = 5
CYCLE = 10  # the engine updates a large ζ every tenth step, so that turns are whole cycles
WHERE = ("method", "width", "batch", "beta", "together")

Cell = dict[str, Any]


class Setting(NamedTuple):
    """One kind of run, and a batch of the engine's plan that contains such runs."""

    method: str
    width: int
    batch: int
    beta: float
    runs: int  # of this kind in the figure
    together: list[Run]  # the batch


class Candidate(NamedTuple):
    """Something to time."""

    step: Callable[[], None]
    runs: int = 1  # per step
    prepare: Callable[[int], None] = lambda steps: None  # called with the number of steps before they are timed
    overhead: float = 0.0  # seconds per step spent outside steps


def main() -> None:
    options = arguments()
    prepare_process()
    out: Path = options.out or Path(__file__).parent / "results" / f"engine{'-quick' * options.quick}.json"
    machine = {**describe(torch.device("cpu")), "gymnasium": gymnasium.__version__}
    about = dict(machine=machine, command=command(options), quick=options.quick)
    start = time.perf_counter()
    cells = measure_all(settings(options.quick), options.seconds_per_cell)
    result = {**about, "seconds": time.perf_counter() - start, "summary": summary(cells), "cells": cells}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    out.with_suffix(".md").write_text(page(result))
    print(out.with_suffix(".md").read_text())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs per hour of the laboratory's engine and of a plain loop.")
    parser.add_argument("--seconds-per-cell", type=float, default=0.5, help="for each candidate, in each condition")
    parser.add_argument(
        "--out", type=Path, help="JSON file; the Markdown page is written next to it; default: results/engine.json"
    )
    parser.add_argument("--quick", action="store_true", help="only the smallest networks and batches")
    return parser.parse_args()


def command(options: argparse.Namespace) -> str:
    quick = " --quick" * options.quick
    return f"PYTHONPATH=src:lab/src python benchmarks/engine.py --seconds-per-cell {options.seconds_per_cell:g}{quick}"


def settings(quick: bool) -> list[Setting]:
    """Of the whole figure, or of a corner of it."""
    runs = [run for run in RUNS if not quick or (run.width, run.batch) == (8, 4)]
    kinds: dict[tuple[str, int, int, float], list[Run]] = {}
    for run in runs:
        kinds.setdefault((run.method, run.width, run.batch, run.beta), []).append(run)
    batch_of = {run: batch for batch in plan(runs, "cpu") for run in batch}
    return [Setting(*kind, len(own), batch_of[own[0]]) for kind, own in kinds.items()]


# Measurement.


def measure_all(chosen: Sequence[Setting], seconds: float) -> list[Cell]:
    """Return the times of all settings, measured by this process and its helpers in parallel."""
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(PROCESSES, timeout=300)  # in case another process is killed
    news = context.Queue()
    helpers = [
        context.Process(target=_help, args=(chosen, seconds, together, news), daemon=True) for _ in range(PROCESSES - 1)
    ]
    for helper in helpers:
        helper.start()
    own = measure(chosen, seconds, together, is_first=True)
    others = [news.get(timeout=60) for _ in helpers]
    cells = []
    for setting, first, *rest in zip(chosen, own, *others, strict=True):
        # Per core: the harmonic mean gives the average runs per hour of the cores.
        busy = {name: harmonic_mean([times["busy"][name] for times in (first, *rest)]) for name in first["busy"]}
        where = setting._asdict() | {"together": len(setting.together)}
        cells.append({**where, "alone": first["alone"], "busy": busy})
    return cells


def _help(chosen: Sequence[Setting], seconds: float, together: Barrier, news: Any) -> None:
    prepare_process()
    try:
        news.put(measure(chosen, seconds, together, is_first=False))
    except BaseException:
        together.abort()  # release the waiting processes
        raise


def prepare_process() -> None:
    """Set up this process like a worker of a sweep, and load the problem."""
    prepare("cpu")
    problems.load(RUNS[0].problem)


def measure(
    chosen: Sequence[Setting], seconds: float, together: Barrier, is_first: bool
) -> list[dict[str, dict[str, float]]]:
    """Return seconds per step of one run for each setting.

    ``"alone"`` is measured by the first process while all others wait, ``"busy"`` by all processes at the same time.
    """
    found = []
    for setting in chosen:
        together.wait()
        candidates = candidates_for(setting)
        steps = {name: _steps_per_turn(candidate, seconds / TURNS) for name, candidate in candidates.items()}
        together.wait()
        alone = take_turns(candidates, steps, wait=lambda: None) if is_first else {}
        together.wait()
        busy = take_turns(candidates, steps, wait=together.wait)
        found.append({"alone": alone, "busy": busy})
        if is_first:
            where = f"{setting.method:9} width {setting.width:2}, batch {setting.batch:2}, β = {setting.beta:4}"
            times = ", ".join(f"{name} {_micro(x)}" for name, x in busy.items())
            print(f"{where}: {times} µs per step and run, both cores busy", flush=True)
    return found


def candidates_for(setting: Setting) -> dict[str, Candidate]:
    def plain(method: str) -> Candidate:
        return Candidate(PlainRun(method, setting.width, setting.batch, ALPHA, setting.beta).step)

    lean = {"lean": plain("lean momentum")} if setting.method == "momentum" else {}
    return {"plain": plain(setting.method), **lean, "engine": engine_for(setting.together)}


def engine_for(runs: Sequence[Run]) -> Candidate:
    """Return the engine on a batch of runs; setup, data and evaluation are distributed over the steps."""
    start = time.perf_counter()
    training = Training(runs, "cpu")
    setup_seconds = time.perf_counter() - start
    chunk = STEPS // EVALUATIONS_PER_RUN
    training.feed.fill(chunk)

    def between() -> None:
        training.feed.fill(chunk)
        training.measure()

    overhead = setup_seconds / STEPS + median(_timed(between) for _ in range(3)) / chunk
    return Candidate(training.step, len(runs), training.feed.fill, overhead)


def take_turns(candidates: dict[str, Candidate], steps: dict[str, int], wait: Callable[[], Any]) -> dict[str, float]:
    """Return the median over turns of the seconds per step of one run; ``wait`` is called before each turn."""
    turns: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(TURNS):
        for name, candidate in candidates.items():
            wait()
            turns[name].append(_turn(candidate, steps[name]) / steps[name])
    return {name: (median(turns[name]) + candidate.overhead) / candidate.runs for name, candidate in candidates.items()}


def _steps_per_turn(candidate: Candidate, seconds: float) -> int:
    """Return the number of steps per turn: whole cycles, estimated from a first trial, which is also the warm-up."""
    _turn(candidate, CYCLE)
    cycles = round(seconds / _turn(candidate, CYCLE))
    return CYCLE * min(10, max(1, cycles))


def _turn(candidate: Candidate, steps: int) -> float:
    candidate.prepare(steps)

    def advance() -> None:
        for _ in range(steps):
            candidate.step()

    return _timed(advance)


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# Results.


def summary(cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """Extrapolate to the whole figure, per method and for all, also with the lean loop for momentum."""
    parts = {method: [cell for cell in cells if cell["method"] == method] for method in METHODS}
    found = {method: _extrapolate(own) for method, own in parts.items()}
    found["momentum, lean"] = _extrapolate(parts["momentum"], lean=True)
    found["all"] = _extrapolate(cells)
    found["all, momentum lean"] = _extrapolate(cells, lean=True)
    return found


def _extrapolate(cells: Sequence[Cell], lean: bool = False) -> dict[str, float]:
    """Return totals and speed-ups of some cells.

    ``over_one_loop`` compares the engine on all cores with one plain loop alone on the machine; ``core_for_core``
    compares it with one plain loop per core.
    """

    def seconds(condition: str, name: str) -> float:
        times = [cell[condition] for cell in cells]
        per_step = [own["lean"] if lean and name == "plain" and "lean" in own else own[name] for own in times]
        return sum(cell["runs"] * STEPS * time for cell, time in zip(cells, per_step, strict=True))

    engine = seconds("busy", "engine")
    return {
        "runs": sum(cell["runs"] for cell in cells),
        "plain_hours": seconds("alone", "plain") / 3600,
        "engine_minutes": engine / PROCESSES / 60,
        "over_one_loop": seconds("alone", "plain") / (engine / PROCESSES),
        "core_for_core": seconds("busy", "plain") / engine,
    }


def targets(found: dict[str, dict[str, float]]) -> list[Target]:
    """Return the performance targets, both against one plain loop and against one loop per core."""
    wanted = {"momentum": 100, "diagonal": 100, "all": 8}
    readings = {"over_one_loop": "2 cores vs one loop", "core_for_core": "per core"}
    rows = [
        Target(
            f"{'whole figure' if name == 'all' else name}, speed-up in runs per hour, {comparison}",
            f"≥ {least}",
            f"{found[name][reading]:.1f}",
            found[name][reading] >= least,
        )
        for name, least in wanted.items()
        for reading, comparison in readings.items()
    ]
    minutes = found["all"]["engine_minutes"]
    return [*rows, Target("whole figure, minutes on 2 cores", "< 75", f"{minutes:.1f}", minutes < 75)]


def page(result: dict[str, Any]) -> str:
    """Render the result as Markdown."""
    gym = result["machine"]["gymnasium"]
    judged = [[t.what, t.wanted, t.measured, "met" if t.met else "**not met**"] for t in targets(result["summary"])]
    parts = [
        "# The engine compared with a plain loop",
        source(result),
        f"The plain loop (`plain_lab.py`, Gymnasium {gym}) trains one run at a time; the engine batches many runs. "
        "Both use one thread per process. *Alone*: one process on the machine. *Busy*: two processes at the same time.",
        # A quick run covers too little of the figure for the targets.
        *([] if result["quick"] else [table(["target", "wanted", "measured", ""], judged)]),
        f"## Figure 3{' (subset)' if result['quick'] else ' (all settings)'}",
        f"Steps were timed and extrapolated to runs of {STEPS:,} steps. The engine's time includes setup, data and "
        "evaluation; the plain loop's includes data only. *Lean*: momentum by backpropagation of the mean loss, "
        "without the per-sample gradients that the other methods need.",
        table(
            [
                "",
                "runs",
                "plain loop, core-hours",
                "engine on 2 cores, minutes",
                "speed-up vs one loop",
                "speed-up per core",
            ],
            _methods(result["summary"]),
        ),
        "## All settings",
        "Microseconds per step of one run. *Together*: number of runs in a batch of the engine.",
        table([*WHERE, "plain: alone", "busy", "engine: alone", "busy", "ratio, busy"], map(_line, result["cells"])),
    ]
    return "\n\n".join(parts) + "\n"


def _methods(found: dict[str, dict[str, float]]) -> Iterable[list[str]]:
    for name, own in found.items():
        times = [f"{own['plain_hours']:.2f}", f"{own['engine_minutes']:.2f}"]
        yield [name, f"{own['runs']:,}", *times, f"{own['over_one_loop']:.1f}", f"{own['core_for_core']:.1f}"]


def _line(cell: Cell) -> list[str]:
    alone, busy = cell["alone"], cell["busy"]
    plain, engine = ([_micro(alone[name]), _micro(busy[name])] for name in ("plain", "engine"))
    if "lean" in busy:
        plain = [f"{x} (lean {_micro(times['lean'])})" for x, times in zip(plain, (alone, busy), strict=True)]
    where = [str(cell[key]) for key in WHERE]
    return [*where, *plain, *engine, f"{busy['plain'] / busy['engine']:.1f}"]


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}" if seconds < 1e-4 else f"{seconds * 1e6:,.0f}"


if __name__ == "__main__":
    main()
