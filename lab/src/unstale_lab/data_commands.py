"""The commands ``unstale-lab data``: experts, recordings and images."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

from tyro.conf import Positional, arg, subcommand

from .command_options import STDERR, DataPath, Device, Jobs, Seed, check_jobs, check_seed, set_data_folder, warn
from .errors import UserError

if TYPE_CHECKING:
    from .atari.ppo import Progress as PPOProgress


def data_expert(
    problem: Positional[Annotated[str, arg(metavar="PROBLEM", help="acrobot, cartpole, or an Atari game: ms_pacman")]],
    /,
    path: Annotated[
        Path | None, arg(metavar="FILE", help="the file of the expert; if not given, that of the package")
    ] = None,
    seed: Seed = 0,
    values_only: Annotated[
        bool, arg(help="keep the expert, and estimate only the values of its policy (for a game: its score)")
    ] = False,
    steps: Annotated[int | None, arg(metavar="N", help="Atari only: number of training steps")] = None,
    minutes: Annotated[float | None, arg(metavar="N", help="Atari only: time limit of the training")] = None,
    begin_with: Annotated[Path | None, arg(metavar="FILE", help="Atari only: an expert to continue from")] = None,
    device: Device = "cpu",
) -> None:
    """Train the expert policy of a problem: acrobot, cartpole, or an Atari game."""
    from .cross_entropy_search import TASKS, estimate_values, train_and_save

    check_seed(seed)
    options = {"steps": steps, "minutes": minutes, "begin_with": str(begin_with) if begin_with else None}
    chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    given = [f"--{name.replace('_', '-')}" for name in chosen] + (["--device"] if device != "cpu" else [])
    if given and (problem in TASKS or values_only):
        raise UserError(f"{' and '.join(given)} can only be given when an expert for an Atari game is trained")
    if problem not in TASKS:
        _check_trainable(problem, " and ".join(TASKS))
    if problem in TASKS:
        about = estimate_values(problem, path) if values_only else train_and_save(problem, path, seed)
    elif values_only:
        from .atari.expert_training import update_score
        from .problems.policies import expert_path

        about = update_score(problem, path or expert_path(problem), seed)
    else:
        about = _train_atari_expert(problem, path, device, seed=seed, **chosen)
    _print_table(about)


def _check_trainable(game: str, others: str) -> None:
    from .atari.games import check_game

    try:
        check_game(game)
    except UserError as error:
        raise UserError(f"cannot train an expert for {game!r}, only for {others} and Atari games: {error}") from error


def _train_atari_expert(game: str, path: Path | None, device: str, **settings: Any) -> dict[str, str]:
    from .atari.expert_training import train_expert
    from .atari.ppo import Settings
    from .engine.sweep import check_device
    from .problems.policies import expert_path
    from .progress import StatusLine

    with StatusLine(STDERR) as line:
        return train_expert(
            Settings(game=game, **settings),
            path or expert_path(game),
            check_device(device),
            lambda now: line.update(_format_progress(now)),
            warn=warn,
        )


def _format_progress(now: PPOProgress) -> str:
    score = "no game finished yet" if math.isnan(now.score) else f"score {now.score:,.0f}"
    after = "; playing whole games for the score" if now.done == 1 else ""
    return f"{now.steps:,} steps in {now.seconds:,.0f} s, {score}, {now.done:.0%} done{after}"


def data_atari(
    game: Positional[Annotated[str, arg(metavar="GAME", help="ms_pacman, or another game with an expert")]],
    /,
    expert: Annotated[
        Path | None, arg(metavar="FILE", help="an expert of `data expert`, or a .zip of Stable-Baselines3")
    ] = None,
    transitions: Annotated[int, arg(metavar="N", help="size of the training set")] = 100_000,
    test: Annotated[int, arg(metavar="N", help="size of the test set")] = 10_000,
    states: Annotated[int, arg(metavar="N", help="number of test states with estimated true values")] = 1_000,
    continuations: Annotated[int, arg(metavar="N", help="number of games continued from each of these states")] = 16,
    seed: Seed = 0,
    jobs: Jobs = 0,
    data: DataPath = None,
) -> None:
    """Record games of an expert, and estimate the true values of some states by Monte Carlo continuations."""
    from .atari.actor import load_expert
    from .atari.dataset import make_dataset
    from .problems.data_folder import data_folder
    from .problems.policies import expert_path
    from .processes import usable_cores
    from .progress import StatusLine

    check_seed(seed)
    set_data_folder(data)
    policy = load_expert(expert or expert_path(game), game)
    with StatusLine(STDERR) as line:
        about = make_dataset(
            game,
            policy,
            data_folder(game),
            transitions=transitions,
            test=test,
            states=states,
            count=continuations,
            seed=seed,
            expert_file=expert,
            jobs=check_jobs(jobs) or usable_cores(),
            progress=lambda what, done, total: line.update(f"{what}: {done:,} of {total:,}"),
        )
    _print_table(about)


def data_svhn(data: DataPath = None) -> None:
    """Download SVHN, 246 MB, from its official site."""
    from .problems.data_folder import data_folder
    from .problems.svhn_download import download
    from .progress import StatusLine

    set_data_folder(data)
    with StatusLine(STDERR) as line:
        download(
            data_folder("svhn"),
            lambda name, received, total: line.update(f"{name}: {received >> 20} of {total >> 20 or '?'} MiB"),
        )


DATA_COMMANDS: dict[str, Callable[..., Any]] = {"atari": data_atari, "svhn": data_svhn, "expert": data_expert}

DataCommand = Union[  # noqa: UP007  tyro reads it at run time
    Annotated[Any, subcommand(name="atari", constructor=DATA_COMMANDS["atari"])],
    Annotated[Any, subcommand(name="svhn", constructor=DATA_COMMANDS["svhn"])],
    Annotated[Any, subcommand(name="expert", constructor=DATA_COMMANDS["expert"])],
]


def data(command: Annotated[DataCommand, arg(name="")]) -> None:
    """Make or download the data and expert policies that problems need."""


def _print_table(about: dict[str, str]) -> None:
    for name, value in about.items():
        print(f"{name:28} {value}")
