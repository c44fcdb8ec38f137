"""The benchmarks: the plain loop makes the same steps as the engine; pages and targets follow from the JSON."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from threading import Barrier

import pytest
import torch

from unstale.corrections.reservoir import INTERVALS
from unstale.corrections.select import (
    DENSE_INTERVALS,
    MAX_MEMORY,
    MAX_SLOTS,
    MIN_SLOTS,
    OVERHEAD,
    Sizes,
    slots_within,
)
from unstale_lab import problems
from unstale_lab.engine.architectures import build_network
from unstale_lab.engine.training import Training
from unstale_lab.experiment import Run
from unstale_lab.problems import mountain_car
from unstale_lab.problems.problem import seeded

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(FOLDER))
benchmark, plain_lab, images = map(import_module, ("engine", "plain_lab", "images"))
suites, report, budget, timing = map(import_module, ("suites", "report", "budget", "timing"))
cell_module, models, steps, data, warmup = map(import_module, ("cell", "models", "steps", "data", "warmup"))

STEPS = 25
LONGEST = 1 - 1 / MAX_MEMORY  # β of the longest memory


def layer_parameters(plain):
    """Return bias and weight of each layer, which are views of the run's parameters."""
    return [(layer.bias.data, layer.weight.data) for layer in plain.model if isinstance(layer, torch.nn.Linear)]


def flat_parameters(plain):
    """Return the parameters in the engine's order: the bias is the first column of a layer's matrix."""
    return torch.cat([torch.cat([bias[:, None], weight], 1).flatten() for bias, weight in layer_parameters(plain)])


@pytest.mark.parametrize("method", plain_lab.METHODS)
def test_plain_loop_matches_engine(method):
    run = Run(method=method.split()[-1], width=6, batch=5, alpha=0.5, beta=0.8, steps=STEPS, precision="float64")
    if method == "oracle":  # cut off without a change of weights
        run = replace(run, convention="code")
    training = Training([run], "cpu")
    training.feed.fill(STEPS)
    plain = plain_lab.PlainRun(method, run.width, run.batch, run.alpha, run.beta, dtype=torch.float64)
    network = build_network(run, problems.load(run.problem))
    for span, shape, (bias, weight) in zip(network.spans, network.shapes, layer_parameters(plain), strict=True):
        matrix = training.theta[0, span].view(shape)
        bias.copy_(matrix[:, 0])
        weight.copy_(matrix[:, 1:])
    start = flat_parameters(plain)
    states = mountain_car.start(STEPS * run.batch, seeded("mountain_car", "stream", run.seed))
    for own in states.view(STEPS, run.batch, 2).numpy():
        training.step()
        plain.learn(plain.transitions(own))
    assert (training.theta[0] - start).norm() > 0.1
    torch.testing.assert_close(flat_parameters(plain), training.theta[0], rtol=0, atol=1e-12)


def test_benchmark_covers_the_oracles_horizon():
    """The test above makes more than twice as many steps as the oracle's horizon."""
    plain = plain_lab.PlainRun("oracle", 6, 5, 0.1, 0.8)
    assert 2 * len(plain.slots) < STEPS


def test_settings_cover_the_figure():
    chosen = benchmark.settings(quick=False)
    assert len(chosen) == 4 * 3 * 3 * 2
    assert sum(setting.runs for setting in chosen) == 2160
    for method, width, batch, beta, _, together in chosen:
        assert any((run.method, run.width, run.batch, run.beta) == (method, width, batch, beta) for run in together)


def test_measure_alone_and_busy():
    setting = next(s for s in benchmark.settings(quick=True) if s.method == "momentum")
    small = setting._replace(together=setting.together[:2])
    [times] = benchmark.measure([small], seconds=0.01, together=Barrier(1), is_first=True)
    for condition in ("alone", "busy"):
        assert set(times[condition]) == {"plain", "lean", "engine"}
        assert all(0 < seconds < math.inf for seconds in times[condition].values())


def cell(method, plain, engine, runs=10, **further):
    times = {"plain": plain, "engine": engine, **further}
    slower = {name: 2 * seconds for name, seconds in times.items()}
    where = dict(width=8, batch=4, beta=0.9, runs=runs, together=5)
    return dict(method=method, **where, alone=times, busy=slower)


CELLS = [
    cell("momentum", plain=1.0, engine=0.005, lean=0.25),
    cell("momentum", plain=3.0, engine=0.005, lean=0.25),
    cell("diagonal", plain=2.0, engine=0.05),
    cell("full", plain=5.0, engine=1.0, runs=20),
    cell("oracle", plain=4.0, engine=0.8),
]


