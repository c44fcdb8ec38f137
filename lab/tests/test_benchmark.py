"""The speed benchmark compares equals: the plain loop takes the engine's steps."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from pathlib import Path
from threading import Barrier

import pytest
import torch

from unstale_lab import problems
from unstale_lab.engine.architectures import network_of
from unstale_lab.engine.training import Training
from unstale_lab.experiment import Run
from unstale_lab.problems import mountain_car
from unstale_lab.problems.base import seeded

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
benchmark, plain_lab, pictures = map(import_module, ("engine", "plain_lab", "pictures"))

STEPS = 25


def matrices(plain):
    """The layers of a plain run, which are views of its parameters."""
    return [(layer.bias.data, layer.weight.data) for layer in plain.model if isinstance(layer, torch.nn.Linear)]


def parameters(plain):
    """In the engine's order: each layer's bias as the first column of its matrix."""
    return torch.cat([torch.cat([bias[:, None], weight], 1).flatten() for bias, weight in matrices(plain)])


@pytest.mark.parametrize("method", plain_lab.METHODS)
def test_the_plain_loop_takes_the_engines_steps(method):
    run = Run(method=method.split()[-1], width=6, batch=5, alpha=0.5, beta=0.8, steps=STEPS, precision="float64")
    training = Training([run], "cpu")
    training.feed.fill(STEPS)
    plain = plain_lab.PlainRun(method, run.width, run.batch, run.alpha, run.beta, dtype=torch.float64)
    network = network_of(run, problems.load(run.problem))
    for span, shape, (bias, weight) in zip(network.spans, network.shapes, matrices(plain), strict=True):
        matrix = training.theta[0, span].view(shape)
        bias.copy_(matrix[:, 0])
        weight.copy_(matrix[:, 1:])
    start = parameters(plain)
    states = mountain_car.start(STEPS * run.batch, seeded("mountain_car", "stream", run.seed))
    for own in states.view(STEPS, run.batch, 2).numpy():
        training.step()
        plain.learn(plain.transitions(own))
    assert (training.theta[0] - start).norm() > 0.1
    torch.testing.assert_close(parameters(plain), training.theta[0], rtol=0, atol=1e-12)


def test_an_oracle_forgets_beyond_its_horizon():
    """The steps above are more than twice as many as the oracle's batches."""
    plain = plain_lab.PlainRun("oracle", 6, 5, 0.1, 0.8)
    assert 2 * len(plain.slots) < STEPS


def test_every_run_of_the_figure_is_in_one_setting():
    chosen = benchmark.settings(quick=False)
    assert len(chosen) == 4 * 3 * 3 * 2
    assert sum(setting.runs for setting in chosen) == 2160
    for method, width, batch, beta, _, together in chosen:
        assert any((run.method, run.width, run.batch, run.beta) == (method, width, batch, beta) for run in together)


def test_a_setting_is_measured_alone_and_busy():
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


def test_ratios_are_of_sums_over_all_runs():
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


def test_targets_missed_are_on_the_page():
    about = dict(cpu="a CPU", cores=2, threads=1, python="3", torch="2", unstale="0", load=None, date="today")
    found = benchmark.summary(CELLS)
    result = dict(machine={**about, "gymnasium": "1"}, command="run", quick=False, seconds=1.0, summary=found)
    met = {target.what: target.met for target in benchmark.targets(found)}
    assert met == {
        "momentum, times the runs per hour, 2 cores against one loop": True,
        "momentum, times the runs per hour, core for core": True,
        "diagonal, times the runs per hour, 2 cores against one loop": False,
        "diagonal, times the runs per hour, core for core": False,
        "whole figure, times the runs per hour, 2 cores against one loop": False,
        "whole figure, times the runs per hour, core for core": False,
        "whole figure, minutes on 2 cores": False,
    }
    assert benchmark.page({**result, "cells": CELLS}).count("**not met**") == 5


def test_steps_that_look_at_pictures_are_timed_beside_adams(monkeypatch):
    monkeypatch.setitem(problems.PROBLEMS, "noise", pictures.Noise)
    run = Run(problem="noise", network="small_atari", width=2, batch=2)
    adam, window = pictures.measure(run, ["adam", "adam_window"], 2, "cpu", seconds=0.01)
    assert adam.ratio == 1 and window.ratio > 0 and window.parameters == adam.parameters > 0
