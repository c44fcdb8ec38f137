"""The study of long memory on MsPacman, on synthetic records with known curves."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from unstale_lab.analysis import curves
from unstale_lab.engine.settings_check import check_settings
from unstale_lab.experiment import SCALES, Run
from unstale_lab.figures import find
from unstale_lab.figures.ms_pacman_memory import (
    OPTIMIZERS,
    RATES,
    TEST_SEEDS,
    TUNED,
    TUNING_SEEDS,
    best_rates,
    results,
)
from unstale_lab.records import Record

FIGURE = find("ms_pacman_memory")


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(curves, "BAND_RESAMPLES", 40)


def record(run: Run, error: float) -> Record:
    """Return a record that falls from 40 by 1 per percent of the training, down to ``error``.

    A run with a reservoir falls four times as fast per step, and takes twice the time.
    """
    at = np.arange(21) * run.steps // 20
    fast = 4 if run.slots else 1
    errors = np.maximum(40 - 100 * fast * at / run.steps, error + 0.001 * run.seed)
    if math.isinf(error):
        errors = np.where(at > run.steps / 2, math.inf, 40.0)
    diverged = run.steps // 2 if math.isinf(error) else None
    return Record(run, at, {"truth": errors, "evaluation": errors}, diverged, 100, 100, 1, 20.0 if run.slots else 10.0)


def usual_error(run: Run) -> float:
    """Best at the tuned learning rate; annealing and a reservoir each halve the error."""
    is_annealed = run.lr_schedule == "linear"
    tuned = TUNED[("reservoir_1024" if run.slots else "adam") + ("_annealed" if is_annealed else "")]
    best = 10.0 if is_annealed else 20.0
    return best * (0.5 if run.slots else 1) * (1 + abs(math.log2(run.alpha / tuned)))


def make_records(scale: str = "paper", error=usual_error) -> list[Record]:
    return [record(run, error(run)) for run in FIGURE.runs(scale)]


@pytest.mark.parametrize("scale", SCALES)
def test_runs(scale):
    runs = FIGURE.runs(scale)
    for run in runs:
        check_settings(run)
    assert {(run.problem, run.network) for run in runs} == {("ms_pacman", "dqn")}
    assert {(run.method, run.lr_schedule, run.slots) for run in runs} == {
        ("adam", "constant", 0),
        ("adam", "linear", 0),
        ("adam_reservoir", "constant", 1024),
        ("adam_reservoir", "linear", 1024),
    }


def test_number_of_runs():
    search, test = ([run for run in FIGURE.runs("paper") if run.steps == steps] for steps in (5_000, 20_000))
    assert len(search) == 4 * 4 * 2 and {run.seed for run in search} == set(TUNING_SEEDS)
    assert {run.alpha for run in search} == set(RATES)
    assert len(test) == 4 * 5 and {run.seed for run in test} == set(TEST_SEEDS)
    quick = FIGURE.runs("quick")
    assert len(quick) == 4 * 2 * 2 and {run.steps for run in quick} == {3000}
    assert {run.width for run in quick} == {32} and {run.batch for run in quick} == {32}
    assert TUNED.keys() == OPTIMIZERS.keys() and set(TUNED.values()) <= set(RATES)


def test_the_search_selects_by_final_error():
    assert best_rates(make_records()) == TUNED
    own = make_records(
        error=lambda run: 1.0 if run.slots and run.lr_schedule == "linear" and run.alpha == 1e-4 else usual_error(run)
    )
    assert best_rates(own) == TUNED | {"reservoir_1024_annealed": 1e-4}


def test_results_are_of_test_seeds():
    found = results(make_records())
    assert list(found) == list(OPTIMIZERS)
    adam = found["adam"]
    assert adam.final.tolist() == pytest.approx([20 + 0.001 * seed for seed in TEST_SEEDS])
    assert (adam.at[-1], adam.runs, adam.seconds_per_step) == (20_000, 5, 10 / 20_000)
    assert adam.steps_to(30.0) == 2000 and adam.steps_to(20.5) == 4000 and adam.steps_to(19.9) is None


def test_findings_say_when_the_error_of_tuned_adam_is_reached():
    sentences = FIGURE.findings(make_records())
    assert sentences[0] == (
        "“CorrectedAdam, 1,024 slots” reaches the final error of tuned “Adam” (20) after 1,000 steps and 1 s, “Adam” "
        "itself after 4,000 steps and 2 s: 0.25x the steps and 0.5x the time."
    )
    assert sentences[1].startswith(
        "“CorrectedAdam, 1,024 slots” reaches the final error of tuned “Adam, annealed” (10)"
    )
    assert "0.5 (95 % CI 0.5 to 0.5) of that of “Adam”, paired p < 0.001" in sentences[4] and "5 seeds." in sentences[4]
    assert sentences[-2].startswith("Each optimizer has the learning rate that the search chose: “Adam” 0.0002,")
    assert sentences[-1] == "No run diverged."


def test_findings_say_what_is_not_reached_and_what_diverges():
    def error(run: Run) -> float:
        if run.slots:
            return math.inf if run.lr_schedule == "linear" else 30.0
        return usual_error(run)

    sentences = FIGURE.findings(make_records(error=error))
    assert sentences[0] == (
        "“CorrectedAdam, 1,024 slots” does not reach the final error of tuned “Adam” (20) within 20,000 steps."
    )
    assert sentences[-1] == "Diverged: “CorrectedAdam, 1,024 slots, annealed” 5 of 5."


def test_findings_say_if_the_search_disagrees():
    own = make_records(error=lambda run: usual_error(run) / (9 if run.alpha == 8e-4 and run.slots == 0 else 1))
    choice = FIGURE.findings(own)[-2]
    assert "but the search chose “Adam” 0.0008, “Adam, annealed” 0.0008, “CorrectedAdam, 1,024 slots” 0.0002" in choice
    assert choice.endswith(
        "The best rate of “Adam”, “Adam, annealed” is at an end of the range tried and may lie outside."
    )


def test_quick_scale_compares_the_best_of_the_search():
    own = make_records("quick")
    assert {name: result.alpha for name, result in results(own).items()} == TUNED
    sentences = FIGURE.findings(own)
    assert "2 seeds decide nothing" in sentences[4] and "selection bias favors every optimizer" in sentences[-2]


def test_tables():
    errors, reached = FIGURE.tables(make_records())
    assert [row[0] for row in errors.rows] == [label for label, _ in OPTIMIZERS.values()]
    assert all(len(row) == len(table.heading) for table in (errors, reached) for row in table.rows)
    assert reached.rows[0][1:] == ["4,000", "2", "not reached", "–"]
    assert reached.rows[2][1:3] == ["1,000", "1"]
    row = dict(zip(errors.heading, errors.rows[2], strict=True))
    assert row["ms per step"] == "1" and row["ratio to “Adam” [95 % CI]"].startswith("0.5 [")


def test_panels_are_over_steps_and_over_seconds():
    steps, seconds, search = FIGURE.panels(make_records())
    assert [series.label for series in steps.series] == [label for label, _ in OPTIMIZERS.values()]
    assert [series.x[-1] for series in steps.series] == [20_000] * 4
    assert [series.x[-1] for series in seconds.series] == [10, 10, 20, 20]
    assert all(list(series.x) == RATES for series in search.series)
    assert search.series[0].y[RATES.index(TUNED["adam"])] == pytest.approx(20.1005)


def test_errors_below_the_resolution_are_not_distinguished():
    own = [replace(r, curves={"truth": r.curves["truth"] - 99}) for r in make_records()]
    assert all(result.mean_final == 0.01 for result in results(own).values())
