"""The suites of benchmarks, each a list of cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from cell import Row, measure
from data import GAMMA, pool
from models import ACTIONS, FRAMES, INPUTS, dqn, fully_connected, mlp, size
from plain import PlainCorrectedSGD
from steps import Candidate
from torch import nn

import unstale

Suite = Callable[[torch.device, bool], dict[str, Any]]

# Speed-up of `correction="auto"` over the plain implementation to reach, by width; one CPU thread.
MIN_SPEEDUP_OVER_PLAIN = {32: 4.0, 64: 50.0}


class Network(NamedTuple):
    """A fully connected network, with several outputs for Q-learning, and the sizes of its batches."""

    widths: tuple[int, ...]
    batches: tuple[int, ...]
    activation: type[nn.Module] = nn.ReLU


ADAM_NETWORKS = (
    Network((4, 120, 84, 2), (128,)),  # CleanRL's DQN
    Network((8, 64, 64, 1), (256,)),
    Network((4, 16, 16, 1), (1, 16)),
    Network((4, 32, 32, 1), (1, 16)),
    Network((4, 64, 64, 1), (1, 16)),
    Network((2, 16, 16, 16, 1), (1, 16), nn.LeakyReLU),  # the laboratory's
)
# Samples enter a reservoir or a dense matrix every few steps. All these intervals divide 100.
ADAM_TURN = 100


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


def run_adam(device: torch.device, quick: bool) -> dict[str, Any]:
    """Measure the cost of ``CorrectedAdam`` with default settings, and of other corrections, relative to Adam.

    All settings that are not named are defaults, ``β`` included. On a CPU networks are small, and there is one thread;
    on CUDA the network is DQN's.
    """
    if device.type == "cuda":
        return dict(cells=_adam_on_dqn(device, quick))
    with _one_thread():
        return dict(cells=_adam_on_small_networks(device, quick), threads=1)


def _adam_on_small_networks(device: torch.device, quick: bool) -> list[dict[str, Any]]:
    candidates = [
        Candidate("Adam", kind="Adam"),
        Candidate("default", "auto", kind="Adam"),
        Candidate("none", "none", kind="Adam"),
        Candidate("diagonal", "diagonal", kind="Adam"),
        *_reservoirs((256,) if quick else (256, 1024, 4096)),
    ]
    cells = []
    for network in ADAM_NETWORKS[:1] if quick else ADAM_NETWORKS:
        for samples in network.batches:
            torch.manual_seed(0)
            model = fully_connected(*network.widths, activation=network.activation).to(device)
            actions = network.widths[-1] if network.widths[-1] > 1 else None
            batches = pool(samples, network.widths[:1], device, actions, greedy=True)
            rows = measure(candidates, model, batches, None, seconds=3 if quick else 20, steps_per_turn=ADAM_TURN)
            name = "-".join(map(str, network.widths))
            cells.append(_cell(dict(network=name, parameters=size(model), batch=samples), rows))
    return cells


def _adam_on_dqn(device: torch.device, quick: bool) -> list[dict[str, Any]]:
    candidates = [
        Candidate("Adam", kind="Adam"),
        Candidate("default", "auto", kind="Adam"),
        *_reservoirs((256,) if quick else (256, 1024, 4096)),
        Candidate("window, H = 20", "window", kind="Adam", horizon=20),
    ]
    torch.manual_seed(0)
    model = dqn().to(device)
    batches = pool(32, FRAMES, device, ACTIONS, batches=4, greedy=True)
    cells = []
    for precision in ("float32", "TF32"):
        with tf32(precision == "TF32", device):
            rows = measure(candidates, model, batches, None, seconds=5 if quick else 60, steps_per_turn=ADAM_TURN)
        where = dict(network="DQN", parameters=size(model), batch=32, precision=precision)
        cells.append(_cell(where, rows))
    return cells


def _reservoirs(slots: Sequence[int]) -> list[Candidate]:
    return [Candidate(f"{number:,} slots", "reservoir", kind="Adam", slots=number) for number in slots]


SUITES: dict[str, Suite] = {"adam": run_adam, "mlp": run_mlp, "dqn": run_dqn, "plain": run_plain}


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
