"""Measure time and memory of the corrected optimizers, and write results as JSON and Markdown.

PYTHONPATH=src python benchmarks/run.py --device cpu --suite all
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from machine import describe
from report import page
from suites import SUITES, tf32


def main() -> None:
    options = arguments()
    device = torch.device(options.device)
    out: Path = options.out or Path(__file__).parent / "results" / f"{device.type}{'-quick' * options.quick}.json"
    results: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    for name in SUITES if options.suite == "all" else [options.suite]:
        print(f"== {name}", flush=True)
        about = dict(machine=describe(device), command=command(options), quick=options.quick)
        start = time.perf_counter()
        with tf32(False, device):
            found = SUITES[name](device, options.quick)
        results[name] = {**about, "seconds": time.perf_counter() - start, **found}
        write(out, results, device.type)  # after every suite, so that an interrupted run keeps its results
    print(out.with_suffix(".md").read_text())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time and memory of training steps with corrected momentum.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--suite", choices=(*SUITES, "all"), default="all")
    parser.add_argument(
        "--out", type=Path, help="JSON file; the Markdown page is written next to it; default: results/<device>.json"
    )
    parser.add_argument("--quick", action="store_true", help="a few cells, under a minute, as a smoke test")
    return parser.parse_args()


def command(options: argparse.Namespace) -> str:
    """Return the command that reproduces these results."""
    quick = " --quick" * options.quick
    return f"PYTHONPATH=src python benchmarks/run.py --device {options.device} --suite {options.suite}{quick}"


def write(out: Path, results: dict[str, Any], device: str) -> None:
    """Write JSON and Markdown; ``results`` includes suites of earlier runs with their own machine."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    out.with_suffix(".md").write_text(page(results, device))


if __name__ == "__main__":
    main()
