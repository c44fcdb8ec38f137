"""Control runs on real games: plan, sweep, store, checkpoints."""

from __future__ import annotations

import builtins
from dataclasses import fields, replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from unstale_lab import checkpoint
from unstale_lab.checkpoint import Checkpoint
from unstale_lab.engine import control_training
from unstale_lab.engine.batch import checkpoint_key
from unstale_lab.engine.control_training import ControlTraining, _finite_points, _forward_fill, is_control
from unstale_lab.engine.plan import cost, plan
from unstale_lab.engine.sweep import make_engine, missing, run_batches
from unstale_lab.errors import UserError
from unstale_lab.experiment import Run, grid
from unstale_lab.figures.claim23 import with_valid_scores
from unstale_lab.provenance import provenance
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


PLAY = control_training.evaluate


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(control_training, "PPO_GAMES", 4)
    monkeypatch.setattr(control_training, "PPO_ROLLOUT", 8)
    monkeypatch.setattr(control_training, "evaluate", lambda policy, games, seed: [123.0] * games)
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    yield
    torch.set_flush_denormal(False)


def sweep(store, run, progress=lambda *args: None):
    run_batches(missing([run], store, "cpu"), store, make_engine("local", "cpu", 1, store.path), progress)
    return store.load([run])[run]


def recording_progress(run):
    """Return a progress callback and the list of steps it records."""
    steps = []
    return (lambda finished, made, cost: steps.append(made)), steps


@pytest.mark.parametrize("method", ["adam", "adam_window"])
@pytest.mark.parametrize("run", [SARSA, PPO], ids=["sarsa", "ppo"])
def test_control_run_is_recorded(tmp_path, run, method):
    run = replace(run, method=method)
    store, (progress, steps) = Store(tmp_path / "store"), recording_progress(run)
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
def test_killed_run_resumes(tmp_path, monkeypatch, run):
    store, (follow, before) = Store(tmp_path / "store"), recording_progress(run)

    def kill_half_way(*news):
        follow(*news)
        if sum(before) >= run.steps / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(store, run, kill_half_way)
    (kept,) = (store.path / "_partial").iterdir()
    saved = Checkpoint(kept, key=checkpoint_key(provenance("cpu"), "cpu")).load("cpu")
    assert len(saved["points"]) == len(before) and saved["points"][-1][0] == sum(before)
    assert len(store.load([run])) == 0

    monkeypatch.setattr(checkpoint, "INTERVAL", 1e9)
    (progress, after) = recording_progress(run)
    record = sweep(store, run, progress)
    assert after[0] == sum(before) and sum(after) == run.steps  # resumed steps are reported at once
    assert record.seconds > saved["points"][-1][1] > 0
    assert not list((store.path / "_partial").iterdir())


def test_final_policy_is_evaluated_on_whole_games(tmp_path, monkeypatch):
    monkeypatch.setattr(control_training, "evaluate", PLAY)
    record = sweep(Store(tmp_path), replace(SARSA, steps=20))
    assert 60 <= record.curves["evaluation score"][0] <= 2000


def test_store_is_readable_during_a_sweep(tmp_path):
    store = Store(tmp_path / "store")
    sweep(store, replace(SARSA, steps=40))
    (store.path / "_partial" / "some.pt").write_bytes(b"half a run")
    assert len(pq.read_table(store.path)) == 1


def test_control_runs_are_not_batched_and_longest_come_first():
    runs = grid(problem=["ms_pacman_sarsa", "ms_pacman_ppo"], method=["adam", "adam_window"], seed=[0, 1], batch=4)
    runs += [replace(runs[0], steps=10 * runs[0].steps), *grid(problem="mountain_car", seed=[0, 1], steps=100)]
    batches = plan(runs, "cpu")
    played = [batch for batch in batches if is_control(batch[0])]
    assert all(len(batch) == 1 for batch in played) and len(played) == 9
    assert len(batches) == 10 and not is_control(batches[-1][0])
    costs = [sum(map(cost, batch)) for batch in batches]
    assert costs == sorted(costs, reverse=True)


