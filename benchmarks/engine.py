"""The laboratory's engine beside a plain loop, on the settings of figure 3.

PYTHONPATH=src python benchmarks/engine.py

Every method, width, batch size and β of the figure is timed for a few steps: the plain loop one run at a time, the
engine with as many runs stepped together as its plan for a CPU puts together. First one process has the machine to
itself, then two processes do the same thing at the same moment, for they share caches and memory.
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
from unstale_lab.engine.plan import plan
from unstale_lab.engine.sweep import prepare
from unstale_lab.engine.training import EVALUATIONS_PER_RUN, Training
from unstale_lab.experiment import Run
from unstale_lab.figures import find

METHODS = ("momentum", "diagonal", "full", "oracle")  # the paper's
RUNS = [run for run in find("fig3").runs("paper") if run.method in METHODS]
STEPS = RUNS[0].steps
ALPHA = 0.1  # of the plain loop: it makes no difference to its time
PROCESSES = 2  # the targets are for two cores
TURNS = 5
CYCLE = 10  # steps: the engine adds to a large ζ every tenth, and every turn must have its share of that
WHERE = ("method", "width", "batch", "beta", "together")

Cell = dict[str, Any]


class Setting(NamedTuple):
    """What is timed: one kind of run, and a batch of the engine's plan that has such runs."""

    method: str
    width: int
    batch: int
    beta: float
    runs: int  # of this kind in the figure
    together: list[Run]


class Candidate(NamedTuple):
    step: Callable[[], None]
    runs: int = 1  # that make a step together
    ready: Callable[[int], None] = lambda steps: None  # called before so many steps, untimed
    besides: float = 0.0  # seconds a step that are spent outside steps


def main() -> None:
    options = arguments()
    ready()
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
    parser.add_argument("--out", type=Path, help="JSON file, with the page beside it; default: results/engine.json")
    parser.add_argument("--quick", action="store_true", help="the smallest networks and batches alone")
    return parser.parse_args()


def command(options: argparse.Namespace) -> str:
    quick = " --quick" * options.quick
    return f"PYTHONPATH=src python benchmarks/engine.py --seconds-per-cell {options.seconds_per_cell:g}{quick}"


def settings(quick: bool) -> list[Setting]:
    """Of the whole figure, or of a corner of it."""
    runs = [run for run in RUNS if not quick or (run.width, run.batch) == (8, 4)]
    kinds: dict[tuple[str, int, int, float], list[Run]] = {}
    for run in runs:
        kinds.setdefault((run.method, run.width, run.batch, run.beta), []).append(run)
    batch_of = {run: batch for batch in plan(runs, "cpu") for run in batch}
    return [Setting(*kind, len(own), batch_of[own[0]]) for kind, own in kinds.items()]


# Measuring.


def measure_all(chosen: Sequence[Setting], seconds: float) -> list[Cell]:
    """Times of all settings. This process and its helpers go through them side by side."""
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(PROCESSES, timeout=300)  # the longest to wait for another, should it be killed
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
        # Per core: that many runs an hour, on the average of the cores.
        busy = {name: harmonic_mean([times["busy"][name] for times in (first, *rest)]) for name in first["busy"]}
        where = setting._asdict() | {"together": len(setting.together)}
        cells.append({**where, "alone": first["alone"], "busy": busy})
    return cells


def _help(chosen: Sequence[Setting], seconds: float, together: Barrier, news: Any) -> None:
    ready()
    try:
        news.put(measure(chosen, seconds, together, is_first=False))
    except BaseException:
        together.abort()  # nobody need wait any more
        raise


def ready() -> None:
    """A process as a sweep has it, with its problem made."""
    prepare("cpu")
    problems.load(RUNS[0].problem)


def measure(
    chosen: Sequence[Setting], seconds: float, together: Barrier, is_first: bool
) -> list[dict[str, dict[str, float]]]:
    """Seconds per step of one run, for each setting: ``"alone"``, which only the first process measures while all
    others wait, and ``"busy"``, with all of them at it."""
    found = []
    for setting in chosen:
        together.wait()
        candidates = candidates_for(setting)
        steps = {name: _steps_a_turn(candidate, seconds / TURNS) for name, candidate in candidates.items()}
        together.wait()
        alone = take_turns(candidates, steps, wait=lambda: None) if is_first else {}
        together.wait()
        busy = take_turns(candidates, steps, wait=together.wait)
        found.append({"alone": alone, "busy": busy})
        if is_first:
            where = f"{setting.method:9} width {setting.width:2}, batch {setting.batch:2}, β = {setting.beta:4}"
            times = ", ".join(f"{name} {_micro(x)}" for name, x in busy.items())
            print(f"{where}: {times} µs a step of one run, both cores busy", flush=True)
    return found


