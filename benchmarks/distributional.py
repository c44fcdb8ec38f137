"""What the correction of a distributional value costs, and how good one random entry per row is.

    PYTHONPATH=src python benchmarks/distributional.py             # about 3 minutes; writes results/distributional.md
    PYTHONPATH=src python benchmarks/distributional.py --quick     # prints, writes nothing

Time: training steps of C51 with a target network, in turns in one process with one thread; medians of processor time
(which other processes do not change), relative to the uncorrected step.
Error: ``‖η̂ - η‖ / ‖η‖``, where ``η`` is the exact correction of all past batches along the path of one run of Adam, and
``η̂`` that of a reservoir, or of a window that keeps one random entry of every row.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import machine
import torch
from torch import Tensor, nn

import unstale
from unstale import corrections, losses
from unstale._batch import BackwardCall
from unstale._flat_params import FlatParams
from unstale.per_sample.gradients import Linearization
from unstale.per_sample.linearize import linearize, trace_batch

ACTIONS, GAMMA = 2, 0.99
LOSSES = {"all entries": losses.cross_entropy, "one entry per row": losses.cross_entropy.sampled()}


def network(atoms: int, widths: tuple[int, ...]) -> nn.Sequential:
    """A network with ReLUs; its outputs are the logits of all actions."""
    torch.manual_seed(0)
    sizes = [4, *widths]
    layers = [part for i, o in itertools.pairwise(sizes) for part in (nn.Linear(i, o), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], ACTIONS * atoms))


def c51_batch(net: nn.Module, target_net: nn.Module, atoms: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Logits and targets of random transitions."""
    state = torch.randn(m, 4)
    next_state, reward = 0.7 * state + 0.7 * torch.randn(m, 4), state.sum(-1)
    row, action = torch.arange(m), torch.randint(ACTIONS, (m,))
    logits = net(state).view(m, ACTIONS, -1)[row, action]
    probs = target_net(next_state).view(m, ACTIONS, -1).softmax(-1)
    greedy = (probs * atoms).sum(-1).argmax(-1)
    terminated = torch.rand(m) < 0.1
    return logits, unstale.distributions.c51(reward, probs[row, greedy], terminated, GAMMA, atoms)


# -------------------------------------------------------------------------------------------------------------- time


def make_step(name: str, count: int, m: int) -> Callable[[], None]:
    """A training step: "uncorrected", or the name of a loss."""
    atoms = torch.linspace(-10, 10, count)
    net = network(count, (120, 84))
    target_net = copy.deepcopy(net)
    correction = "none" if name == "uncorrected" else "auto"
    optimizer = unstale.CorrectedAdam(net, lr=1e-3, correction=correction)
    if name != "uncorrected":
        optimizer.follow(target_net)

    def step() -> None:
        logits, target = c51_batch(net, target_net, atoms, m)
        optimizer.backward(logits, target, loss=LOSSES.get(name, losses.cross_entropy))
        optimizer.step()
        optimizer.zero_grad()

    return step


def times(count: int, m: int, rounds: int) -> dict[str, float]:
    """Medians of seconds per step."""
    steps = {name: make_step(name, count, m) for name in ("uncorrected", *LOSSES)}
    found: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            started = time.process_time()
            for _ in range(10):
                step()
            if number:  # the first is a warm-up
                found[name].append((time.process_time() - started) / 10)
    return {name: statistics.median(each) for name, each in found.items()}


# ------------------------------------------------------------------------------------------------------------- error


