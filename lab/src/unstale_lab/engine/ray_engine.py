"""The engine on a Ray cluster: every batch is a Ray task, and its results return to this process.

Tasks of lost workers and nodes are run again, on another node if there is one. Nodes need the same versions of the
packages as this process, and the data of problems that read some, but not the store.
"""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import UserError, WorkerError, one_line
from ..processes import portable, usable_cores
from ..versions import RESULTS_VERSION
from .batch import Batch, BatchRunner, Finished, Message, Receive, Steps, checkpoint_path

MAX_RETRIES = 5  # of a batch whose worker or node was lost
TASKS_PER_SLOT = 2  # submitted at a time: one that runs, and one that follows without a pause
MIN_TASKS = 8  # submitted at a time, however few slots there are: they make an autoscaler add nodes
CONNECT_TIMEOUT = 10.0  # seconds
POLL_INTERVAL = 0.5  # seconds between two looks at the progress
REPORT_INTERVAL = 1.0  # seconds between two reports of a task
REMOVAL_TIMEOUT = 10.0  # seconds that a node may take to remove a checkpoint; otherwise it stays
OBJECT_STORE_BYTES = 256 << 20  # of a Ray that is started here; the results of a batch are below 1 MB
# Read when a process starts, or by the problems.
ENVIRONMENT = ("MKL_CBWR", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "UNSTALE_DATA", "UNSTALE_SCRATCH")


class RayEngine:
    """Computes batches on a Ray cluster.

    Args:
        jobs: on a CPU, the largest number of tasks at a time; 0: one per core. On a GPU, the number of tasks that share
            one; 0: one.
        address: of a running cluster, ``"auto"`` for the one on this machine. By default Ray is started for this sweep,
            and ends with it.
    """

    def __init__(self, device: str, jobs: int = 0, address: str | None = None) -> None:
        if device not in ("cpu", "cuda"):
            raise UserError(f"--device {device}: choose cpu or cuda; Ray selects the GPU of each task")
        self.device, self.jobs, self.address = device, jobs, address
        self._ray = _import_ray()

    def run(self, batches: Sequence[Batch], receive: Receive) -> None:
        """Computes every batch. Results are received as they arrive, in any order."""
        with self._connection():
            tasks = _Tasks(self._ray, self._submit_options(), self.device)
            try:
                self._run(list(batches), tasks, receive)
            finally:
                tasks.cancel()

    def _run(self, batches: list[Batch], tasks: _Tasks, receive: Receive) -> None:
        if not self._slots():
            kind = "CPU" if self.device == "cpu" else "GPU"
            receive(f"the Ray cluster has no {kind} yet. Batches wait until a node with one joins; Ctrl-C ends this.")
        waiting = list(reversed(range(len(batches))))
        while waiting or tasks.running:
            while waiting and len(tasks.running) < self._capacity():
                index = waiting.pop()
                tasks.submit(index, batches[index])
            for message in tasks.poll():
                receive(message)
            if tasks.failure is not None:
                waiting.clear()
        if tasks.failure is not None:
            raise tasks.failure

    def _capacity(self) -> int:
        """The number of tasks to submit at a time. The cluster may grow and shrink."""
        if self.device == "cpu" and self.jobs:
            return self.jobs
        return max(MIN_TASKS, TASKS_PER_SLOT * self._slots())

    def _slots(self) -> int:
        """The number of tasks that the cluster can run at a time."""
        resources = self._ray.cluster_resources()
        return int(resources.get("CPU", 0) if self.device == "cpu" else resources.get("GPU", 0) * max(1, self.jobs))

    def _submit_options(self) -> dict[str, Any]:
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        return dict(
            num_cpus=1,
            num_gpus=1 / max(1, self.jobs) if self.device == "cuda" else 0,
            max_retries=MAX_RETRIES,
            retry_exceptions=False,  # an error would repeat
            runtime_env={"env_vars": environment},
        )

    @contextmanager
    def _connection(self) -> Iterator[None]:
        """Connects to the cluster, or starts one; nothing that was started here remains in the end."""
        ray = self._ray
        if ray.is_initialized():  # by an application that calls this; it stays connected
            yield
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = dict(address=self.address)
        if self.address is not None:
            _require_listening(self.address)
        else:
            cores = self.jobs if self.device == "cpu" and self.jobs else usable_cores()
            options = dict(
                address="local", include_dashboard=False, num_cpus=cores, object_store_memory=OBJECT_STORE_BYTES
            )
        try:
            ray.init(**options, log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError, RuntimeError) as error:
            raise self._connection_error(error) from error
        try:
            yield
        finally:
            ray.shutdown()

    def _connection_error(self, error: Exception) -> UserError:
        if self.address is None:
            return UserError(
                f"cannot start Ray on this machine: {one_line(error)}. Choose --engine local, or give the --address of "
                "a running cluster."
            )
        return UserError(
            f"cannot connect to a Ray cluster at {self.address!r}: {one_line(error)}. Start one with "
            "`ray start --head`, or omit --address. If it has a token, set RAY_AUTH_MODE=token here too."
        )


