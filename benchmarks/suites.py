"""The suites of benchmarks, each a list of cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from cell import Row, measure
from data import GAMMA, pool
from models import ACTIONS, FRAMES, INPUTS, dqn, mlp, size
from plain import PlainCorrectedSGD
from steps import Candidate

import unstale

Suite = Callable[[torch.device, bool], dict[str, Any]]

# Speed-up of `correction="auto"` over the plain implementation to reach, by width; one CPU thread.
MIN_SPEEDUP_OVER_PLAIN = {32: 4.0, 64: 50.0}


def run_mlp(device: torch.device, quick: bool) -> dict[str, Any]:
    """Measure the cost of each correction relative to SGD on small networks, by width, batch and β."""
    cells = []
    for width in (16, 64) if quick else (16, 64, 256, 1024):
        for samples in (16,) if quick else (1, 16, 64):
            for beta in (0.9,) if quick else (0.9, 0.99):
                # For β = 0.99 the oracle has the paper's 200 batches; the default of 688 would take 3 times longer.
                horizon = unstale.paper_horizon(beta) if beta > 0.9 else None
                candidates = [
                    Candidate("SGD"),
                    Candidate("diagonal", "diagonal"),
                    Candidate("dense", "dense"),
                    Candidate("window", "window"),
                    Candidate("oracle", "oracle", horizon=horizon),
                ]
                torch.manual_seed(0)
                model = mlp(width).to(device)
                batches = pool(samples, [INPUTS], device)
                rows = measure(candidates, model, batches, beta, seconds=2 if quick else 5)
                where = dict(width=width, parameters=size(model), batch=samples, beta=beta)
                cells.append(_cell(where, rows))
    return dict(cells=cells)


def run_dqn(device: torch.device, quick: bool) -> dict[str, Any]:
    """Measure the cost of the full correction on DQN's network (n = 4.8 M), for which ζ is too large."""
    candidates = [
        Candidate("SGD"),
        Candidate("diagonal", "diagonal"),
        Candidate("window, H = 20", "window", horizon=20),
    ]
    if not quick:
        candidates += [
            Candidate("window, H = 46", "window", horizon=46),
            Candidate("oracle, h = 20", "oracle", horizon=20),
            Candidate("dense", "dense"),
            Candidate("Adam", kind="Adam"),
            Candidate("CorrectedAdam, window, H = 20", "window", kind="Adam", horizon=20),
        ]
    cells = []
    torch.manual_seed(0)
    model = dqn().to(device)
    samples = 2 if quick else 32
    batches = pool(samples, FRAMES, device, ACTIONS, batches=4)
    for precision in ("float32", "TF32") if device.type == "cuda" else ("float32",):
        with tf32(precision == "TF32", device):
            rows = measure(candidates, model, batches, beta=0.9, seconds=2 if quick else 30)
        where = dict(parameters=size(model), batch=samples, beta=0.9, precision=precision)
        cells.append(_cell(where, rows))
    return dict(cells=cells)


def run_plain(device: torch.device, quick: bool) -> dict[str, Any]:
    """Compare the library with a straightforward implementation: one thread, batch 16, β = 0.9."""
    candidates = [
        Candidate("plain", kind="plain"),
        Candidate("auto", "auto"),
        Candidate("dense", "dense"),
        Candidate("window", "window"),
        Candidate("SGD"),
    ]
    cells, targets = [], []
    with _one_thread():
        disagreement = max(_disagreement("dense"), _disagreement("window"))
        for width in (32,) if quick else (32, 64):
            torch.manual_seed(0)
            model = mlp(width).to(device)
            rows = measure(candidates, model, pool(16, [INPUTS], device), beta=0.9, seconds=3 if quick else 20)
            by_name = {row["name"]: row for row in rows}
            for row in rows:
                row["times_faster"] = by_name["plain"]["ms"] / row["ms"]
            cells.append(_cell(dict(width=width, parameters=size(model), batch=16, beta=0.9), rows))
            if device.type == "cpu":
                what = f"speed-up of auto over plain, width {width}, one thread"
                targets.append(_target(what, MIN_SPEEDUP_OVER_PLAIN[width], by_name["auto"]["times_faster"]))
    return dict(cells=cells, targets=targets, disagreement=disagreement, threads=1)


SUITES: dict[str, Suite] = {"mlp": run_mlp, "dqn": run_dqn, "plain": run_plain}


def _cell(where: dict[str, Any], rows: list[Row]) -> dict[str, Any]:
    print(", ".join(f"{key} {what}" for key, what in where.items()), flush=True)
    for row in rows:
        result = f"skipped: {row['skipped']}" if "skipped" in row else f"{row['ms']:9.3f} ms  {row['ratio']:8.2f}"
        print(f"    {row['name']:32} {result}", flush=True)
    return dict(where=where, rows=rows)


def _target(what: str, at_least: float, measured: float) -> dict[str, Any]:
    return dict(what=what, at_least=at_least, measured=measured, met=measured >= at_least)


def _disagreement(correction: str) -> float:
    """Return the relative difference between the plain implementation and ``unstale`` after 30 steps in float64."""
    torch.manual_seed(0)
    model = mlp(8).double()
    alpha, beta = 0.1, 0.9
    plain = PlainCorrectedSGD(model, alpha, beta)
    start = plain.theta.clone()
    optimizer = unstale.CorrectedSGD(model, lr=alpha, beta=beta, correction=correction, trust=None)
    for batch in pool(16, [INPUTS], torch.device("cpu"), batches=30):
        s, s2, r, not_done = (part.double() for part in batch[:4])
        plain.step(s, s2, r, GAMMA, not_done)
        optimizer.backward(model(s).squeeze(-1), r + GAMMA * not_done * model(s2).squeeze(-1))
        optimizer.step()
        optimizer.zero_grad()
    end = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    return float((end - plain.theta).norm() / (plain.theta - start).norm())


@contextmanager
def tf32(allowed: bool, device: torch.device) -> Iterator[None]:
    """Allow or forbid TF32 in matrix products and convolutions."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
