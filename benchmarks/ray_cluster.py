"""A figure on the local engine, and on a Ray cluster of two nodes on this machine, one of which is killed half-way.

python benchmarks/ray_cluster.py             # figure 3 at the scale quick, some minutes on two cores
python benchmarks/ray_cluster.py --scale smoke

Both compute the same runs in two processes, and results must be equal bit for bit. Needs the extra `ray` of the lab.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

import torch
from machine import describe

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "lab" / "tests"))

from loopback_cluster import LoopbackCluster  # noqa: E402
from sweep_samples import table  # noqa: E402

from unstale_lab.engine.plan import plan  # noqa: E402
from unstale_lab.experiment import Run  # noqa: E402
from unstale_lab.reproduce import figures_named, runs_of  # noqa: E402

Event = Callable[[subprocess.Popen[bytes]], None]


def main() -> None:
    options = arguments()
    runs = runs_of(figures_named([options.figure]), options.scale)
    count = len(plan(runs, "cpu"))
    machine = describe(torch.device("cpu"))
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        local = seconds(folder / "local", command(options, folder / "local", "--jobs", "2"), os.environ)
        rows = [row("local engine, `--jobs 2`", local, folder / "local", folder, runs)]
        with LoopbackCluster() as cluster:
            killed = seconds_with_kill(options, folder / "killed", cluster, count)
        rows += [row("Ray, two nodes, one of them killed half-way", killed, folder / "killed", folder, runs)]
        if not options.only_killed:
            with LoopbackCluster() as cluster:
                program = command(options, folder / "ray", *engine(cluster))
                undisturbed = seconds(folder / "ray", program, cluster.environment)
            rows += [row("Ray, two nodes", undisturbed, folder / "ray", folder, runs)]
    page = f"""# Sweeps on a Ray cluster

`python benchmarks/ray_cluster.py{" --only-killed" * options.only_killed}`, {machine["date"]}: {machine["cpu"]},
{machine["cores"]} cores, shared with other jobs (load {machine["load"]:.1f} at the start), torch {machine["torch"]}, \
Ray {version("ray")}.
{options.figure} at the scale `{options.scale}`: {len(runs):,} runs in {count} batches, seeds as in the figure.

Two processes compute. The cluster has two nodes on this machine, 127.0.0.2 and 127.0.0.3, with one CPU each; all
processes of the second are killed with SIGKILL when half of the batches are stored. Seconds are those that the command
prints; they include the start of its workers, but not that of the cluster.

| engine | seconds | runs lost | runs doubled | results |
| --- | --- | --- | --- | --- |
{chr(10).join(rows)}
"""
    print(page)
    if options.scale == "quick":
        (ROOT / "benchmarks" / "results" / "ray_cluster.md").write_text(page)
    sys.exit("DIFFERENT" in page)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", default="fig3")
    parser.add_argument("--scale", default="quick", choices=["smoke", "quick"])
    parser.add_argument("--only-killed", action="store_true", help="leave out the cluster whose nodes both live")
    parser.add_argument("--folder", type=Path, help="an empty folder for the stores, or one of an interrupted call")
    return parser.parse_args()


def command(options: argparse.Namespace, store: Path, *more: str) -> list[str]:
    program = [sys.executable, "-m", "unstale_lab.cli", "reproduce", options.figure, "--scale", options.scale]
    return [*program, "--store", str(store), *more]


def engine(cluster: LoopbackCluster) -> list[str]:
    return ["--engine", "ray", "--address", cluster.address]


def seconds(
    store: Path, program: list[str], environment: Mapping[str, str], meanwhile: Event = lambda driver: None
) -> float:
    """Seconds that the command prints, with what happens meanwhile. The log stays beside the store."""
    log = store.with_suffix(".log")
    if not log.exists() or not (done := re.search(r"runs in ([\d,]+) s", log.read_text())):
        with log.open("w") as output, subprocess.Popen(program, env=environment, stderr=output) as driver:
            meanwhile(driver)
        done = re.search(r"runs in ([\d,]+) s", log.read_text())
    if not done:
        sys.exit(f"the sweep failed:\n{log.read_text()}")
    return float(done[1].replace(",", ""))


def seconds_with_kill(options: argparse.Namespace, store: Path, cluster: LoopbackCluster, count: int) -> float:
    """Seconds if one node is killed when half of the batches are stored."""

    def kill(driver: subprocess.Popen[bytes]) -> None:
        while driver.poll() is None and stored() < count // 2:
            time.sleep(0.01)
        cluster.kill(1)
        print(f"killed a node after {stored()} of {count} batches", flush=True)
        if stored() == count:
            sys.exit("the sweep was over before the node was killed")

    def stored() -> int:
        return len(list(store.glob("batch-*.parquet")))

    return seconds(store, command(options, store, *engine(cluster)), cluster.environment, kill)


def row(name: str, seconds: float, store: Path, folder: Path, runs: list[Run]) -> str:
    """A row of the table, with the store compared with that of the local engine."""
    (rows, number), reference = table(store), table(folder / "local")
    lost, doubled = len({run.id for run in runs} - rows.keys()), number - len(rows)
    equal = "equal bit for bit" if (rows, number) == reference else "DIFFERENT"
    return f"| {name} | {seconds:.0f} | {lost} | {doubled} | {'reference' if store.name == 'local' else equal} |"


if __name__ == "__main__":
    main()
