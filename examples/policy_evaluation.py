"""TD(0) policy evaluation on Mountain Car, for a policy that pushes in the direction of motion.

A small network is trained on single transitions from uniform random states, with plain momentum, with the diagonal and
with the full correction. Car and policy are deterministic, so that a rollout gives the exact value of a state. For one
seed, every method starts from the same weights and sees the same data.

    python examples/policy_evaluation.py
    python examples/policy_evaluation.py --lr 0.5 --unscaled --unbounded
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
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


def inputs(state: Tensor, scaled: bool = True) -> Tensor:
    """What the network sees: position and velocity, each brought to about -1 to 1 if ``scaled``."""
    if not scaled:
        return state.float()
    middle, half = (MIN_POSITION + MAX_POSITION) / 2, (MAX_POSITION - MIN_POSITION) / 2
    position, velocity = state.unbind(-1)
    return torch.stack([(position - middle) / half, velocity / MAX_SPEED], -1).float()


# ---------------------------------------------------------------------------------------------------- learning

METHODS: dict[str, dict[str, Any]] = {
    "momentum": dict(correction="none"),
    "diagonal correction": dict(correction="diagonal"),
    "full correction": dict(correction="auto"),
    "full, no trust bound": dict(correction="auto", trust=None),
}
BETAS = (0.9, 0.99)
BATCH, POINTS = 16, 50


class Run(NamedTuple):
    """One training run."""

    method: str
    lr: float
    beta: float
    seed: int
    steps: int
    scaled: bool = True

    @property
    def setting(self) -> tuple[float, float]:
        return self.lr, self.beta

    @property
    def marks(self) -> list[int]:
        """The steps at which the error is measured."""
        return sorted({round(self.steps * point / POINTS) for point in range(POINTS + 1)})


Results = dict[Run, list[float]]


def train(run: Run, advance: Callable[[int], None]) -> list[float]:
    """Train, and return the mean squared error at every mark. ``advance`` is called with the number of steps made."""
    torch.set_num_threads(1)
    torch.manual_seed(run.seed)
    width = 16
    model = nn.Sequential(
        nn.Linear(2, width), nn.LeakyReLU(),
        nn.Linear(width, width), nn.LeakyReLU(),
        nn.Linear(width, width), nn.LeakyReLU(),
        nn.Linear(width, 1),
    ).float()  # fmt: skip
    optimizer = unstale.CorrectedSGD(model, lr=run.lr, beta=run.beta, **METHODS[run.method])

    state = uniform_states(run.steps * BATCH, run.seed).view(run.steps, BATCH, 2)
    following, terminated = follow_policy(state)
    states, followings, ends = inputs(state, run.scaled), inputs(following, run.scaled), terminated.float()
    reward = torch.full((BATCH,), REWARD, dtype=torch.float32)

    held_out = uniform_states(2000, seed=2**31)
    held_out_inputs, truth = inputs(held_out, run.scaled), true_value(held_out).float()
    errors: list[float] = []
    made = 0
    for mark in run.marks:
        for step in range(made, mark):
            value, next_value = model(states[step]).squeeze(-1), model(followings[step]).squeeze(-1)
            target = unstale.targets.td(reward, next_value, ends[step], GAMMA)
            try:
                optimizer.backward(value, target, loss="squared")
            except FloatingPointError:  # diverged: there is nothing left to learn
                advance(run.steps - made)
                return errors + [math.inf] * (len(run.marks) - len(errors))
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            errors.append(float((model(held_out_inputs).squeeze(-1) - truth).square().mean()))
        advance(mark - made)
        made = mark
    return errors


# ------------------------------------------------------------------------------------------------- many runs

_made: Any = None  # steps made so far, shared with the worker processes


def _share(counter: Any) -> None:
    global _made
    _made = counter


def _count(steps: int) -> None:
    with _made.get_lock():
        _made.value += steps


def _work(run: Run) -> list[float]:
    return train(run, _count)


def train_all(runs: list[Run], workers: int) -> Results:
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


def curves(results: Results, method: str, setting: tuple[float, float]) -> list[list[float]]:
    """The errors of one method at one setting, a list for each seed."""
    return [errors for run, errors in results.items() if run.method == method and run.setting == setting]


def final(errors: list[float]) -> float:
    """The mean over the last tenth of a run: single measurements jump."""
    return mean(errors[-max(1, POINTS // 10) :])


def _seeds(results: Results) -> int:
    return len({run.seed for run in results})


def comparison(results: Results, methods: list[str], settings: list[tuple[float, float]]) -> Any:
    """Final errors as a table. Diverged runs are counted, never dropped."""
    from rich.table import Table

    made = Table(
        title="Mean squared error of the values",
        caption=f"mean of {_seeds(results)} seeds, lowest–highest; last tenth of {next(iter(results)).steps:,} steps",
        show_lines=True,
    )
    for name in ("lr", "β", *methods):
        made.add_column(name, justify="right")
    for setting in settings:
        finals = {method: [final(errors) for errors in curves(results, method, setting)] for method in methods}
        best = min(finals, key=lambda method: mean(finals[method]))
        made.add_row(*(f"{number:g}" for number in setting), *(_cell(finals[m], m == best) for m in methods))
    return made


def _cell(errors: list[float], is_best: bool) -> str:
    lost = sum(not math.isfinite(error) for error in errors)
    if lost:
        return f"{lost} of {len(errors)}\ndiverged"
    middle = f"{mean(errors):.4f}"
    return f"{f'[bold]{middle}[/bold]' if is_best else middle}\n{min(errors):.4f}–{max(errors):.4f}"


def paired(results: Results) -> str:
    """How often the full correction ended with a lower error than momentum, from the same weights and data."""
    runs = [run for run in results if run.method == "full correction"]
    lower = sum(final(results[run]) < final(results[run._replace(method="momentum")]) for run in runs)
    return f"full correction ended below momentum in {lower} of {len(runs)} pairs of runs"


# The colour-blind safe palette of Okabe and Ito, with a dash pattern per method.
LOOKS = {
    "momentum": ("#000000", (0, (1, 1.2))),
    "diagonal correction": ("#E69F00", (0, (5, 1.5))),
    "full correction": ("#0072B2", "-"),
    "full, no trust bound": ("#CC79A7", "-."),
}


def plot(results: Results, methods: list[str], settings: list[tuple[float, float]], path: Path) -> None:
    """Error against steps, a row of panels for each learning rate and a column for each β."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullFormatter

    rows = len(settings) // len(BETAS)
    figure, panels = pyplot.subplots(
        rows, len(BETAS), figsize=(9, 0.8 + 2.6 * rows), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    steps = next(iter(results)).marks
    for panel, setting in zip(panels.flat, settings, strict=True):
        for method in methods:
            by_mark = list(zip(*curves(results, method, setting), strict=True))
            colour, dashes = LOOKS[method]
            panel.plot(steps, [mean(e) for e in by_mark], color=colour, linestyle=dashes, linewidth=1.8, label=method)
            panel.fill_between(
                steps, [min(e) for e in by_mark], [max(e) for e in by_mark], color=colour, alpha=0.15, linewidth=0
            )
        panel.set_title("learning rate {:g}, β = {:g}".format(*setting), fontsize=10)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.grid(True, alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        panel.margins(x=0)
    for panel in panels[-1]:
        panel.set_xlabel("optimisation steps")
    for panel in panels[:, 0]:
        panel.set_ylabel("mean squared error")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(
        f"TD(0) policy evaluation on Mountain Car (mean of {_seeds(results)} seeds, band from lowest to highest)",
        fontsize=11,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(
    steps: int = 2000, seeds: int = 3, lrs: Sequence[float] = (0.1, 0.5), *, unbounded: bool = False,
    scaled: bool = True, workers: int | None = None, path: Path = Path("runs/policy_evaluation.png"),
) -> Results:  # fmt: skip
    """Train every method, print a table, and leave a plot at ``path``."""
    missing = [name for name in ("matplotlib", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        raise SystemExit(f"this example needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    from rich.console import Console

    methods = [method for method, options in METHODS.items() if unbounded or "trust" not in options]
    settings = [(lr, beta) for lr in lrs for beta in BETAS]
    # The slowest methods first, so that no core is left idle at the end.
    runs = [
        Run(m, *setting, seed, steps, scaled) for m in methods[::-1] for setting in settings for seed in range(seeds)
    ]
    results = train_all(runs, min(len(runs), workers or os.cpu_count() or 1))
    console = Console()
    console.print(comparison(results, methods, settings))
    console.print(paired(results))
    plot(results, methods, settings, path)
    console.print(f"plot: {path}", soft_wrap=True, highlight=False)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000, help="optimisation steps of each run (default: 2000)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each kind (default: 3)")
    parser.add_argument("--lr", type=float, nargs="+", default=[0.1, 0.5], help="learning rates (default: 0.1 0.5)")
    parser.add_argument("--unscaled", action="store_true", help="do not scale position and velocity")
    parser.add_argument("--unbounded", action="store_true", help="also run the full correction without the trust bound")
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    args = parser.parse_args()
    main(args.steps, args.seeds, args.lr, unbounded=args.unbounded, scaled=not args.unscaled, workers=args.workers)