def test_speedups_use_sums_over_all_runs():
    found = benchmark.summary(CELLS)
    assert found["momentum"]["core_for_core"] == pytest.approx(400)
    assert found["momentum"]["over_one_loop"] == pytest.approx(400)  # half as quick when busy, but on two cores
    assert found["momentum, lean"]["core_for_core"] == pytest.approx(50)
    assert found["diagonal"]["core_for_core"] == pytest.approx(40)
    assert found["all"]["core_for_core"] == pytest.approx((4 + 2 + 2 * 5 + 4) / (0.01 + 0.05 + 2 * 1 + 0.8))
    assert found["all"]["plain_hours"] == pytest.approx(20 * 10 * 5000 / 3600)
    assert found["all"]["engine_minutes"] == pytest.approx(2 * 2.86 * 10 * 5000 / 2 / 60)
    assert found["all"]["plain_hours"] - found["all, momentum lean"]["plain_hours"] == pytest.approx(
        3.5 * 10 * 5000 / 3600
    )


def test_page_shows_missed_targets():
    about = dict(cpu="a CPU", cores=2, threads=1, python="3", torch="2", unstale="0", load=None, date="today")
    found = benchmark.summary(CELLS)
    result = dict(machine={**about, "gymnasium": "1"}, command="run", quick=False, seconds=1.0, summary=found)
    met = {target.what: target.met for target in benchmark.targets(found)}
    assert met == {
        "momentum, speed-up in runs per hour, 2 cores vs one loop": True,
        "momentum, speed-up in runs per hour, per core": True,
        "diagonal, speed-up in runs per hour, 2 cores vs one loop": False,
        "diagonal, speed-up in runs per hour, per core": False,
        "whole figure, speed-up in runs per hour, 2 cores vs one loop": False,
        "whole figure, speed-up in runs per hour, per core": False,
        "whole figure, minutes on 2 cores": False,
    }
    assert benchmark.page({**result, "cells": CELLS}).count("**not met**") == 5


def test_image_steps_are_timed_relative_to_adam(monkeypatch):
    monkeypatch.setitem(problems.PROBLEMS, "noise", images.Noise)
    run = Run(problem="noise", network="small_atari", width=2, batch=2)
    adam, window = images.measure(run, ["adam", "adam_window"], 2, "cpu", seconds=0.01)
    assert adam.ratio == 1 and window.ratio > 0 and window.parameters == adam.parameters > 0


# ------------------------------------------------------------------------------------------------ the suites of run.py

ABOUT = dict(cpu="a CPU", cores=2, threads=1, python="3", torch="2", unstale="0", load=None, date="today")
SOURCE = dict(machine=ABOUT, command="run", quick=False, seconds=1.0)


@pytest.fixture
def short_suites(monkeypatch):
    """Suites that time only as long as they must."""
    monkeypatch.setattr(
        suites, "measure", lambda *args, **options: cell_module.measure(*args, **{**options, "seconds": 0.1})
    )
    return suites


def rows_by_name(cell):
    return {row["name"]: row for row in cell["rows"]}


def test_adam_suite_reports_what_auto_chose(short_suites, monkeypatch):
    networks = (suites.Network((4, 3, 2), (8,)), suites.Network((4, 3, 1), (1,)))
    monkeypatch.setattr(suites, "ADAM_NETWORKS", networks)
    result = short_suites.run_adam(torch.device("cpu"), quick=True)
    rows = rows_by_name(result["cells"][0])
    assert list(rows) == ["Adam", "default", "none", "diagonal", "256 slots"]
    assert rows["default"]["plan"]["correction"] == "dense" and rows["default"]["plan"]["beta"] == LONGEST
    assert rows["none"]["plan"] is None
    assert rows["256 slots"]["filled"] == 1
    assert rows["256 slots"]["plan"]["slots"] <= 256
    assert all(row["steps_per_turn"] == 100 for row in rows.values())
    page = report.page({"adam": {**SOURCE, **result}}, "cpu")
    assert f"| 4-3-2, n = 23, batch 8 | dense, β ≤ {LONGEST:.4g} |" in page
    assert "†" not in page


def test_adam_suite_on_images(short_suites, monkeypatch):
    """The cell of CUDA, with a small network on a CPU."""
    network = torch.nn.Sequential(
        torch.nn.Conv2d(4, 1, 2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4, models.ACTIONS)
    )
    monkeypatch.setattr(suites, "dqn", lambda: network)
    monkeypatch.setattr(suites, "FRAMES", (4, 3, 3))
    monkeypatch.setattr(suites, "ADAM_TURN", 20)
    cells = short_suites._adam_on_dqn(torch.device("cpu"), quick=True)
    assert [cell["where"]["precision"] for cell in cells] == ["float32", "TF32"]
    assert list(rows_by_name(cells[0])) == ["Adam", "default", "256 slots", "window, H = 20"]
    assert rows_by_name(cells[0])["window, H = 20"]["horizon"] == 20


def test_turns_of_adam_hold_whole_cycles():
    assert all(suites.ADAM_TURN % every == 0 for every in (*INTERVALS, *DENSE_INTERVALS))
    made = 0

    def step():
        nonlocal made
        made += 1

    found = timing.time_interleaved({"step": step}, torch.device("cpu"), seconds=0.0, steps_per_turn=100)
    assert found["step"].steps_per_turn == 100
    assert made == 20 + found["step"].turns * (1 + 100)


