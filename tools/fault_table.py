"""Tries every fault of a sweep on real processes, and writes what was lost: benchmarks/results/faults.md.

python tools/fault_table.py            # minutes
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "lab" / "tests"))

import faults  # noqa: E402
import loopback_cluster  # noqa: E402
from faults import Outcome  # noqa: E402
from loopback_cluster import LoopbackCluster  # noqa: E402
from sweep_samples import finish, table  # noqa: E402

from unstale_lab.provenance import machine  # noqa: E402

PAGE = ROOT / "benchmarks" / "results" / "faults.md"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=5, help="of faults that kill a worker or a node")
    parser.add_argument("--damage", type=int, default=100, help="number of damaged files of each kind")
    parser.add_argument("--only", default="", help="only faults with this word; other rows of the page stay")
    options = parser.parse_args(arguments)
    os.environ.update(loopback_cluster.SETTINGS)  # before Ray is imported
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        finish(faults.RUNS, folder / "undisturbed")
        undisturbed, _ = table(folder / "undisturbed")
        known = scenarios(options.tries, options.damage)
        outcomes = {what: make(folder, undisturbed) for what, make in known.items() if options.only in what}
    before = table_rows(PAGE.read_text()) if options.only else {}
    rows = {**before, **{what: format_row(what, outcome) for what, outcome in outcomes.items()}}
    page = format_page([rows[what] for what in known if what in rows], options)
    print(page)
    PAGE.write_text(page)
    sys.exit(any((o.lost, o.doubled, o.silent) != (0, 0, 0) for o in outcomes.values()))


Scenario = Callable[[Path, dict[str, str]], Outcome]


def scenarios(tries: int, damage: int) -> dict[str, Scenario]:
    return {
        "kill -9 of a worker, local engine": partial(repeated, faults.worker_killed, tries),
        "kill -9 of a Ray worker": partial(on_ray, faults.ray_worker_killed, tries),
        "kill -9 of a Ray node, one of two": partial(on_ray, faults.ray_node_killed, tries),
        "kill -9 of the driver, Ray": partial(on_ray, faults.ray_driver_killed, tries),
        "kill -9 of the driver (local engine), at 11 stages of a commit": faults.driver_killed,
        "two drivers on one store": faults.two_drivers,
        "two drivers with overlapping requests": partial(in_folder, "overlap", faults.overlapping_drivers),
        "full disk: a file is created, written, named; a checkpoint": faults.disk_full,
        "store file cut or bit flipped": partial(in_folder, "store", partial(faults.store_damaged, tries=damage)),
        "checkpoint cut or bit flipped": partial(in_folder, "cut", partial(faults.checkpoint_damaged, tries=damage)),
        "recording cut or bit flipped": partial(faults.recording_damaged, tries=10 * damage),
        "clock that jumps by up to a year": partial(in_folder, "clock", faults.clock_jumps),
        "clock that jumps while another driver writes": partial(in_folder, "old", faults.old_temporary_is_not_a_result),
    }


def in_folder(name: str, make: Scenario, folder: Path, undisturbed: dict[str, str]) -> Outcome:
    (folder / name).mkdir()
    return make(folder / name, undisturbed)


def repeated(make: Scenario, tries: int, folder: Path, undisturbed: dict[str, str]) -> Outcome:
    outcomes = [in_folder(f"try {number}", make, folder, undisturbed) for number in range(tries)]
    return Outcome(*(sum(getattr(o, name) for o in outcomes) for name in Outcome.__dataclass_fields__))


def on_ray(
    make: Callable[[LoopbackCluster, Path], object], tries: int, folder: Path, undisturbed: dict[str, str]
) -> Outcome:
    """One cluster for all tries; the node that was killed is replaced."""
    outcome = Outcome()
    with LoopbackCluster(network="127.0.9") as cluster:  # beside other clusters of this machine
        for number in range(tries):
            store = folder / f"{make.__name__} {number}"
            make(cluster, store)
            outcome.count(store, undisturbed)
            if cluster.nodes[-1].poll() is not None:
                cluster.add()
    return outcome


def table_rows(page: str) -> dict[str, str]:
    """The rows of a page by the name of their fault."""
    return {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| ")}


def format_row(what: str, outcome: Outcome) -> str:
    return f"| {what} | {outcome.tried} | {outcome.lost} | {outcome.doubled} | {outcome.silent} |"


def format_page(rows: Sequence[str], options: argparse.Namespace) -> str:
    only, older = (f" --only '{options.only}'", " (other rows are older)") if options.only else ("", "")
    command = f"python tools/fault_table.py --tries {options.tries} --damage {options.damage}{only}"
    return f"""# Faults of sweeps

`{command}`, {datetime.now(UTC).date()}{older}:
{machine()}.

A sweep of {len(faults.RUNS)} runs in 4 batches is disturbed, the same command is run again where it ended, and
the final results are compared with those of a sweep left alone. *Lost*: runs that are absent in the end. *Doubled*:
runs that are stored more than once. *Silent*: runs with other numbers, and damage that gave neither an error nor a
warning.

| fault | times tried | lost | doubled | silent |
| --- | --- | --- | --- | --- |
{chr(10).join(rows)}
"""


if __name__ == "__main__":
    main()
