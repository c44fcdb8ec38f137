"""Batches of runs are bounded by the work of a step and by memory."""

from __future__ import annotations

import pytest

from unstale_lab import problems
from unstale_lab.engine import plan as planning
from unstale_lab.engine.architectures import build_network
from unstale_lab.engine.plan import cost, memory_bytes, plan
from unstale_lab.engine.training import Training, count_elements
from unstale_lab.experiment import Run, grid
from unstale_lab.methods import METHODS, has_growing_memory

SETTINGS = {"problem": "mountain_car_scaled", "width": 16, "batch": 16, "steps": 1000}


@pytest.mark.parametrize("method", [name for name in METHODS if has_growing_memory(Run(method=name))])
def test_estimated_memory_is_what_a_run_stores(method):
    run = Run(method=method, slots=64 if method == "adam_reservoir" else 0, **{**SETTINGS, "steps": 12})
    training = Training([run, run], "cpu")
    training.run()
    stored = 4 * count_elements(training.memory) / 2
    assert memory_bytes(run) == pytest.approx(stored, rel=0.1)


def test_corrections_have_a_cost():
    work = {slots: cost(Run(method="adam_reservoir", slots=slots, **SETTINGS)) for slots in (256, 1024, 4096)}
    assert cost(Run(method="adam", **SETTINGS)) < work[256] < work[1024] < work[4096]
    # 4,096 slots of 609 parameters cost more than a dense matrix that few batches enter.
    dense, default = (cost(Run(method=method, **SETTINGS)) for method in ("adam_dense", "adam_default"))
    assert cost(Run(method="adam", **SETTINGS)) < default < min(dense, work[4096])


def test_batches_are_split_by_work_and_by_memory(monkeypatch):
    runs = grid(method="adam_reservoir", slots=1024, alpha=[0.1, 0.2], seed=list(range(6)), **SETTINGS)
    monkeypatch.setattr(planning, "MAX_MACS_PER_STEP", {"cpu": 1e12})
    assert [len(batch) for batch in plan(runs, "cpu")] == [12]
    for fitting, sizes in ((5.5, [4, 4, 4]), (1.5, [1] * 12), (0.5, [1] * 12)):
        monkeypatch.setattr(planning, "MAX_BYTES", {"cpu": fitting * memory_bytes(runs[0])})
        assert [len(batch) for batch in plan(runs, "cpu")] == sizes
    monkeypatch.setattr(planning, "MAX_BYTES", {"cpu": 1e12})
    monkeypatch.setattr(planning, "MAX_MACS_PER_STEP", {"cpu": 3.5 * cost(runs[0]) / 1000})
    assert [len(batch) for batch in plan(runs, "cpu")] == [3] * 4


def test_runs_whose_phases_are_timed_are_trained_alone():
    runs = grid(method="adam_dense", measure=("phases",), seed=list(range(3)), **SETTINGS)
    assert [len(batch) for batch in plan(runs, "cpu")] == [1, 1, 1]


def test_per_sample_gradients_of_a_network():
    network = build_network(Run(), problems.load("mountain_car_scaled"))
    # Inputs (with a one for the bias) and output gradients of 4 layers, for a state and its successor.
    assert network.numbers_per_sample == 2 * ((3 + 16) + (17 + 16) + (17 + 16) + (17 + 1))