def test_slots_are_filled_before_timing():
    torch.manual_seed(0)
    candidate = steps.Candidate("slots", "reservoir", kind="Adam", slots=256)
    batches = data.pool(8, [4], torch.device("cpu"))
    training = steps.build(candidate, models.fully_connected(4, 3, 1), batches, None)
    first, share = warmup.fill_slots(training, torch.device("cpu"), seconds=0)
    plan = cell_module.chosen_plan(training)
    samples = training.group_state()["plan"]["reservoir"][0]
    assert (first, share) == (100, pytest.approx(100 / plan["every"] * samples / plan["slots"]))
    further, share = warmup.fill_slots(training, torch.device("cpu"))
    needed = plan["every"] * plan["slots"] / samples
    assert share == 1 and needed <= first + further < needed + 100


def test_greedy_target_has_largest_next_value():
    [batch] = data.pool(5, [4], torch.device("cpu"), actions=3, batches=1, greedy=True)
    model = models.fully_connected(4, 6, 3)
    expected = batch.reward + data.GAMMA * batch.not_done * model(batch.next_state).amax(1)
    assert batch.next_action is None
    torch.testing.assert_close(data.target(model, batch), expected)


def adam_row(name, ratio, **further):
    return dict(name=name, ratio=ratio, ms=ratio, quartiles_ms=[ratio, ratio], warm_steps=9, horizon=0, **further)


def test_targets_of_adam_on_cpu_name_the_worst_cell():
    plan = dict(correction="reservoir", slots=1024, every=10, beta=0.996, reason="")
    cells = [
        dict(
            where=dict(network="4-3-1", parameters=19, batch=batch),
            rows=[
                adam_row("Adam", 1.0, state_mib=1.0, steps_per_turn=100),
                adam_row("default", ratio, state_mib=2.0, plan=plan, filled=filled),
            ],
        )
        for batch, ratio, filled in ((1, 1.5, 1.0), (16, 2.6, 0.25))
    ]
    page = report.page({"adam": {**SOURCE, "cells": cells}}, "cpu")
    assert "| ≤ 2.5 | 1.50 to 2.60 (4-3-1, batch 16) | **not met** |" in page
    assert "| reservoir, 1,024 slots, β ≤ 0.996 | 1.000 | 2.60† | 2 |" in page
    assert "shares that had one: 25%" in page


def test_targets_of_adam_on_cuda():
    cells = [
        dict(where=dict(precision=precision), rows=[adam_row("1,024 slots", ratio, peak_mib=mib)])
        for precision, ratio, mib in (("float32", 2.4, 1024), ("TF32", 2.7, 5120))
    ]
    found = report.targets("adam", dict(cells=cells), "cuda")
    assert [(target.measured, target.met) for target in found] == [
        ("2.40", True),
        ("1.00 GiB", True),
        ("2.70", False),
        ("5.00 GiB", False),
    ]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_saved_pages_follow_from_their_json(device):
    saved = FOLDER / "results" / f"{device}.json"
    assert report.page(json.loads(saved.read_text()), device) == saved.with_suffix(".md").read_text()


def budget_measurements(constants):
    """Return measurements that follow the prediction exactly."""
    sizes = [
        (n, numbers, batch, slots)
        for n, numbers in ((600, 160), (9000, 600), (30_000, 5000))
        for batch in (1, 64)
        for slots in (64, 512, 4096)
    ]
    found = [budget.Measurement(*size, every=1, ratio=0.0) for size in sizes]
    return [each._replace(ratio=budget.predicted(each, constants)) for each in found]


@pytest.mark.parametrize("constants", [(1e7, 200.0, 1.5), (4e8, 20.0, 2.5)])
@pytest.mark.parametrize("device", OVERHEAD)
def test_budget_fits_the_constants_of_the_prediction(device, constants):
    start = budget.current_constants(device)
    assert budget.fit(budget_measurements(start), start) == start
    found = budget.fit(budget_measurements(budget.Constants(*constants)), start)
    assert found == pytest.approx(constants, rel=0.03)


@pytest.mark.parametrize("allowed", [2.5, 4.0])
def test_budget_predicts_what_slots_are_chosen_by(allowed):
    """The chosen number of slots is within the budget, and 128 more are not."""
    for n, numbers, batch in ((2000, 300, 128), (9000, 600, 64), (30_000, 1000, 256)):
        sizes = Sizes(parameters=n, slot_numbers=numbers, batch=batch, device="cpu", itemsize=4)
        slots = slots_within(allowed, sizes)
        assert MIN_SLOTS < slots < MAX_SLOTS
        found = budget.Measurement(n, numbers, batch, slots, every=1, ratio=0.0)
        within, beyond = (
            budget.predicted(each, budget.current_constants("cpu"))
            for each in (found, found._replace(slots=slots + 128))
        )
        assert within <= allowed < beyond
