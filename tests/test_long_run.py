"""The checks of benchmarks/long_run.py over many wrap-arounds, in small, and that they notice what is wrong."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from unstale.corrections import reservoir, window

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def long_run(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("long_run", FOLDER / "long_run.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "long_run", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(module.OPTIONS, "window", dict(horizon=10))
    torch.set_default_dtype(torch.float32)
    return module


@pytest.mark.parametrize("correction", ["none", "diagonal", "blocks", "dense", "window", "reservoir", "oracle"])
def test_every_correction(long_run, correction):
    found = long_run.run(correction, 150)
    assert found["is_finite"]
    assert found["is_exact"] is (None if correction == "oracle" else True)
    if correction in ("window", "reservoir"):
        assert found["wraps"] >= 10
        assert max(found["errors"].values()) < 1e-4  # 1e-6 is usual, 1 is wrong


def test_window_and_dense_stay_together(long_run, monkeypatch):
    monkeypatch.setitem(long_run.OPTIONS, "window", dict(horizon=150))
    one, other = (long_run.run(name, 150) for name in ("window", "dense"))
    assert long_run.distance(one, other) < 1e-5


def test_a_slot_that_is_overwritten_too_early_is_noticed(long_run, monkeypatch):
    slots = window.Window._slots
    monkeypatch.setattr(
        window.Window, "_slots", lambda self, memory, number: slots(self, memory, number + number // 10)
    )
    assert max(long_run.run("window", 40)["errors"].values()) > 1e-2


def test_a_survivor_that_counts_too_little_is_noticed(long_run, monkeypatch):
    make_room = reservoir.Reservoir._make_room

    def without_scaling(self, memory):
        before = memory["weight"].clone()
        freed = make_room(self, memory)
        memory["weight"].copy_(before)
        return freed

    monkeypatch.setattr(reservoir.Reservoir, "_make_room", without_scaling)
    assert long_run.run("reservoir", 150)["errors"]["weight"] > 1e-2
