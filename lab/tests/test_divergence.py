"""Runs whose error grows count as diverged, whatever the engine says."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unstale_lab.analysis.divergence import MAX_GROWTH, mark_explosion
from unstale_lab.experiment import Run
from unstale_lab.records import Record

inf = math.inf


def record(errors: list[float], diverged_at: int | None = None, name: str = "evaluation") -> Record:
    at = 10 * np.arange(len(errors))
    curves = {name: np.array(errors), "drift": np.ones(len(errors))}
    return Record(Run(), at, curves, diverged_at, 1, 1, 1, 1.0)


def test_run_that_ends_far_above_its_first_error_has_diverged():
    found = mark_explosion(record([2.0, 1.0, 25.0, 3.0, 30.0, 400.0]))
    assert found.diverged_at == 40
    assert found.curves["evaluation"].tolist() == [2.0, 1.0, 25.0, 3.0, inf, inf]
    assert found.curves["drift"].tolist() == [1.0, 1.0, 1.0, 1.0, inf, inf]


@pytest.mark.parametrize(
    "unchanged",
    [
        record([2.0, 1.0, 0.1]),
        record([2.0, 300.0, 0.1]),  # it came back
        record([2.0, 1.0, 2.0 * MAX_GROWTH]),
        record([2.0, inf, inf], diverged_at=7),
        record([0.0, 0.0, 0.0]),
        record([0.0, 0.0, 1e-9]),  # nothing to compare with
        record([2.0, 1.0, 300.0], name="score"),  # no error
    ],
)
def test_other_runs_are_left_as_they_are(unchanged):
    assert mark_explosion(unchanged) is unchanged


def test_overfitting_is_no_divergence():
    overfit = record([2.0, 1.0, 400.0])
    overfit.curves["training"] = np.array([2.0, 1.0, 0.1])
    assert mark_explosion(overfit) is overfit
    overfit.curves["training"] = np.array([2.0, 400.0, 300.0])
    assert mark_explosion(overfit).diverged_at == 20
