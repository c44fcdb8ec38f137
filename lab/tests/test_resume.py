"""Sweeps that are killed, or run twice at once, end with the same table as one that was left alone, bit for bit."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch

from unstale_lab import cli
from unstale_lab.batch_file import PROVENANCE
from unstale_lab.engine.plan import plan
from unstale_lab.engine.sweep import make_engine, run_batches
from unstale_lab.errors import SweepError, WorkerError
from unstale_lab.experiment import Run
from unstale_lab.reproduce import figures_named, runs_of
from unstale_lab.store import Store

FIGURES = ("fig3", "fig10")  # 17 batches between them, so that there is a middle to be killed in
RUNS = runs_of(figures_named(FIGURES), "smoke")
BATCHES = len(plan(RUNS, "cpu"))
# The command, but its process kills itself as soon as it has started its second worker.
KILLED_WHILE_WORKERS_START = """
import os, signal, sys
from multiprocessing.context import SpawnProcess
from unstale_lab.cli import main

start, started = SpawnProcess.start, []

def start_or_die(process):
    start(process)
    started.append(process)
    if len(started) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

SpawnProcess.start = start_or_die
main(sys.argv[1:])
"""


def arguments(store, jobs):
    return ["reproduce", *FIGURES, "--scale", "smoke", "--jobs", str(jobs), "--store", str(store)]


@pytest.fixture
def start():
    """Starts the command in a process of its own. Its workers share its stderr, which ends when all of them have.

    No test here has a deadline: a slow machine takes as long as it takes."""
    started = []

    def start(store, jobs, program=("-m", "unstale_lab.cli"), **options):
        command = [sys.executable, *program, *arguments(store, jobs)]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        if not process.stderr.closed:
            process.communicate()


def finish(store):
    """The same command here, in one process."""
    cli.main(arguments(store, jobs=1))
    torch.set_flush_denormal(False)


def files(store):
    return len(list(store.glob("batch-*.parquet")))


def wait_for_files(store, count, process):
    """Until there are so many files, or the process has ended."""
    while files(store) < count and process.poll() is None:
        time.sleep(0.001)
    assert process.poll() in (None, 0)


def linger(store, count, seconds):
    """Some time, but not so long that there are more files than that: a quick machine must not be done by then."""
    end = time.monotonic() + seconds
    while files(store) < count and time.monotonic() < end:
        time.sleep(0.001)


def table(store):
    """Everything of every run, but for where and when it was made, as text, in which floats have all their digits."""
    rows = pq.read_table(store).drop_columns([*PROVENANCE, "seconds"]).sort_by("id").to_pylist()
    return {row["id"]: repr(row) for row in rows}, len(rows)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    store = tmp_path_factory.mktemp("undisturbed") / "store"
    finish(store)
    rows, count = table(store)
    assert set(rows) == {run.id for run in RUNS} and count == len(RUNS)
    assert files(store) == BATCHES
    return rows, count


def test_a_sweep_killed_three_times_ends_with_the_table_of_one_left_alone(tmp_path, start, undisturbed):
    store = tmp_path / "store"
    numbers = random.Random(0)
    kills = 0
    while kills < 3:
        moment = files(store) + numbers.randint(1, 2)
        process = start(store, jobs=2)
        wait_for_files(store, moment, process)
        linger(store, moment + 2, numbers.uniform(0, 0.3))  # into a batch, or the writing of a file
        process.kill()
        process.communicate()  # its workers end, although only it was killed
        if files(store) == BATCHES:  # this process was too slow to kill it in time: begin again
            shutil.rmtree(store)
            kills = 0
            continue
        assert process.returncode == -signal.SIGKILL
        assert moment <= files(store)
        kills += 1
    whole = Store(store).check()
    finish(store)
    assert table(store) == undisturbed
    assert 0 < whole < len(RUNS)
    assert files(store) == BATCHES


def test_no_worker_outlives_a_parent_that_is_killed_while_they_start(tmp_path, start):
    process = start(tmp_path / "store", jobs=2, program=("-c", KILLED_WHILE_WORKERS_START))
    _, errors = process.communicate()  # returns when the workers have ended
    assert process.returncode == -signal.SIGKILL
    assert f"{len(RUNS)} to do" in errors
    assert files(tmp_path / "store") < BATCHES


def test_two_processes_on_one_store_do_it_no_harm(tmp_path, start, undisturbed):
    store = tmp_path / "store"
    while True:
        other = start(store, jobs=1)
        wait_for_files(store, 1, other)
        if files(store) < BATCHES:
            break
        other.communicate()  # this process was too slow to find it at work: begin again
        shutil.rmtree(store)
    finish(store)  # all that the other has not, at the same time as the other
    _, errors = other.communicate()
    assert other.returncode == 0, errors
    assert table(store) == undisturbed
    assert Store(store).check() == len(Store(store).load(RUNS)) == len(RUNS)
    assert sorted(path.suffix for path in store.iterdir()) == [".parquet"] * BATCHES


def test_a_disk_that_fills_while_workers_compute_is_one_line(tmp_path, start):
    def no_file_beyond_1000_bytes():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))

    quiet = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    process = start(tmp_path / "store", jobs=2, preexec_fn=no_file_beyond_1000_bytes, env=quiet)
    _, errors = process.communicate()
    assert process.returncode == 2
    assert f"unstale-lab: cannot write to the store {tmp_path / 'store'}: File too large" in errors.splitlines()
    assert "Traceback" not in errors
    assert os.listdir(tmp_path / "store") == []


def test_a_worker_that_is_killed_is_one_line_and_what_was_finished_stays(tmp_path):
    """As a system does that has run out of memory."""
    store = Store(tmp_path / "store")
    quick = Run(width=4, batch=1, steps=10)
    long = [replace(quick, steps=10_000_000, seed=seed) for seed in (1, 2)]  # minutes each; no worker gets to the end

    def kill_one(finished_runs, steps, cost):
        if finished_runs:
            multiprocessing.active_children()[0].kill()

    with pytest.raises(WorkerError, match="a worker process was killed"):
        run_batches([[quick], *([run] for run in long)], store, make_engine("local", "cpu", 2, store.path), kill_one)
    assert store.ids() == {quick.id} and store.check() == 1
    assert multiprocessing.active_children() == []


def test_a_sweep_without_all_its_runs_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(Store, "add", lambda self, records, made: None)
    store = Store(tmp_path / "store")
    with pytest.raises(SweepError, match=rf"^\d+ of \d+ runs are not in the store {tmp_path / 'store'}"):
        run_batches(plan(RUNS, "cpu")[-2:], store, make_engine("local", "cpu", 1, store.path), lambda *news: None)
    torch.set_flush_denormal(False)
