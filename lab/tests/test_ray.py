"""Sweeps on Ray: a cluster of two nodes on this machine, whose processes are killed."""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import replace
from importlib.util import find_spec

import faults
import pytest
from faults import Outcome
from loopback_cluster import SETTINGS, LoopbackCluster
from sweep_samples import batches, finish, small_runs, table

from unstale_lab.engine import ray_engine
from unstale_lab.engine.batch import Finished, Steps, checkpoint_path
from unstale_lab.engine.plan import cost
from unstale_lab.engine.ray_engine import RayEngine
from unstale_lab.errors import DataError, UserError

# Not imported here: Ray reads its settings when it is imported.
pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra `ray` of unstale-lab"),
    pytest.mark.xdist_group("ray"),  # one cluster, in one process of pytest-xdist
]


@pytest.fixture(scope="module")
def cluster():
    # Each process of pytest-xdist has its own network.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        with LoopbackCluster(network=f"127.0.{worker}") as started:
            yield started


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed")
    finish(faults.RUNS, path)
    return table(path)[0]


def assert_harmless(messages, store, undisturbed):
    """Every batch was received once, all progress was counted once, and results equal those of the local engine."""
    outcome = Outcome()
    outcome.count(store, undisturbed)
    assert outcome == Outcome(tried=1)
    assert sum(isinstance(message, Finished) for message in messages) == len(batches(faults.RUNS))
    steps = [message for message in messages if isinstance(message, Steps)]
    assert sum(step.count for step in steps) == sum(run.steps for run in faults.RUNS)
    assert sum(step.cost for step in steps) == pytest.approx(sum(map(cost, faults.RUNS)))


@pytest.fixture
def task_counts(monkeypatch):
    """A list of how many tasks were submitted and not finished, each time that one was submitted."""
    submitted, counts = ray_engine._Tasks.submit, []

    def submit(tasks, index, batch):
        submitted(tasks, index, batch)
        counts.append(len(tasks.running))

    monkeypatch.setattr(ray_engine._Tasks, "submit", submit)
    return counts


def test_ray_stores_what_the_local_engine_does(cluster, tmp_path, undisturbed, monkeypatch, task_counts):
    monkeypatch.setattr(ray_engine, "MIN_TASKS", 0)
    monkeypatch.setattr(ray_engine, "TASKS_PER_SLOT", 1)
    messages = faults.ray_sweep(cluster, tmp_path)
    assert_harmless(messages, tmp_path, undisturbed)
    assert max(task_counts) == 2  # one for each of the two slots, and no more at a time


def test_jobs_limit_the_tasks_also_if_an_application_is_connected(cluster, task_counts):
    import ray

    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        RayEngine("cpu", jobs=1).run(batches(faults.RUNS)[:2], lambda message: None)
    finally:
        ray.shutdown()
    assert task_counts == [1, 1]


def test_an_error_is_not_retried_and_keeps_its_type(cluster):
    wrong = [replace(faults.RUNS[0], problem="no such problem")]
    with pytest.raises(UserError, match="no such problem") as caught:
        RayEngine("cpu", address=cluster.address).run([wrong], lambda message: None)
    assert "In a worker process" in caught.value.__notes__[0]


def test_batches_that_run_are_stored_before_the_error_of_another_is_raised(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("UNSTALE_SCRATCH", str(tmp_path))
    monkeypatch.setattr(ray_engine, "_compute", faults.fail_while_another_runs)
    messages = []

    def receive(message):
        messages.append(message)
        (tmp_path / ("failed" if isinstance(message, str) else "begun")).touch()

    with pytest.raises(DataError, match="the first batch failed"):
        RayEngine("cpu", address=cluster.address).run(batches(faults.RUNS), receive)  # two run, and two wait
    (warning,) = (message for message in messages if isinstance(message, str))
    assert warning.startswith("a batch failed.") and warning.endswith("The error: the first batch failed")
    finished = [message.records[0].run for message in messages if isinstance(message, Finished)]
    assert batches(faults.RUNS)[1][0] in finished
    while faults.running_tasks(cluster):  # they end, without a deadline
        time.sleep(0.05)


def test_a_checkpoint_stays_until_the_results_are_stored(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("UNSTALE_SCRATCH", str(tmp_path))
    monkeypatch.setattr(ray_engine, "_compute", faults.save_checkpoints)
    seen = []

    def receive(message):
        if isinstance(message, Finished):
            seen.append(checkpoint_path([record.run for record in message.records], tmp_path).exists())

    RayEngine("cpu", address=cluster.address).run(batches(faults.RUNS), receive)
    assert seen == [True] * len(batches(faults.RUNS))
    assert not list(tmp_path.glob("*.pt"))


def test_a_node_with_other_versions_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(ray_engine, "_versions", lambda: {"torch": "1.0"})
    with pytest.raises(UserError, match=r"a node of the cluster has torch 2\S* instead of 1\.0: install the same"):
        RayEngine("cpu", address=cluster.address).run([faults.RUNS[:1]], lambda message: None)


def test_an_interrupted_sweep_ends_its_tasks_in_an_application_that_stays_connected(cluster):
    import ray

    quick, long = faults.RUNS[:1], [[run] for run in small_runs(steps=100_000_000)]  # hours each

    def interrupt(message):
        if isinstance(message, Finished):
            while not faults.running_tasks(cluster):
                time.sleep(0.05)
            raise KeyboardInterrupt

    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        with pytest.raises(KeyboardInterrupt):
            RayEngine("cpu", address=cluster.address).run([quick, *long], interrupt)
        while faults.running_tasks(cluster):  # they end, without a deadline
            time.sleep(0.05)
    finally:
        ray.shutdown()


def test_a_killed_worker_and_then_a_killed_node(cluster, tmp_path, undisturbed):
    messages = faults.ray_worker_killed(cluster, tmp_path / "worker")
    assert_harmless(messages, tmp_path / "worker", undisturbed)
    messages = faults.ray_node_killed(cluster, tmp_path / "node")
    assert_harmless(messages, tmp_path / "node", undisturbed)


def test_a_killed_driver(cluster, tmp_path, undisturbed):
    messages = faults.ray_driver_killed(cluster, tmp_path)
    assert sum(isinstance(message, Finished) for message in messages) == len(batches(faults.RUNS)) - 1
    outcome = Outcome()
    outcome.count(tmp_path, undisturbed)
    assert outcome == Outcome(tried=1)


def test_ray_that_is_not_installed_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r'^--engine ray needs Ray; run: pip install -e \. -e "lab\[ray\]"'):
        RayEngine("cpu")


def test_ray_selects_the_gpu():
    with pytest.raises(UserError, match="--device cuda:1: choose cpu or cuda; Ray selects the GPU"):
        RayEngine("cuda:1")


def test_an_address_where_nothing_listens_is_one_line():
    with socket.socket() as probe:  # bound, but it does not listen
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(UserError, match=rf"^no Ray cluster answers at '{address}' \(.*refused"):
            RayEngine("cpu", address=address).run([faults.RUNS[:1]], lambda message: None)


def test_ray_that_does_not_start_is_one_line(monkeypatch):
    ray = pytest.importorskip("ray")

    def fail(**options):
        raise RuntimeError("no port is free")

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(UserError, match=r"^cannot start Ray on this machine: no port is free\. Choose --engine local"):
        RayEngine("cpu").run([faults.RUNS[:1]], lambda message: None)
    with pytest.raises(UserError, match=r"^cannot connect to a Ray cluster at 'auto': no port is free"):
        RayEngine("cpu", address="auto").run([faults.RUNS[:1]], lambda message: None)