@dataclass(frozen=True)
class _Result:
    """What a task returns."""

    finished: Finished
    steps: Steps  # all
    checkpoint_node: str | None  # the node that has a checkpoint of the batch, if one has


class _Tasks:
    """The batches that were submitted, and what they report."""

    def __init__(self, ray: ModuleType, options: Mapping[str, Any], device: str) -> None:
        self.running: dict[Any, tuple[int, Batch]] = {}
        self._ray = ray
        self._compute = ray.remote(_compute).options(**options)
        self._remove = ray.remote(_remove_checkpoint)
        self._remove_options = {**options, "num_cpus": 0, "num_gpus": 0}
        self._device = device
        # With this process, so that it is lost only if this process is.
        here = self._on_node(_node())
        self._inbox = ray.remote(_Inbox).options(num_cpus=0, scheduling_strategy=here).remote()
        self._reported: dict[int, Steps] = {}
        self._begun: set[int] = set()
        self.failure: Exception | None = None  # the first

    def submit(self, index: int, batch: Batch) -> None:
        task = self._compute.remote(index, batch, self._device, _versions(), self._inbox)
        self.running[task] = index, batch

    def poll(self) -> Iterator[Message]:
        """Waits a moment, and returns what has arrived. An error of a batch is kept, until those that run are done."""
        done, _ = self._ray.wait(list(self.running), num_returns=1, timeout=POLL_INTERVAL)
        for task in done:
            index, batch = self.running.pop(task)
            try:
                result = self._result(task, batch)
            except Exception as error:
                yield from self._fail(error)
                continue
            yield from self._advance(index, result.steps)
            yield result.finished
            if result.checkpoint_node is not None:  # no longer needed, now that the results are stored
                self._remove_checkpoint(batch, result.checkpoint_node)
        with suppress(self._ray.exceptions.RayActorError):  # progress is lost with the inbox, results are not
            steps, warnings = self._ray.get(self._inbox.take.remote())
            yield from warnings
            self._begun |= steps.keys()
            for index, now in steps.items():
                yield from self._advance(index, now)

    def cancel(self) -> None:
        """Ends the tasks that are running, and forgets those that are not."""
        for task in self.running:
            self._cancel(task)

    def _cancel(self, task: Any) -> None:
        with suppress(Exception):  # of a connection that is lost
            self._ray.cancel(task, force=True)

    def _fail(self, error: Exception) -> Iterator[str]:
        """Keeps the first error, and cancels the batches that have not begun."""
        if self.failure is not None:
            return
        self.failure = error
        for task in [task for task, (index, _) in self.running.items() if index not in self._begun]:
            self._cancel(task)
            del self.running[task]
        if self.running:
            yield (
                "a batch failed. The sweep ends when those that run are finished, or with Ctrl-C at once. The error: "
                f"{one_line(error)[:300]}"
            )

    def _remove_checkpoint(self, batch: Batch, node: str) -> None:
        removal = self._remove.options(**self._remove_options, scheduling_strategy=self._on_node(node)).remote(batch)
        self._ray.wait([removal], timeout=REMOVAL_TIMEOUT)

    def _on_node(self, node: str) -> Any:
        return self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)

    def _advance(self, index: int, now: Steps) -> Iterator[Steps]:
        """What a batch did beyond what was reported before. A batch that starts over reports less at first."""
        before = self._reported.get(index, Steps(0, 0.0))
        if now.count > before.count:
            self._reported[index] = now
            yield Steps(now.count - before.count, now.cost - before.cost)

    def _result(self, task: Any, batch: Batch) -> _Result:
        errors = self._ray.exceptions
        try:
            return self._ray.get(task)
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.RayError as error:
            lost = isinstance(error, errors.WorkerCrashedError | errors.NodeDiedError)
            raise WorkerError(
                f"the batch of run {batch[0].id} {f'was lost {MAX_RETRIES + 1} times' if lost else 'failed'}: "
                f"{one_line(error)[:300]} Run the command again, on nodes with more memory if it repeats."
            ) from None