def candidates_for(setting: Setting) -> dict[str, Candidate]:
    def plain(method: str) -> Candidate:
        return Candidate(PlainRun(method, setting.width, setting.batch, ALPHA, setting.beta).step)

    lean = {"lean": plain("lean momentum")} if setting.method == "momentum" else {}
    return {"plain": plain(setting.method), **lean, "engine": engine_for(setting.together)}


def engine_for(runs: Sequence[Run]) -> Candidate:
    """The engine on a batch of runs. Setting up, drawing data and measuring errors are shared out among the steps."""
    start = time.perf_counter()
    training = Training(runs, "cpu")
    setting_up = time.perf_counter() - start
    chunk = STEPS // EVALUATIONS_PER_RUN
    training.feed.fill(chunk)

    def between() -> None:
        training.feed.fill(chunk)
        training.measure()

    besides = setting_up / STEPS + median(_timed(between) for _ in range(3)) / chunk
    return Candidate(training.step, len(runs), training.feed.fill, besides)


def take_turns(candidates: dict[str, Candidate], steps: dict[str, int], wait: Callable[[], Any]) -> dict[str, float]:
    """The median over turns of the seconds per step of one run. ``wait`` is called before each turn."""
    turns: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(TURNS):
        for name, candidate in candidates.items():
            wait()
            turns[name].append(_turn(candidate, steps[name]) / steps[name])
    return {name: (median(turns[name]) + candidate.besides) / candidate.runs for name, candidate in candidates.items()}


def _steps_a_turn(candidate: Candidate, seconds: float) -> int:
    """Whole cycles, about as many as fit, from a first trial; this warms up, too."""
    _turn(candidate, CYCLE)
    cycles = round(seconds / _turn(candidate, CYCLE))
    return CYCLE * min(10, max(1, cycles))


def _turn(candidate: Candidate, steps: int) -> float:
    candidate.ready(steps)

    def advance() -> None:
        for _ in range(steps):
            candidate.step()

    return _timed(advance)


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# Telling.


def summary(cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """Whole runs of the figure, for each method and for all, and once more with the lean loop for momentum."""
    parts = {method: [cell for cell in cells if cell["method"] == method] for method in METHODS}
    found = {method: _extrapolated(own) for method, own in parts.items()}
    found["momentum, lean"] = _extrapolated(parts["momentum"], lean=True)
    found["all"] = _extrapolated(cells)
    found["all, momentum lean"] = _extrapolated(cells, lean=True)
    return found


def _extrapolated(cells: Sequence[Cell], lean: bool = False) -> dict[str, float]:
    """``over_one_loop`` compares the engine on all cores with one plain loop that has the machine to itself;
    ``core_for_core`` compares as many loops as there are cores."""

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
    """A loop uses one core. Whether it is to be compared with one or with all is left open, so both are here."""
    wanted = {"momentum": 100, "diagonal": 100, "all": 8}
    readings = {"over_one_loop": "2 cores against one loop", "core_for_core": "core for core"}
    rows = [
        Target(
            f"{'whole figure' if name == 'all' else name}, times the runs per hour, {words}",
            f"≥ {least}",
            f"{found[name][reading]:.1f}",
            found[name][reading] >= least,
        )
        for name, least in wanted.items()
        for reading, words in readings.items()
    ]
    minutes = found["all"]["engine_minutes"]
    return [*rows, Target("whole figure, minutes on 2 cores", "< 75", f"{minutes:.1f}", minutes < 75)]


def page(result: dict[str, Any]) -> str:
    """Everything on it comes from the result."""
    gym = result["machine"]["gymnasium"]
    judged = [[t.what, t.wanted, t.measured, "met" if t.met else "**not met**"] for t in targets(result["summary"])]
    parts = [
        "# The engine beside a plain loop",
        source(result),
        f"The plain loop (`plain_lab.py`, Gymnasium {gym}) makes one run at a time; the engine steps many together. "
        "Both are given one thread a process. *Alone*: one process on the machine. *Busy*: two at the same moment.",
        # A corner of the figure says nothing of the whole.
        *([] if result["quick"] else [table(["target", "wanted", "measured", ""], judged)]),
        f"## Figure 3{', a corner of it' if result['quick'] else ' as a whole'}",
        f"Steps were timed, and runs of {STEPS:,} steps are extrapolated. The engine's "
        "time includes setting up, drawing data and measuring errors along the way; the plain loop's includes drawing "
        "data alone. *Lean*: momentum by backpropagation of the mean loss, without the per-sample gradients that "
        "the other methods need.",
        table(
            ["", "runs", "plain loop, core-hours", "engine on 2 cores, minutes", "over one loop", "core for core"],
            _methods(result["summary"]),
        ),
        "## Every setting",
        "Microseconds per step of one run. *Together*: how many runs the engine steps at once.",
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
