"""Faults of local sweeps: nothing is lost, nothing doubled, nothing wrong in silence."""

from __future__ import annotations

from functools import partial

import faults
import pytest
from faults import Outcome
from sweep_samples import finish, table


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed")
    finish(faults.RUNS, path)
    rows, count = table(path)
    assert set(rows) == {run.id for run in faults.RUNS} and count == len(rows)
    return rows


def assert_harmless(outcome: Outcome, tried: int) -> None:
    assert outcome == Outcome(tried=tried, lost=0, doubled=0, silent=0)


def test_a_driver_killed_at_any_stage_of_a_commit_and_two_drivers_at_once(tmp_path, undisturbed):
    assert_harmless(faults.driver_killed(tmp_path, undisturbed), tried=11)
    assert_harmless(faults.two_drivers(tmp_path, undisturbed), tried=1)


@pytest.mark.parametrize(
    "fault, tried",
    [
        (faults.overlapping_drivers, 1),
        (faults.disk_full, 4),
        (partial(faults.store_damaged, tries=6), 6),
        (partial(faults.checkpoint_damaged, tries=6), 6),
        (partial(faults.recording_damaged, tries=400), 400),
        (faults.clock_jumps, 3),
        (faults.old_temporary_is_not_a_result, 1),
    ],
)
def test_fault(tmp_path, undisturbed, fault, tried):
    assert_harmless(fault(tmp_path, undisturbed), tried)
