"""A figure on the local engine, and on a Ray cluster of two nodes on this machine, one of which is killed half-way.

python benchmarks/ray_cluster.py             # figure 3 at the scale quick, some minutes on two cores
python benchmarks/ray_cluster.py --scale smoke

Both compute the same runs in two processes, and results must be equal bit for bit. Needs the extra `ray` of the lab.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
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

Found = tuple[dict[str, str], int]  # rows by id, and their number


def main() -> None:
    options = arguments()
    runs = runs_of(figures_named([options.figure]), options.scale)
    count = len(plan(runs, "cpu"))
    machine = describe(torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        local, ray, disturbed = (Path(folder) / name for name in ("local", "ray", "disturbed"))
        local_s = timed([*command(options, local), "--jobs", "2"], os.environ)
        with LoopbackCluster() as cluster:
            ray_s = timed([*command(options, ray), *engine(cluster)], cluster.environment)
        with LoopbackCluster() as cluster:
            killed_s, files = killed(options, disturbed, cluster, count)
        tables = [table(path) for path in (local, ray, disturbed)]
    equal = all(other == tables[0] for other in tables[1:]) and tables[0][1] == len(runs)
    figure = "" if options.figure == "fig3" else f" --figure {options.figure}"
    page = f"""# Sweeps on a Ray cluster

`python benchmarks/ray_cluster.py{figure} --scale {options.scale}`,
{machine["date"]}: {machine["cpu"]}, {machine["cores"]} cores, load {machine["load"]:.1f} at the start \
(shared with other jobs),
torch {machine["torch"]}, Ray {ray_version()}. {options.figure} at the scale `{options.scale}`: \
{len(runs):,} runs in {count} batches, seeds
as in the figure. Two processes compute in every row. The cluster has two nodes on this machine, 127.0.0.2 and \
127.0.0.3,
with one CPU each. Times include the start of the command and its workers, but not that of the cluster.

| | seconds | runs lost | runs doubled | results |
| --- | --- | --- | --- | --- |
{row("local engine, `--jobs 2`", local_s, tables[0], tables[0], runs)}
{row("Ray, two nodes", ray_s, tables[1], tables[0], runs)}
{row(f"Ray, one of the two killed with SIGKILL after {files} of {count} batches", killed_s, tables[2], tables[0], runs)}
"""
    print(page)
    if options.scale == "quick":
        (ROOT / "benchmarks" / "results" / "ray_cluster.md").write_text(page)
    sys.exit(not equal)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figure", default="fig3")
    parser.add_argument("--scale", default="quick", choices=["smoke", "quick"])
    return parser.parse_args()


def command(options: argparse.Namespace, store: Path) -> list[str]:
    program = [sys.executable, "-m", "unstale_lab.cli", "reproduce", options.figure, "--scale", options.scale]
    return [*program, "--store", str(store)]


def engine(cluster: LoopbackCluster) -> list[str]:
    return ["--engine", "ray", "--address", cluster.address]


def timed(program: list[str], environment: dict[str, str] | os._Environ[str]) -> float:
    start = time.perf_counter()
    subprocess.run(program, check=True, env=environment)
    return time.perf_counter() - start


def killed(options: argparse.Namespace, store: Path, cluster: LoopbackCluster, count: int) -> tuple[float, int]:
    """Seconds with one node killed when half of the batches are stored, and the number that was stored then."""
    start = time.perf_counter()
    program = [*command(options, store), *engine(cluster)]
    with subprocess.Popen(program, env=cluster.environment) as driver:
        while driver.poll() is None and stored(store) < count // 2:
            time.sleep(0.01)
        cluster.kill(1)
        files = stored(store)
    if driver.returncode or files >= count:
        sys.exit(f"the sweep ended with {driver.returncode}; {files} batches were stored when the node was killed")
    return time.perf_counter() - start, files


def stored(store: Path) -> int:
    return len(list(store.glob("batch-*.parquet")))


def row(name: str, seconds: float, found: Found, reference: Found, runs: list[Run]) -> str:
    """A row of the table, for a store that holds ``found``."""
    rows, count = found
    lost, doubled = len({run.id for run in runs} - rows.keys()), count - len(rows)
    compared = "equal bit for bit" if found == reference else "DIFFERENT"
    return f"| {name} | {seconds:.0f} | {lost} | {doubled} | {'' if found is reference else compared} |"


def ray_version() -> str:
    import ray

    return ray.__version__


if __name__ == "__main__":
    main()
