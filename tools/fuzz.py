"""Train random networks on random graphs beside a literal reference, many times.

    python tools/fuzz.py --cases 20000 --jobs 2

Every case is drawn from its seed (``tests/fuzz_cases.py``), in float64 and in float32. Prints the seeds that fail, and
exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))


def run(case: tuple[int, str]) -> tuple[int, str, str | None]:
    """One case; the error, if there is one."""
    import torch
    from fuzz_cases import quiet_case

    torch.set_num_threads(1)
    seed, dtype = case
    try:
        quiet_case(seed, getattr(torch, dtype))
    except Exception as error:
        return seed, dtype, f"{type(error).__name__}: {error}"
    return seed, dtype, None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000, help="how many, half of them in each precision")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--verbose", action="store_true", help="print whole error messages")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.cases // 2)
    cases = [(seed, dtype) for seed in seeds for dtype in ("float64", "float32")]
    failures, started = 0, time.monotonic()
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for done, (seed, dtype, error) in enumerate(pool.imap_unordered(run, cases, chunksize=20), 1):
            if error is not None:
                failures += 1
                print(f"seed {seed} {dtype}: {error if arguments.verbose else error.splitlines()[0]}", flush=True)
            if done % 1000 == 0 or done == len(cases):
                print(f"{done} cases, {failures} failures, {time.monotonic() - started:.0f} s", flush=True)
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
