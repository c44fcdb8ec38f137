"""What a corrected step costs on several ranks of ``torch.distributed``, and what it sends.

    PYTHONPATH=src python benchmarks/distributed.py              # 1, 2 and 4 gloo ranks on this machine, a few minutes
    PYTHONPATH=src python benchmarks/distributed.py --quick      # a few steps, to see that it runs

The batch is divided among the ranks, each with one thread: more ranks do less work each, and wait for each other.
Results go to ``results/distributed.json`` and ``results/distributed.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from machine import describe
from torch import Tensor, nn

import unstale

BATCH, INPUTS, GAMMA = 64, 8, 0.99
WIDTHS = {32: ("none", "diagonal", "dense", "window", "reservoir"), 256: ("none", "diagonal", "window", "reservoir")}
SIZES = (1, 2, 4)
STEPS = 10  # of a turn; every interval of a reservoir divides 100
RESULTS = Path(__file__).parent / "results"


class Candidate:
    """A model of its own, with DistributedDataParallel on several ranks.

    Args:
        width: of its two hidden layers.
        correction: of ``CorrectedAdam``; ``"torch"`` for ``torch.optim.Adam``.
        part: the rows of this rank.
    """

    def __init__(self, width: int, correction: str, part: slice, is_wrapped: bool) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(INPUTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.model: nn.Module = nn.Sequential(*model, nn.Linear(width, 1))
        self.size = sum(p.numel() for p in self.model.parameters())
        if is_wrapped:
            self.model = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer: Any
        if correction == "torch":
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        else:
            options: dict[str, Any] = dict(slots=1024) if correction == "reservoir" else {}
            self.optimizer = unstale.CorrectedAdam(
                self.model, lr=1e-3, betas=(0.9, 0.999), correction=correction, **options
            )
        self._part, self._generator = part, torch.Generator().manual_seed(0)

    def step(self) -> None:
        state, next_state = (torch.randn(BATCH, INPUTS, generator=self._generator)[self._part] for _ in range(2))
        reward = torch.randn(BATCH, generator=self._generator)[self._part]
        if isinstance(self.optimizer, torch.optim.Adam):
            with torch.no_grad():
                target = reward + GAMMA * self._value(next_state)
            (0.5 * (self._value(state) - target).square().mean()).backward()
        else:
            self.optimizer.backward(self._value(state), reward + GAMMA * self._value(next_state))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _value(self, state: Tensor) -> Tensor:
        return self.model(state).squeeze(-1)

    @property
    def sent(self) -> int:
        """Bytes that the optimizer handed to collectives."""
        return 0 if isinstance(self.optimizer, torch.optim.Adam) else self.optimizer._ranks.bytes


def measure(rank: int, size: int, directory: str, rounds: int, warm_up: int) -> None:
    """Time all candidates on one rank, in turns; the first rank writes what it found."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/{size}", rank=rank, world_size=size)
    part = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
    found = []
    for width, names in WIDTHS.items():
        candidates = {name: Candidate(width, name, part, size > 1) for name in ("torch", *names)}
        for candidate in candidates.values():
            for _ in range(warm_up):
                candidate.step()
        before = {name: candidate.sent for name, candidate in candidates.items()}
        times: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(rounds):
            for name, candidate in candidates.items():
                dist.barrier()
                start = time.perf_counter()
                for _ in range(STEPS):
                    candidate.step()
                times[name].append((time.perf_counter() - start) / STEPS * 1e3)
        for name, candidate in candidates.items():
            found.append(
                dict(
                    width=width,
                    parameters=candidate.size,
                    correction=name,
                    ranks=size,
                    ms=statistics.median(times[name]),
                    fastest_ms=min(times[name]),
                    gradient_bytes=4 * candidate.size if size > 1 else 0,
                    other_bytes=(candidate.sent - before[name]) / (rounds * STEPS),
                )
            )
    if rank == 0:
        Path(directory, f"{size}.json").write_text(json.dumps(found), "utf-8")
    dist.barrier()
    dist.destroy_process_group()


def page(results: dict[str, Any]) -> str:
    machine = results["machine"]
    lines = [
        "# Several ranks",
        "",
        f"`{results['command']}`, {machine['date']}, {machine['cpu']}, {machine['cores']} cores, load "
        f"{machine['load']:.1f} at the start, torch {machine['torch']}, unstale {machine['unstale']}.",
        "",
        f"The time of a training step of CorrectedAdam (β = 0.9), in ms: the median over turns of {STEPS} steps, and "
        "the fastest turn in brackets, which other work on the machine disturbs least and which the ratios are of. The "
        f"batch of {BATCH} is divided among gloo ranks on one machine, one thread each, with DistributedDataParallel. "
        "Networks have two hidden layers; *torch* is `torch.optim.Adam`. Small networks on one machine show what "
        "communication costs, not what more ranks gain; with more ranks than free cores, ranks wait for each other.",
        "",
        "*η and votes* are the bytes per step that a rank hands to collectives besides its gradients, which "
        "DistributedDataParallel sends. Votes have 64 bytes: two per step, and one more in a step with per-sample "
        "gradients.",
        "",
        "| parameters | correction | " + " | ".join(f"{n} rank{'s' * (n > 1)}" for n in SIZES) + " | 2 ranks / 1 |"
        " 4 ranks / 1 | bytes: gradients | bytes: η and votes |",
        "| --- " * (len(SIZES) + 6) + "|",
    ]
    cells = {(c["width"], c["correction"], c["ranks"]): c for c in results["cells"]}
    for width, names in WIDTHS.items():
        for name in ("torch", *names):
            row = [cells[width, name, size] for size in SIZES]
            times = [f"{c['ms']:.1f} ({c['fastest_ms']:.2f})" for c in row]
            ratios = [f"{c['fastest_ms'] / row[0]['fastest_ms']:.1f}x" for c in row[1:]]
            sent = [f"{row[-1]['gradient_bytes']:,}", f"{row[-1]['other_bytes']:,.0f}"]
            lines.append("| " + " | ".join([f"{row[0]['parameters']:,}", name, *times, *ratios, *sent]) + " |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few steps; writes to distributed-quick.*")
    parser.add_argument("--out", type=Path, default=None, help="JSON file; the page is beside it")
    arguments = parser.parse_args()
    rounds, warm_up = (2, 3) if arguments.quick else (15, 70)  # a window of β = 0.9 has 66 batches
    out = arguments.out or RESULTS / f"distributed{'-quick' * arguments.quick}.json"
    machine, cells = describe(torch.device("cpu")), []
    with tempfile.TemporaryDirectory() as directory:
        for size in SIZES:
            mp.spawn(measure, (size, directory, rounds, warm_up), nprocs=size)
            cells += json.loads(Path(directory, f"{size}.json").read_text("utf-8"))
    command = "PYTHONPATH=src python benchmarks/distributed.py" + "".join(f" {word}" for word in sys.argv[1:])
    results = dict(command=command, machine=machine, cells=cells)
    out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    out.with_suffix(".md").write_text(page(results), "utf-8")


if __name__ == "__main__":
    main()
