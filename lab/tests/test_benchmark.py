"""The speed benchmark: the plain loop makes the same steps as the engine."""

from __future__ import annotations

import math
import sys
from importlib import import_module
from pathlib import Path
from threading import Barrier

import pytest
import torch

from unstale_lab import problems
from unstale_lab.engine.architectures import build_network
from unstale_lab.engine.training import Training
from unstale_lab.experiment import Run
from unstale_lab.problems import mountain_car
from unstale_lab.problems.problem import seeded

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
benchmark, plain_lab, images = map(import_module, ("engine", "plain_lab", "images"))

STEPS = 25


def layer_parameters(plain):
    """Return bias and weight of each layer, which are views of the run's parameters."""
    return [(layer.bias.data, layer.weight.data) for layer in plain.model if isinstance(layer, torch.nn.Linear)]


def flat_parameters(plain):
    """Return the parameters in the engine's order: the bias is the first column of a layer's matrix."""
    return torch.cat([torch.cat([bias[:, None], weight], 1).flatten() for bias, weight in layer_parameters(plain)])


@pytest.mark.parametrize("method", plain_lab.METHODS)
def test_plain_loop_matches_engine(method):
    run = Run(method=method.split()[-1], width=6, batch=5, alpha=0.5, beta=0.8, steps=STEPS, precision="float64")
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
