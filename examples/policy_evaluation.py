"""How much is each state of Mountain Car worth, under a policy that pushes the way the car is rolling?

A small network learns it by TD(0) from single steps out of uniformly drawn states, with momentum as it is, with its
staleness corrected along the diagonal, and fully. Car and policy are deterministic, so that the true value of a
state is a rollout, and the error of what was learned can be measured exactly. For one seed every method starts from
the same weights and sees the same data.

    python examples/policy_evaluation.py
    python examples/policy_evaluation.py --lr 0.5 --unbounded   # what the trust bound is for
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import unstale

# ------------------------------------------------------------------------------------------------ Mountain Car

# As in Gymnasium's MountainCar-v0.
MIN_POSITION, MAX_POSITION, MAX_SPEED, GOAL = -1.2, 0.6, 0.07, 0.5
FORCE, GRAVITY = 0.001, 0.0025
REWARD, GAMMA = -0.1, 0.95


def follow_policy(state: Tensor) -> tuple[Tensor, Tensor]:
    """One step of every car in ``state [..., 2]`` (position, velocity): where it gets to, and whether that ends it."""
    position, velocity = state.unbind(-1)
    push = torch.where(velocity < 0, -FORCE, FORCE)
    velocity = (velocity + push - GRAVITY * torch.cos(3 * position)).clamp(-MAX_SPEED, MAX_SPEED)
    position = (position + velocity).clamp(MIN_POSITION, MAX_POSITION)
    velocity = torch.where((position == MIN_POSITION) & (velocity < 0), 0.0, velocity)
    return torch.stack([position, velocity], -1), position >= GOAL


def true_value(state: Tensor) -> Tensor:
    """The discounted sum of rewards from each state to the goal, by a rollout."""
    value = torch.zeros_like(state[..., 0])
    running = torch.ones_like(value)
    discount = 1.0
    while running.any() and discount > 1e-16:
        value += discount * REWARD * running
        state, terminated = follow_policy(state)
        running *= ~terminated
        discount *= GAMMA
    return value


def uniform_states(count: int, seed: int) -> Tensor:
    """States short of the goal, in double precision so that rollouts do not depend on rounding."""
    generator = torch.Generator().manual_seed(seed)
    unit = torch.rand(count, 2, generator=generator, dtype=torch.float64)
    lowest = torch.tensor([MIN_POSITION, -MAX_SPEED], dtype=torch.float64)
    highest = torch.tensor([GOAL, MAX_SPEED], dtype=torch.float64)
    return lowest + (highest - lowest) * unit


def inputs(state: Tensor) -> Tensor:
    """What the network sees: position and velocity, each from about -1 to 1."""
    middle, half = (MIN_POSITION + MAX_POSITION) / 2, (MAX_POSITION - MIN_POSITION) / 2
    position, velocity = state.unbind(-1)
    return torch.stack([(position - middle) / half, velocity / MAX_SPEED], -1).float()


# ---------------------------------------------------------------------------------------------------- learning

METHODS: dict[str, dict[str, Any]] = {
    "momentum": dict(correction="none"),
    "diagonal correction": dict(correction="diagonal"),
    "full correction": dict(correction="auto"),
}
UNBOUNDED: dict[str, dict[str, Any]] = {"full, no trust bound": dict(correction="auto", trust=None)}
BETAS = (0.9, 0.99)
BATCH, POINTS = 16, 50


class Run(NamedTuple):
    """One training run."""

    method: str
    beta: float
    seed: int
    steps: int
    lr: float

    @property
    def marks(self) -> list[int]:
        """The steps at which the error is measured."""
        return sorted({round(self.steps * point / POINTS) for point in range(POINTS + 1)})


def train(run: Run, advance: Callable[[int], None]) -> list[float]:
    """Learn, telling ``advance`` how many steps were made, and return the mean squared error at every mark."""
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    width = 16
    model = nn.Sequential(
        nn.Linear(2, width), nn.LeakyReLU(),
        nn.Linear(width, width), nn.LeakyReLU(),
        nn.Linear(width, width), nn.LeakyReLU(),
        nn.Linear(width, 1),
    ).float()  # fmt: skip
    optimizer = unstale.CorrectedSGD(model, lr=run.lr, beta=run.beta, **(METHODS | UNBOUNDED)[run.method])

    state = uniform_states(run.steps * BATCH, run.seed).view(run.steps, BATCH, 2)
    following, terminated = follow_policy(state)
    states, followings, ends = inputs(state), inputs(following), terminated.float()
    reward = torch.full((BATCH,), REWARD, dtype=torch.float32)

    grid = uniform_states(2000, seed=2**31)
    probe, truth = inputs(grid), true_value(grid).float()
    errors: list[float] = []
    done = 0
    for mark in run.marks:
        for step in range(done, mark):
            value, next_value = model(states[step]).squeeze(-1), model(followings[step]).squeeze(-1)
            target = unstale.targets.td(reward, next_value, ends[step], GAMMA)
            try:
                optimizer.backward(value, target, loss="squared")
            except FloatingPointError:  # diverged: there is nothing left to learn
                advance(run.steps - done)
                return errors + [math.inf] * (len(run.marks) - len(errors))
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            errors.append(float((model(probe).squeeze(-1) - truth).square().mean()))
        advance(mark - done)
        done = mark
    return errors


# ------------------------------------------------------------------------------------------------ many runs

_made: Any = None  # steps made so far, shared with the worker processes


def _share(counter: Any) -> None:
    global _made
    _made = counter


def _count(steps: int) -> None:
    with _made.get_lock():
        _made.value += steps


def _work(run: Run) -> list[float]:
    return train(run, _count)


def train_all(runs: list[Run], workers: int) -> dict[Run, list[float]]:
    """The errors of every run, with a progress bar meanwhile."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        bar = progress.add_task("steps", total=sum(run.steps for run in runs))
        if workers == 1:
            return {run: train(run, lambda steps: progress.advance(bar, steps)) for run in runs}
        spawn = multiprocessing.get_context("spawn")
        counter = spawn.Value("q", 0)
        with spawn.Pool(workers, _share, (counter,)) as pool:
            pending = pool.map_async(_work, runs, chunksize=1)
            while not pending.ready():
                progress.update(bar, completed=counter.value)
                time.sleep(0.1)
            progress.update(bar, completed=counter.value)
            return dict(zip(runs, pending.get(), strict=True))