def test_diverged_run_stops(tmp_path, monkeypatch):
    trained = control_training.sarsa.sarsa_values

    def diverges(model, batch):
        value, target = trained(model, batch)
        return value, target * (torch.inf if diverging else 1.0)

    monkeypatch.setattr(control_training.sarsa, "sarsa_values", diverges)
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
    assert with_valid_scores([record])[0].curves["evaluation score"][-1] == 1


def test_run_that_diverges_in_the_first_step(monkeypatch, tmp_path):
    def diverges(model, batch):
        value = model(batch.state)[:, 0]
        return value, value * torch.inf

    monkeypatch.setattr(control_training.sarsa, "sarsa_values", diverges)
    record = sweep(Store(tmp_path), replace(SARSA, method="adam"))
    assert record.diverged_at == 0 and set(record.curves) == CURVES | {"evaluation score"}
    assert all(np.isinf(curve).all() for curve in record.curves.values())


PPO_CHANGES = {"problem": "ms_pacman_ppo", "network": "actor", "width": Run.width}
UNUSED = {
    "width": 8,
    "layers": 3,
    "activation": "tanh",
    "damped": False,
    "rbf_grid": 3,
    "rbf_width": 2.0,
    "corrected_layers": (1,),
    "measure": ("drift",),
    "precision": "float64",
    "lr_schedule": "linear",
    "weight_average": 0.9,
    "trace_decay": 0.5,
    "slots": 3,
    "trust": 0.5,
    "convention": "code",
    "initialization": "glorot",
    "rbf_amplitude": 2.0,
}


def test_every_setting_is_used_or_rejected():
    for used in control_training.USED_SETTINGS.values():
        assert used | UNUSED.keys() == {field.name for field in fields(Run)}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"problem": "mspacman_sarsa"}, "unknown control problem 'mspacman_sarsa': did you mean ms_pacman_sarsa?"),
        ({"method": "adam_frozen"}, "unknown control method 'adam_frozen': did you mean adam"),
        ({"method": "momentum"}, "unknown control method 'momentum'"),
        ({"network": "mlp"}, "Sarsa needs network='small_atari', got 'mlp'"),
        ({"method": "adam_reservoir"}, "unknown control method 'adam_reservoir'"),
        ({"slots": 3, "trust": 0.5}, "Sarsa does not use slots=3, trust=0.5; leave that at its default"),
        *(
            ({**PPO_CHANGES, name: value}, f"PPO does not use {name}={value!r}; leave that at its default")
            for name, value in UNUSED.items()
        ),
        *(
            ({name: value}, f"Sarsa does not use {name}={value!r}; leave that at its default")
            for name, value in UNUSED.items()
            if name != "width"
        ),
        ({**PPO_CHANGES, "network": "dqn"}, "PPO needs network='actor', got 'dqn'"),
        ({**PPO_CHANGES, "batch": 5}, "4 games × 8 steps are not divisible by the minibatch size 5"),
    ],
)
def test_invalid_runs_are_rejected(wrong, why):
    with pytest.raises(UserError) as error:
        ControlTraining(replace(SARSA, **wrong), "cpu")
    assert str(error.value).startswith(why) and "\n" not in str(error.value)


def test_missing_ale_py_is_reported(monkeypatch):
    there = builtins.__import__

    def not_there(name, *rest):
        if name.startswith("ale_py"):
            raise ImportError
        return there(name, *rest)

    monkeypatch.setattr(builtins, "__import__", not_there)
    with pytest.raises(UserError, match=r'^Atari games need ale-py; run: pip install -e \. -e "lab\[atari\]"'):
        ControlTraining(SARSA, "cpu")


def test_forward_fill():
    at, read = np.array([0, 10, 20, 30, 40]), ([5, 20, 25], [np.nan, 2.0, 3.0])
    assert _forward_fill(at, _finite_points(*read, None)).tolist() == [2, 2, 2, 3, 3]
    assert _forward_fill(at, _finite_points(*read, 35)).tolist() == [
        2,
        2,
        2,
        3,
        np.inf,
    ]
    assert _finite_points([5], [np.nan], None) == []
