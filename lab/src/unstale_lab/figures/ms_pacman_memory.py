"""A study of our own: does a long memory with correction learn faster than tuned Adam with DQN's network?

Policy evaluation on MsPacman as in figure 9. It judges no claim of the paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..analysis.curves import AXIS_LABELS, MSE, mean, series_with_band
from ..analysis.formatting import MISSING, format_estimate, format_interval, format_number, format_p, format_p_value
from ..analysis.panels import Panel, Series, Table
from ..analysis.run_table import select, tabulate, without
from ..analysis.statistics import Array, clip_errors
from ..claims.judging import MIN_SEEDS
from ..experiment import Run, Scale
from ..records import Record
from .figure import Figure
from .shared.grids import seeds
from .shared.pacman import MS_PACMAN_GRID, STEPS, TRUTH, clip_to_resolution
from .shared.tuned import FINAL_SHARE, Ratio, mean_interval, ratio

# Labels and settings of the optimizers. β of a reservoir grows with training; that of the others is 0.9.
ANNEALED = {"lr_schedule": "linear"}
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("Adam", {"method": "adam"}),
    "adam_annealed": ("Adam, annealed", {"method": "adam", **ANNEALED}),
    "reservoir_1024": ("CorrectedAdam, 1,024 slots", {"method": "adam_reservoir", "slots": 1024}),
    "reservoir_1024_annealed": (
        "CorrectedAdam, 1,024 slots, annealed",
        {"method": "adam_reservoir", "slots": 1024, **ANNEALED},
    ),
}
BASELINES = ("adam", "adam_annealed")  # tuned Adam, whose final errors the others are to reach
HEADLINE = "reservoir_1024"

# The search: these learning rates on separate seeds.
RATES = [1e-4, 2e-4, 4e-4, 8e-4]
TUNING_SEEDS = [100, 101]
TEST_SEEDS = seeds(5)
# What the search chose. A finding says whether it still does.
TUNED = {"adam": 2e-4, "adam_annealed": 4e-4, "reservoir_1024": 2e-4, "reservoir_1024_annealed": 4e-4}
SEARCH_GRID = MS_PACMAN_GRID.vary(
    paper={"alpha": RATES, "seed": TUNING_SEEDS, "steps": 5_000},
    quick={"alpha": RATES[1:3], "steps": 3_000},
    smoke={"steps": 10},
)
TEST_GRID = MS_PACMAN_GRID.vary(
    paper={"seed": TEST_SEEDS, "steps": 20_000}, smoke={"seed": TEST_SEEDS[:2], "steps": 10}
)


def runs(scale: Scale) -> list[Run]:
    """Return the runs of the search and, except at the scale "quick", runs at the tuned learning rates."""
    found = []
    for name, (_, settings) in OPTIMIZERS.items():
        found += SEARCH_GRID.vary(settings)(scale)
        if scale != "quick":
            found += TEST_GRID.vary({**settings, "alpha": TUNED[name]})(scale)
    return found


@dataclass(frozen=True)
class Result:
    """The runs of one optimizer at one learning rate."""

    label: str
    alpha: float
    at: Array  # steps of the measurements
    curves: Array  # [points, seeds]: error against true values
    final: Array  # [seeds]: mean over the last tenth
    seconds: float  # of one run
    bytes: float  # that the optimizer stores besides parameters, in float32
    runs: int
    diverged: int

    @property
    def mean_final(self) -> float:
        """Mean final error over seeds."""
        return float(self.final.mean())

    @property
    def seconds_per_step(self) -> float:
        return self.seconds / float(self.at[-1])

    def steps_to(self, error: float) -> float | None:
        """Return the first measured step at which the mean error over seeds is at most ``error``, if there is one."""
        reached = np.flatnonzero(self.curves.mean(axis=1) <= error)
        return float(self.at[reached[0]]) if len(reached) else None


def search_records(records: Sequence[Record]) -> list[Record]:
    """Return the runs of the search."""
    return select(clip_to_resolution(records), seed=TUNING_SEEDS)


def best_rates(records: Sequence[Record]) -> dict[str, float]:
    """Return the learning rate with the lowest mean final error in the search, per optimizer."""
    found = {}
    for name, group in _by_optimizer(search_records(records)).items():
        table = tabulate(group)
        ((_, errors),) = table.mean_over(TRUTH, 1 - FINAL_SHARE).items()
        found[name] = table.values("alpha")[int(np.argmin(errors.mean(axis=1)))]
    return found


def results(records: Sequence[Record]) -> dict[str, Result]:
    """Return the runs with test seeds; if there are none, the best of the search."""
    test = without(clip_to_resolution(records), seed=TUNING_SEEDS)
    if test:
        return {name: _result(name, group) for name, group in _by_optimizer(test).items()}
    best = best_rates(records)
    groups = _by_optimizer(search_records(records))
    return {name: _result(name, select(group, alpha=best[name])) for name, group in groups.items()}


def _by_optimizer(records: Sequence[Record]) -> dict[str, list[Record]]:
    defaults = {"lr_schedule": "constant", "slots": 0}
    groups = {name: select(records, **{**defaults, **settings}) for name, (_, settings) in OPTIMIZERS.items()}
    return {name: group for name, group in groups.items() if group}


def _result(name: str, records: Sequence[Record]) -> Result:
    label, _ = OPTIMIZERS[name]
    table = tabulate(records)
    ((line, curves),) = table.curves(TRUTH).items()
    return Result(
        label=label,
        alpha=records[0].run.alpha,
        at=table.at,
        curves=curves[:, 0],
        final=table.mean_over(TRUTH, 1 - FINAL_SHARE)[line][0],
        seconds=float(np.mean([record.seconds for record in records])),
        bytes=4.0 * records[0].numbers_kept,
        runs=len(records),
        diverged=sum(record.diverged_at is not None for record in records),
    )


def _worst_error(found: Mapping[str, Result]) -> float:
    """Return what a diverged run counts as: the largest finite error before the first step or at the end."""
    arrays = [array for result in found.values() for array in (result.curves[0], result.final)]
    return max(float(array[np.isfinite(array)].max(initial=0.0)) for array in arrays)


# Panels.


def panels(records: Sequence[Record]) -> list[Panel]:
    found = results(records)
    worst = _worst_error(found)
    search = _by_optimizer(search_records(records))
    return [
        Panel("over steps", STEPS, MSE, [_curve(result, worst) for result in found.values()], log_y=True),
        Panel(
            "over time",
            "seconds of a run",
            MSE,
            [_curve(result, worst, result.seconds_per_step) for result in found.values()],
            log_y=True,
        ),
        Panel(
            "learning-rate search, final error",
            AXIS_LABELS["alpha"],
            MSE,
            [_search_curve(OPTIMIZERS[name][0], group, worst) for name, group in search.items()],
            log_x=True,
            log_y=True,
        ),
    ]


def _curve(result: Result, worst: float, x_per_step: float = 1.0) -> Series:
    curves = clip_errors(result.curves, worst)[:, None, :]
    return series_with_band(
        result.label, result.at * x_per_step, curves, mean, runs=result.runs, diverged=result.diverged
    )


def _search_curve(label: str, records: Sequence[Record], worst: float) -> Series:
    table = tabulate(records)
    ((_, errors),) = table.mean_over(TRUTH, 1 - FINAL_SHARE).items()
    diverged = int(np.isinf(errors).sum())
    errors = clip_errors(errors, worst)[:, None, :]
    return series_with_band(label, table.values("alpha"), errors, mean, runs=errors.size, diverged=diverged)


# Tables.


def tables(records: Sequence[Record]) -> list[Table]:
    found = results(records)
    baselines = [found[name] for name in BASELINES]
    compared = [text for b in baselines for text in (f"ratio to “{b.label}” [95 % CI]", f"p, “{b.label}”")]
    reached = [f"{unit} to the final error of “{b.label}”" for b in baselines for unit in ("steps", "seconds")]
    return [
        Table(
            "Error against true values over the last tenth of training, and cost",
            [
                "optimizer",
                "α",
                "final MSE [95 % CI]",
                "median",
                *compared,
                "ms per step",
                "stored, GB",
                "diverged",
            ],
            [_error_row(result, found) for result in found.values()],
        ),
        Table(
            "Steps and seconds until the mean error over seeds reaches that of tuned Adam",
            ["optimizer", *reached],
            [[result.label, *_reach_cells(result, baselines)] for result in found.values()],
        ),
    ]


def _error_row(result: Result, found: Mapping[str, Result]) -> list[str]:
    compared: list[str] = []
    for name in BASELINES:
        own = found[name]
        c = _ratio(result, own, found)
        same = result is own
        compared += [MISSING if same else f"{format_number(c.value)} {format_interval(c.interval)}"]
        compared += [MISSING if same else format_p(c.p)]
    return [
        result.label,
        format_number(result.alpha),
        f"{format_number(result.mean_final)} {format_interval(mean_interval(result.final))}",
        format_number(float(np.median(result.final))),
        *compared,
        format_number(1000 * result.seconds_per_step),
        format_number(result.bytes / 1e9),
        f"{result.diverged} of {result.runs}",
    ]


def _ratio(a: Result, b: Result, found: Mapping[str, Result]) -> Ratio:
    return ratio(a.final, b.final, _worst_error(found))


def _reach_cells(result: Result, baselines: Sequence[Result]) -> list[str]:
    cells = []
    for baseline in baselines:
        steps = result.steps_to(baseline.mean_final)
        seconds = None if steps is None else steps * result.seconds_per_step
        cells += ["not reached" if steps is None else f"{steps:,.0f}", format_number(seconds)]
    return cells


# Sentences.


def findings(records: Sequence[Record]) -> list[str]:
    """Return the answer, then a sentence per baseline and optimizer, then notes."""
    found = results(records)
    others = [name for name in found if name not in (HEADLINE, *BASELINES)]
    sentences = [
        *(_reach_sentence(found[name], found[base]) for name in (HEADLINE, *others) for base in BASELINES),
        *(_error_sentence(found[name], found) for name in (HEADLINE, *others)),
        _describe_choice(records),
        _describe_divergences(found),
    ]
    return [sentence for sentence in sentences if sentence]


def _reach_sentence(ours: Result, baseline: Result) -> str:
    target = baseline.mean_final
    steps, own = ours.steps_to(target), baseline.steps_to(target)
    goal = f"the final error of tuned “{baseline.label}” ({format_number(target)})"
    if steps is None or own is None:
        return f"“{ours.label}” does not reach {goal} within {ours.at[-1]:,.0f} steps."
    seconds, own_seconds = steps * ours.seconds_per_step, own * baseline.seconds_per_step
    relative = ""
    if own:
        relative = f": {format_number(steps / own)}x the steps and {format_number(seconds / own_seconds)}x the time"
    return (
        f"“{ours.label}” reaches {goal} after {steps:,.0f} steps and {format_number(seconds)} s, “{baseline.label}” "
        f"itself after {own:,.0f} steps and {format_number(own_seconds)} s{relative}."
    )


def _error_sentence(ours: Result, found: Mapping[str, Result]) -> str:
    ratios = []
    for name in BASELINES:
        compared = _ratio(ours, found[name], found)
        text = format_estimate(compared.value, compared.interval)
        ratios.append(f"{text} of that of “{found[name].label}”, paired {format_p_value(compared.p)}")
    few = f" ({len(ours.final)} seeds decide nothing; at least {MIN_SEEDS} do)" if len(ours.final) < MIN_SEEDS else ""
    return (
        f"The final error of “{ours.label}” is {format_number(ours.mean_final)} after {ours.at[-1]:,.0f} steps, "
        f"{'; '.join(ratios)}; {len(ours.final)} seeds{few}."
    )


def _describe_choice(records: Sequence[Record]) -> str:
    """Say whether ``TUNED`` is what the search chose, and whether the best rate may lie outside the range tried."""
    chosen = best_rates(records)
    tried = {record.run.alpha for record in search_records(records)}
    sentences = [
        f"Each optimizer has the learning rate that the search chose: {_format_rates(chosen)}."
        if chosen.items() <= TUNED.items() or not without(records, seed=TUNING_SEEDS)
        else f"The optimizers are compared at the learning rates {_format_rates(TUNED)}, but the search chose "
        f"{_format_rates(chosen)}."
    ]
    at_end = [f"“{OPTIMIZERS[name][0]}”" for name, rate in chosen.items() if rate in (min(tried), max(tried))]
    if at_end:
        sentences.append(f"The best rate of {', '.join(at_end)} is at an end of the range tried and may lie outside.")
    if not without(records, seed=TUNING_SEEDS):
        sentences.append("The compared runs are those of the search (2 seeds): selection bias favors every optimizer.")
    return " ".join(sentences)


def _format_rates(rates: Mapping[str, float]) -> str:
    return ", ".join(f"“{OPTIMIZERS[name][0]}” {format_number(rate)}" for name, rate in rates.items())


def _describe_divergences(found: Mapping[str, Result]) -> str:
    counts = [f"“{result.label}” {result.diverged} of {result.runs}" for result in found.values() if result.diverged]
    return f"Diverged: {', '.join(counts)}." if counts else "No run diverged."


FIGURE = Figure(
    name="ms_pacman_memory",
    title="MsPacman: long memory with correction against tuned Adam",
    claims=(),
    settings="Policy evaluation on MsPacman, DQN's network (4,801,705 parameters), batches of 32. Each optimizer has "
    "the best of four α from 0.0001 to 0.0008, selected on 2 seeds by the error against true values after 5,000 "
    "steps. Then 5 other seeds; 20,000 steps. Seconds are per run, of runs that are trained together.",
    runs=runs,
    panels=panels,
    findings=findings,
    tables=tables,
    cut="Only the search, with 2 of 4 learning rates and 3,000 steps.",
)