class _Inbox:
    """An actor with the latest report of every batch, and warnings. Its size does not grow with time."""

    def __init__(self) -> None:
        self._steps: dict[int, Steps] = {}
        self._warnings: list[str] = []

    def report(self, index: int, steps: Steps) -> None:
        self._steps[index] = steps

    def warn(self, warning: str) -> None:
        self._warnings.append(warning)

    def take(self) -> tuple[dict[int, Steps], list[str]]:
        """What arrived since the last call."""
        taken = self._steps, self._warnings
        self._steps, self._warnings = {}, []
        return taken


def _compute(index: int, batch: Batch, device: str, versions: dict[str, str], inbox: Any) -> _Result:
    """The task: computes a batch. Its checkpoint stays until the driver has stored the results."""
    try:
        _require_versions(versions)
        reporter = _Reporter(index, inbox)
        BatchRunner(device, scratch_folder())(batch, reporter)
        assert reporter.finished is not None
        has_checkpoint = checkpoint_path(batch, scratch_folder()).exists()
        return _Result(reporter.finished, reporter.steps, _node() if has_checkpoint else None)
    except Exception as error:  # not SystemExit: a worker that is asked to stop is lost, and its batch is retried
        raise portable(error) from None


def _remove_checkpoint(batch: Batch) -> None:
    """The task that follows, on the same node."""
    checkpoint_path(batch, scratch_folder()).unlink(missing_ok=True)


def _node() -> str:
    """The id of the node of this process."""
    return _import_ray().get_runtime_context().get_node_id()


class _Reporter:
    """Sends the steps so far to the inbox, now and then."""

    def __init__(self, index: int, inbox: Any) -> None:
        self.finished: Finished | None = None
        self.steps = Steps(0, 0.0)
        self._index, self._inbox = index, inbox
        inbox.report.remote(index, self.steps)  # it has begun
        self._sent = time.monotonic()

    def __call__(self, message: Message) -> None:
        match message:
            case Finished():
                self.finished = message
            case Steps(count, cost):
                self.steps = Steps(self.steps.count + count, self.steps.cost + cost)
                if time.monotonic() - self._sent > REPORT_INTERVAL:
                    self._inbox.report.remote(self._index, self.steps)
                    self._sent = time.monotonic()
            case str():
                self._inbox.warn.remote(message)


def _require_listening(address: str) -> None:
    """Raises ``UserError`` if nothing listens there, for which Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return  # "auto", or something that Ray refuses at once
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no Ray cluster answers at {address!r} ({one_line(error)}). Start one with `ray start --head`, or omit "
            "--address."
        ) from error


def scratch_folder() -> Path:
    """Where a node has checkpoints of batches in progress: ``$UNSTALE_SCRATCH``, or a temporary folder."""
    return Path(os.environ.get("UNSTALE_SCRATCH") or Path(tempfile.gettempdir()) / f"unstale-lab-{os.getuid()}")


def _versions() -> dict[str, str]:
    """What results depend on. Not the build of torch (``+cpu``): the driver may have another than nodes with GPUs."""
    packages = {name: version(name).partition("+")[0] for name in ("unstale", "unstale-lab", "torch")}
    return {"results": str(RESULTS_VERSION), **packages}


def _require_versions(wanted: Mapping[str, str]) -> None:
    here = _versions()
    different = [f"{name} {here[name]} instead of {wanted[name]}" for name in wanted if here[name] != wanted[name]]
    if different:
        raise UserError(f"a node of the cluster has {', '.join(different)}: install the same versions on all nodes")


def _import_ray() -> ModuleType:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise UserError('--engine ray needs Ray; run: pip install -e . -e "lab[ray]" (in a clone of unstale)') from None
    return ray
