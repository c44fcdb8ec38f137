"""Runs that play real games, through the plan, the sweep and the store like any others; killed and gone on with."""

from __future__ import annotations

import builtins
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from unstale_lab import checkpoint
from unstale_lab.checkpoint import Checkpoint
from unstale_lab.engine import control
from unstale_lab.engine.control import Control, is_control
from unstale_lab.engine.plan import cost, plan
from unstale_lab.engine.sweep import missing, run_batches
from unstale_lab.experiment import Run, grid
from unstale_lab.figures.claim23 import scored
from unstale_lab.mistakes import UserError
from unstale_lab.store import Store

SARSA = Run(
    problem="ms_pacman_sarsa", method="adam_window", network="small_atari", width=4, alpha=1e-3, beta=0.6, n_step=5,
    batch=4, steps=200,
)  # fmt: skip
PPO = Run(
    problem="ms_pacman_ppo", method="adam_diagonal", network="actor", alpha=2.5e-4, beta=0.6, n_step=5, batch=16,
    steps=96,
)  # fmt: skip
CURVES = {"score", "drift", "agreement of batches", "agreement if uncorrected", "bounded", "staleness"}


PLAY = control.evaluate


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(control, "PPO_GAMES", 4)
    monkeypatch.setattr(control, "PPO_ROLLOUT", 8)
    monkeypatch.setattr(control, "evaluate", lambda policy, games, seed: [123.0] * games)
    monkeypatch.setattr(checkpoint, "EVERY", 0.0)
    yield
    torch.set_flush_denormal(False)


def sweep(store, run, progress=lambda *told: None):
    run_batches(missing([run], store, "cpu"), store, "cpu", 1, progress)
    return store.load([run])[run]


def told(run):
    """A progress, and the steps it was told of."""
    steps = []
    return (lambda finished, made, cost: steps.append(made)), steps


@pytest.mark.parametrize("method", ["adam", "adam_window"])
@pytest.mark.parametrize("run", [SARSA, PPO], ids=["sarsa", "ppo"])
def test_a_run_is_recorded_like_any_other(tmp_path, run, method):
    run = replace(run, method=method)
    store, (progress, steps) = Store(tmp_path / "store"), told(run)
    record = sweep(store, run, progress)
    assert sum(steps) == run.steps
    assert record.at.tolist() == np.linspace(0, run.steps, 51).round().tolist()
    # No game ends in so few steps.
    assert set(record.curves) == CURVES - {"score"} | {"evaluation score"}
    assert all(np.isfinite(curve).all() and len(curve) == 51 for curve in record.curves.values())
    assert record.curves["drift"].min() > 0  # without a correction too
    for kind in ("of batches", "if uncorrected"):
        assert np.abs(record.curves[f"agreement {kind}"]).max() <= 1 + 1e-5  # cosines, to rounding
    assert (record.curves["staleness"][-1] > 0) == (method != "adam")
    assert set(record.curves["evaluation score"]) == {123}
    assert record.diverged_at is None and record.seconds > 0 and record.numbers_kept > record.parameters > 600
    assert not list((tmp_path / "store").glob("_partial/*"))  # no checkpoint is left


@pytest.mark.parametrize("run", [SARSA, PPO], ids=["sarsa", "ppo"])
def test_a_run_that_was_killed_goes_on(tmp_path, monkeypatch, run):
    store, (follow, before) = Store(tmp_path / "store"), told(run)

    def kill_half_way(*news):
        follow(*news)
        if sum(before) >= run.steps / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(store, run, kill_half_way)
    (kept,) = (store.path / "_partial").iterdir()
    saved = Checkpoint(kept).load("cpu")
    assert len(saved["points"]) == len(before) and saved["points"][-1][0] == sum(before)
    assert len(store.load([run])) == 0

    monkeypatch.setattr(checkpoint, "EVERY", 1e9)
    (progress, after) = told(run)
    record = sweep(store, run, progress)
    assert after[0] == sum(before) and sum(after) == run.steps  # what was made before is told of again, at once
    assert record.seconds > saved["points"][-1][1] > 0
    assert not list((store.path / "_partial").iterdir())


