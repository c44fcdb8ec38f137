"""Faults of local sweeps: nothing is lost, nothing doubled, nothing wrong in silence."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path

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


def test_the_page_of_faults_keeps_other_rows_and_gets_new_ones(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("fault_table", Path(__file__).parents[2] / "tools/fault_table.py")
    fault_table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fault_table)
    page = tmp_path / "faults.md"
    page.write_text("`a command`, 2020-01-01:\n\n| an old fault | 1 | 0 | 0 | 0 |\n| two drivers | 1 | 2 | 0 | 0 |\n")
    tried = {"clock": Outcome(3), "two drivers": Outcome(4), "full disk": Outcome(5)}
    known = {what: lambda folder, rows, outcome=outcome: outcome for what, outcome in tried.items()}
    monkeypatch.setattr(fault_table.loopback_cluster, "SETTINGS", {})
    monkeypatch.setattr(fault_table, "PAGE", page)
    monkeypatch.setattr(fault_table, "scenarios", lambda tries, damage: known)
    for word in ("clock", "full"):
        with pytest.raises(SystemExit) as ended:
            fault_table.main(["--only", word])
        assert not ended.value.code
    *text, clock, drivers, disk = page.read_text().splitlines()
    assert clock == "| clock | 3 | 0 | 0 | 0 |"
    assert drivers == "| two drivers | 1 | 2 | 0 | 0 |"  # as it was
    assert disk == "| full disk | 5 | 0 | 0 | 0 |"
    assert "`python tools/fault_table.py --tries 5 --damage 100 --only 'full'`" in "\n".join(text)
    assert not any("an old fault" in line or "2020-01-01" in line for line in text)
