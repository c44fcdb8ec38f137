"""Descriptions of runs: what is the same has the same id, now and in every version to come."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstale_lab.experiment import Run, grid, unique

# Few values for each, so that equal pairs are drawn too, and several ways to write the same one.
NUMBERS = st.sampled_from([1, 1.0, np.float64(1), 2, 0.5])
WHOLE = st.sampled_from([0, 1, 1.0, True, np.int64(1)])
RUNS = st.builds(
    Run,
    method=st.sampled_from(["momentum", "full"]),
    seed=WHOLE,
    alpha=NUMBERS,
    rbf_width=NUMBERS,
    damped=WHOLE,
    corrected_layers=st.sampled_from([(), [], (1, 2), [1, 2], (1.0, 2.0), (2, 1)]),
    measure=st.sampled_from([(), ("drift",), ["drift"]]),
)


@pytest.mark.parametrize(
    "run, id",
    [
        (Run(), "44136fa355b3"),
        (Run(seed=3, alpha=0.5, beta=0.99), "96ecea8c8c6b"),
        (
            Run(method="layers", corrected_layers=(0, 2), measure=("drift",), damped=False, width=32),
            "fe22ca3df0d6",
        ),
        (Run(convention="text", initialization="default", rbf_amplitude=1, trust=-1, slots=0), "44136fa355b3"),
        (Run(seed=3, alpha=0.5, beta=0.99, convention="text", rbf_amplitude=1.0), "96ecea8c8c6b"),
    ],
)
def test_ids_never_change(run, id):
    """Results are found by them: a store would be lost with another way to make ids."""
    assert run.id == id


def test_defaults_are_no_part_of_an_id():
    assert Run().settings() == {}
    every = {field.name: field.default for field in fields(Run)}
    assert Run(**every).id == Run().id
    assert Run(seed=1, beta=0.9).settings() == {"seed": 1}
    assert Run(seed=1, beta=0.8).settings() == {"seed": 1, "beta": 0.8}


def test_every_field_is_part_of_the_id():
    other = {str: "other", int: 7, float: 0.7, bool: False, tuple: None}
    changes = {field.name: other[type(field.default)] for field in fields(Run)}
    changes |= {"corrected_layers": (3,), "measure": ("agreement",)}
    ids = {replace(Run(), **{name: value}).id for name, value in changes.items()}
    assert len(ids | {Run().id}) == len(fields(Run)) + 1


@given(RUNS, RUNS)
def test_runs_are_equal_just_where_their_ids_are(a, b):
    assert (a == b) == (a.id == b.id)
    assert hash(a) == hash(b) or a != b


@given(RUNS)
def test_a_run_is_what_its_settings_say(run):
    assert Run(**json.loads(json.dumps(run.settings()))) == run
    for field in fields(Run):
        assert type(getattr(run, field.name)) is type(field.default)


def test_one_way_to_write_a_run():
    plain = Run(alpha=1.0, seed=2, corrected_layers=(0, 1), measure=("drift",), damped=False)
    same = Run(alpha=1, seed=np.int64(2), corrected_layers=[0, 1.0], measure=["drift"], damped=0)
    assert same == plain and same.id == plain.id
    assert Run(alpha=1).id == Run(alpha=1.0).id == "aa2c2c4f06f3"


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": 1.5},
        {"seed": "1"},
        {"alpha": "0.1"},
        {"alpha": None},
        {"damped": "no"},
        {"damped": 2},
        {"problem": 3},
        {"measure": "drift"},
        {"measure": (1,)},
        {"corrected_layers": 1},
        {"corrected_layers": (0.5,)},
    ],
    ids=repr,
)
def test_a_value_of_another_type_is_named(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"^{name} must be of type .*, got "):
        Run(**wrong)


def test_grid_is_every_combination_and_tuples_are_one_choice():
    runs = grid(method=["momentum", "full"], measure=("drift", "agreement"), seed=[0, 1, 2], beta=0.5)
    assert [(run.method, run.seed) for run in runs] == [(m, s) for m in ("momentum", "full") for s in range(3)]
    assert {(run.measure, run.beta) for run in runs} == {(("drift", "agreement"), 0.5)}
    assert grid() == [Run()]
    assert grid(seed=[]) == []


def test_unique_keeps_the_first_of_each_in_order():
    a, b, c = (Run(seed=seed) for seed in (5, 3, 4))
    assert unique([a, b, Run(seed=5), c, b]) == [a, b, c]