def errors(count: int, m: int, beta: float, steps: int, slots: tuple[int, ...], seeds: int) -> dict[tuple, float]:
    """The mean relative error over the second half of a run, by loss and slots (0: all rows)."""
    atoms, net = torch.linspace(-10, 10, count), network(count, (16, 16))
    optimizer, params = torch.optim.Adam(net.parameters(), lr=1e-3), FlatParams(list(net.parameters()))
    exact, exact_memory = corrections.Window(steps), {}
    candidates: list[tuple[tuple, corrections.Correction, dict, int]] = [
        (("one entry per row", 0), corrections.Window(steps), {}, seed) for seed in range(seeds)
    ]
    for number in slots:
        for name in LOSSES:
            plan = corrections.plan_reservoir(number, m * count if name == "all entries" else m, beta)
            candidates += [((name, number), corrections.Reservoir(plan, seed), {}, seed) for seed in range(seeds)]
    found: dict[tuple, list[float]] = {key: [] for key, *_ in candidates}
    before = None
    for number in range(steps):
        logits, target = c51_batch(net, net, atoms, m)
        point = params.point()
        moved, before = torch.zeros_like(point) if before is None else point - before, point
        batches = {None: linearized(BackwardCall(None, losses.cross_entropy, 1.0), logits, target, params)}
        for seed in range(seeds):
            call = BackwardCall(None, losses.cross_entropy.sampled(seed), 1.0, number)
            batches[seed] = linearized(call, logits, target, params)
        eta = exact.update(exact_memory, batches[None], moved, beta).clone()
        for key, correction, memory, seed in candidates:
            batch = batches[None if key[0] == "all entries" else seed]
            chosen = correction.choose(memory, batch.samples)
            if chosen is not None:
                batch = batch if chosen.rows is None else batch.select(chosen.rows)
                batch = batch.scaled(chosen.inverse_probability)
            estimate = correction.update(memory, None if chosen is None else batch, moved, beta)
            if number >= steps // 2:
                found[key].append(float((estimate - eta).norm() / eta.norm()))
        optimizer.zero_grad()
        losses.cross_entropy.value(logits, target.detach()).mean().backward()
        optimizer.step()
    return {key: statistics.mean(each) for key, each in found.items()}


def linearized(call: BackwardCall, logits: Tensor, target: Tensor, params: FlatParams) -> Linearization:
    """The per-sample gradients of a batch."""
    batch = call.evaluate(logits, target)
    found = linearize(trace_batch(batch.prediction, batch.target, batch.columns), [params])
    return Linearization(found.gradients[0], batch.slope, batch.curvature)


def report(quick: bool) -> str:
    """Both tables."""
    lines = [
        "# Distributional values: cost and error",
        "",
        "`PYTHONPATH=src python benchmarks/distributional.py`. C51 with two actions; a row is the distribution of one",
        "transition. *All entries*: `losses.cross_entropy`. *One entry per row*: `losses.cross_entropy.sampled()`.",
        "",
        "Processor time of a training step with default settings and a followed target network, network 4-120-84-2k,",
        "relative to the uncorrected one (medians of turns in one process):",
        "",
        "| atoms k | batch | uncorrected | all entries | one entry per row |",
        "| --- | --- | --- | --- | --- |",
    ]
    for count, m in ((11, 32),) if quick else ((11, 32), (51, 32), (51, 128)):
        found = times(count, m, rounds=3 if quick else 15)
        base = found["uncorrected"]
        ratios = " | ".join(f"{found[name] / base:.2f}" for name in LOSSES)
        lines.append(f"| {count} | {m} | {base * 1e3:.2f} ms | {ratios} |")
    count, m, beta, slots = 21, 16, 0.97, (256, 1024)
    found = errors(count, m, beta, 20 if quick else 160, slots, 1 if quick else 3)
    lines += [
        "",
        f"Relative error of η, network 4-16-16-2k, k = {count}, batches of {m}, β = {beta}, mean over 80 steps and",
        "3 seeds (slots are divided for samples that are entries, or rows):",
        "",
        "| | all entries | one entry per row |",
        "| --- | --- | --- |",
        f"| every row kept (window) | 0 | {found['one entry per row', 0]:.2f} |",
    ]
    for number in slots:
        each = " | ".join(f"{found[name, number]:.2f}" for name in LOSSES)
        lines.append(f"| reservoir of {number:,} slots | {each} |")
    about = machine.describe(torch.device("cpu"))
    lines += ["", f"{about['cpu']}, one thread, load {about['load']:.1f}, torch {about['torch']}, {about['date']}.", ""]
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one size, few steps; writes nothing")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", unstale.SlowGradientsWarning)
    text = report(quick)
    print(text)
    if not quick:
        (Path(__file__).parent / "results/distributional.md").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