def test_the_frozen_policy_plays_whole_games_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(control, "evaluate", PLAY)
    record = sweep(Store(tmp_path), replace(SARSA, steps=20))
    assert 60 <= record.curves["evaluation score"][0] <= 2000


def test_a_store_is_read_while_runs_are_under_way(tmp_path):
    store = Store(tmp_path / "store")
    sweep(store, replace(SARSA, steps=40))
    (store.path / "_partial" / "some.pt").write_bytes(b"half a run")
    assert len(pq.read_table(store.path)) == 1


def test_each_run_is_a_batch_of_its_own_and_the_longest_come_first():
    runs = grid(problem=["ms_pacman_sarsa", "ms_pacman_ppo"], method=["adam", "adam_window"], seed=[0, 1], batch=4)
    runs += [replace(runs[0], steps=10 * runs[0].steps), *grid(problem="mountain_car", seed=[0, 1], steps=100)]
    batches = plan(runs, "cpu")
    played = [batch for batch in batches if is_control(batch[0])]
    assert all(len(batch) == 1 for batch in played) and len(played) == 9
    assert len(batches) == 10 and not is_control(batches[-1][0])
    costs = [sum(map(cost, batch)) for batch in batches]
    assert costs == sorted(costs, reverse=True)


def test_a_run_that_diverges_ends_there(tmp_path, monkeypatch):
    trained = control.sarsa.sarsa_values

    def diverges(model, batch):
        value, target = trained(model, batch)
        return value, target * (torch.inf if diverging else 1.0)

    monkeypatch.setattr(control.sarsa, "sarsa_values", diverges)
    diverging = False

    def begin(finished, made, cost):
        nonlocal diverging
        diverging = True

    record = sweep(Store(tmp_path), replace(SARSA, method="adam"), begin)
    assert record.diverged_at == 20
    assert set(record.curves) == CURVES | {"evaluation score"}
    # One point was measured, without drift, and no game had ended.
    for name, finite in {"staleness": True, "bounded": True, "drift": False, "score": False}.items():
        assert (np.isfinite(record.curves[name]) == (finite & (record.at < 20))).all()
    assert set(record.curves["evaluation score"]) == {np.inf}
    assert scored([record])[0].curves["evaluation score"][-1] == 1


def test_a_run_that_diverges_at_once_has_curves_too(monkeypatch, tmp_path):
    def diverges(model, batch):
        value = model(batch.state)[:, 0]
        return value, value * torch.inf

    monkeypatch.setattr(control.sarsa, "sarsa_values", diverges)
    record = sweep(Store(tmp_path), replace(SARSA, method="adam"))
    assert record.diverged_at == 0 and set(record.curves) == CURVES | {"evaluation score"}
    assert all(np.isinf(curve).all() for curve in record.curves.values())


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"problem": "mspacman_sarsa"}, "unknown game 'mspacman': did you mean ms_pacman?"),
        ({"method": "adam_frozen"}, "unknown method of control 'adam_frozen': did you mean adam"),
        ({"method": "momentum"}, "unknown method of control 'momentum'"),
        ({"network": "mlp"}, "Sarsa learns with the network small_atari, not mlp"),
        ({"problem": "ms_pacman_ppo", "batch": 5}, "4 games × 8 steps do not divide by 5 a minibatch"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(wrong, why):
    with pytest.raises(UserError) as error:
        Control(replace(SARSA, **wrong), "cpu")
    assert str(error.value).startswith(why) and "\n" not in str(error.value)


def test_games_that_are_not_installed_are_one_line(monkeypatch):
    there = builtins.__import__

    def not_there(name, *rest):
        if name.startswith("ale_py"):
            raise ImportError
        return there(name, *rest)

    monkeypatch.setattr(builtins, "__import__", not_there)
    with pytest.raises(UserError, match=r"^games need ale-py: pip install 'unstale\[atari\]'$"):
        Control(SARSA, "cpu")


def test_values_are_carried_forward_to_marks():
    at, read = np.array([0, 10, 20, 30, 40]), ([5, 20, 25], [np.nan, 2.0, 3.0])
    assert control._carried(at, control._known(*read, None)).tolist() == [2, 2, 2, 3, 3]
    assert control._carried(at, control._known(*read, 35)).tolist() == [2, 2, 2, 3, np.inf]
    assert control._known([5], [np.nan], None) == []