# ------------------------------------------------------------------------------------------------- reporting


def table(results: dict[Run, list[float]], methods: Iterable[str]) -> Any:
    """Final errors: mean over seeds, and the lowest and highest of them. Diverged runs are counted, never dropped."""
    from rich.table import Table

    seeds = len({run.seed for run in results})
    steps, lr = next((run.steps, run.lr) for run in results)
    made = Table(title=f"Mean squared error after {steps:,} steps, lr {lr:g}: mean of {seeds} seeds (lowest–highest)")
    made.add_column("method")
    for beta in BETAS:
        made.add_column(f"β = {beta:g}", justify="right")
    for method in methods:
        cells = []
        for beta in BETAS:
            final = [errors[-1] for run, errors in results.items() if (run.method, run.beta) == (method, beta)]
            lost = sum(not math.isfinite(error) for error in final)
            spread = f"{mean(final):.4f} ({min(final):.4f}–{max(final):.4f})"
            cells.append(f"{lost} of {len(final)} diverged" if lost else spread)
        made.add_row(method, *cells)
    return made


# Okabe and Ito's colours, which people with any colour vision can tell apart, and a dash pattern for each as well.
LOOKS = [("#000000", (0, (1, 1.2))), ("#E69F00", (0, (5, 1.5))), ("#0072B2", "-"), ("#CC79A7", "-.")]


def plot(results: dict[Run, list[float]], methods: Iterable[str], path: Path) -> None:
    """Error against steps, one panel for each β."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(BETAS), figsize=(9, 3.8), sharey=True, layout="constrained")
    for panel, beta in zip(panels, BETAS, strict=True):
        for method, (colour, dashes) in zip(methods, LOOKS, strict=False):
            chosen = {run: errors for run, errors in results.items() if (run.method, run.beta) == (method, beta)}
            steps = next(iter(chosen)).marks
            by_mark = list(zip(*chosen.values(), strict=True))
            panel.plot(steps, [mean(e) for e in by_mark], color=colour, linestyle=dashes, linewidth=2, label=method)
            panel.fill_between(
                steps, [min(e) for e in by_mark], [max(e) for e in by_mark], color=colour, alpha=0.15, linewidth=0
            )
        panel.set_title(f"β = {beta:g}")
        panel.set_xlabel("optimisation steps")
        panel.set_yscale("log")
        panel.grid(True, which="major", alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0)
    panels[0].set_ylabel("mean squared value error")
    panels[0].legend(frameon=False)
    seeds = len({run.seed for run in results})
    figure.suptitle(f"TD(0) on Mountain Car: mean of {seeds} seeds, band from lowest to highest", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(
    steps: int = 4000, seeds: int = 3, lr: float = 0.1, unbounded: bool = False, workers: int | None = None,
    path: Path = Path("runs/policy_evaluation.png"),
) -> dict[Run, list[float]]:  # fmt: skip
    """Train every method, print a table, and leave a plot at ``path``."""
    missing = [name for name in ("matplotlib", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"this example needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    from rich.console import Console

    methods = list(METHODS | (UNBOUNDED if unbounded else {}))
    # The slowest first, so that no core is left idle at the end.
    runs = [Run(m, beta, seed, steps, lr) for m in methods[::-1] for beta in BETAS[::-1] for seed in range(seeds)]
    results = train_all(runs, min(len(runs), workers or os.cpu_count() or 1))
    console = Console()
    console.print(table(results, methods))
    plot(results, methods, path)
    console.print(f"plot: {path}", soft_wrap=True, highlight=False)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=4000, help="optimisation steps of each run (default: 4000)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind (default: 3)")
    parser.add_argument("--lr", type=float, default=0.1, help="learning rate (default: 0.1)")
    parser.add_argument("--unbounded", action="store_true", help="also correct fully without the trust bound")
    parser.add_argument("--workers", type=int, help="processes (default: one a core)")
    chosen = parser.parse_args()
    main(chosen.steps, chosen.seeds, chosen.lr, chosen.unbounded, chosen.workers)
