"""The command ``unstale evaluate``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from . import evaluate
from .errors import EvaluationError, MissingPackageError, require

EXAMPLES = """examples:
  unstale evaluate CartPole-v1 ppo_cartpole.zip
  unstale evaluate Pendulum-v1 my_module:policy --gamma 0.98 --episodes 200
  unstale evaluate logged.parquet sac.zip --env Pendulum-v1     another policy than the one that made the data
  unstale evaluate logged.npz logged                            the policy that made the data

columns of logged transitions: observations, actions, rewards, terminated, and optionally truncated, next_observations
"""


def add_parser(commands: Any) -> None:
    """Add the command to ``commands``, the subparsers of ``unstale``."""
    parser = commands.add_parser(
        "evaluate",
        help="how good is this policy?",
        description="Learn the value function of a policy by corrected TD, and say how good its start states are, with "
        "an interval. Writes the value networks and a report.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(function=main, parser=parser)
    parser.add_argument("source", help="a Gymnasium id, or logged transitions (.npz, .parquet, .h5, minari:NAME)")
    parser.add_argument(
        "policy",
        help="random, module:function, a .zip of Stable-Baselines3, a .pt2 of torch.export, or logged (the policy that "
        "made the logged transitions)",
    )
    add: Callable[..., Any] = parser.add_argument
    add("--env", help="with logged transitions: run the policy here for a Monte Carlo value")
    add("--gamma", type=float, default=0.99, help="discount (default: %(default)s)")
    add("--episodes", type=int, default=100, help="episodes to run (default: %(default)s)")
    add("--level", type=float, default=0.95, help="of the interval (default: %(default)s)")
    add(
        "--mode", choices=("replay", "stream"), default="replay", help="how transitions are used (default: %(default)s)"
    )
    add("--n-step", type=int, default=1, help="rewards before bootstrapping (default: %(default)s)")
    add("--steps", type=int, default=2000, help="training steps of a replay (default: %(default)s)")
    add("--batch", type=int, default=64, help="transitions of a step (default: %(default)s)")
    add("--lr", type=float, default=1e-2, help="learning rate, annealed to zero (default: %(default)s)")
    add("--networks", type=int, default=5, help="trained together (default: %(default)s)")
    add("--width", type=int, default=16, help="of two hidden layers (default: %(default)s)")
    add("--correction", default="auto", help="of CorrectedAdam; none is Adam (default: %(default)s)")
    add("--stochastic", action="store_true", help="sample actions instead of taking the most likely one")
    add("--trust-pickle", action="store_true", help="unpickle the policy's file, which runs code stored in it")
    add("--time-limit", type=int, help="cut episodes after this many steps, and bootstrap there")
    add("--max-episode-steps", type=int, default=10_000, help="longer episodes are an error (default: %(default)s)")
    add("--seed", type=int, default=0, help="of episodes, networks and batches (default: %(default)s)")
    add("--out", default="evaluation", help="folder for value networks and report (default: %(default)s)")


def main(arguments: argparse.Namespace) -> int:
    """Evaluate, print the result, and return the exit status: 2 for bad input."""
    options = {name: value for name, value in vars(arguments).items() if name not in ("function", "parser", "command")}
    try:
        with _bar() as progress:
            found = evaluate(**options, progress=progress)
    except (EvaluationError, MissingPackageError) as error:
        print(f"unstale evaluate: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(found.summary())
    print(f"report                      {arguments.out}/report.html")
    return 0


@contextmanager
def _bar() -> Any:
    """A live bar on stderr, with the current estimate; nothing before there is progress."""
    progress = require("rich.progress")
    console = require("rich.console").Console(stderr=True)
    columns = (
        progress.TextColumn("{task.description:<17}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[note]}"),
    )
    bar = progress.Progress(*columns, console=console)
    tasks: dict[str, Any] = {}

    def update(phase: str, done: int, total: int, note: str) -> None:
        if not tasks:
            bar.start()
        if phase not in tasks:
            tasks[phase] = bar.add_task(phase, total=total, note=note)
        bar.update(tasks[phase], completed=done, total=total, note=note)

    try:
        yield update
    finally:
        if tasks:
            bar.stop()
