"""``unstale-lab``: reproduce the paper's figures, and report what held."""

from __future__ import annotations

import math
import os
import sys
import time
import webbrowser
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import tyro
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from .errors import LabError, UserError, unknown
from .experiment import SCALES, Run, Scale

if TYPE_CHECKING:
    from .atari.ppo import Progress as PlayerProgress

STORE, OUT = Path("runs/store"), Path("runs/report")

Store_ = Annotated[Path, arg(name="store", metavar="FOLDER", help="where finished runs are kept")]
Out = Annotated[Path, arg(name="out", metavar="FOLDER", help="where the report is written")]
Device = Annotated[str, arg(metavar="cpu|cuda", help="where to compute")]
Data = Annotated[
    Path | None,
    arg(metavar="FOLDER", help="where pictures and recordings are kept; else UNSTALE_DATA says it, or it is data"),
]
Figures = Annotated[
    tuple[str, ...], arg(metavar="FIGURE [FIGURE …]", help="fig3, claim24, … or all", help_behavior_hint="")
]
Jobs = Annotated[int, arg(metavar="N", help="processes beside one another; 0: one a core, or one on a GPU")]

_screen = Console(stderr=True, highlight=False)


def list_(store: Store_ = STORE) -> None:
    """Say which figures there are, and what of them is in the store."""
    from .figures import FIGURES
    from .store import Store

    have = Store(store, _warn).ids()
    table = Table("figure", "claims", "what it shows", *SCALES, box=None, pad_edge=False)
    for figure in FIGURES.values():
        counts = []
        for scale in SCALES:
            runs = figure.runs(scale)
            done = sum(run.id in have for run in runs) if have else 0  # no ids of 45,000 runs for nothing
            counts.append(f"{done:,} of {len(runs):,}" if done else f"{len(runs):,}")
        table.add_row(figure.name, ", ".join(map(str, figure.claims)), figure.title, *counts)
    Console(highlight=False).print(table)


def reproduce(
    figures: Positional[Figures],
    /,
    scale: Annotated[
        str,
        arg(
            metavar="|".join(SCALES),
            help="smoke: seconds (pictures: minutes); quick: minutes to an hour; paper: the paper's whole grid",
        ),
    ] = "quick",
    device: Device = "cpu",
    jobs: Jobs = 0,
    store: Store_ = STORE,
    data: Data = None,
) -> None:
    """Run what figures need and the store does not have. Stop it whenever you like: the same command goes on."""
    from .engine.plan import cost
    from .engine.sweep import check_device, missing, run_batches
    from .progress import Bar
    from .reproduce import named, runs_of
    from .store import Store

    _choose_data(data)
    if not figures:
        raise UserError("name at least one figure, or all; `unstale-lab list` says which there are")
    chosen = named(figures)
    workers = _workers(jobs, device)
    runs, kept = runs_of(chosen, _scale(scale)), Store(store, _warn)
    kept.check()
    batches = missing(runs, kept, check_device(device))
    left = sum(map(len, batches))
    _say(f"{', '.join(figure.name for figure in chosen)} at scale {scale}: {len(runs):,} runs, {left:,} to do")
    if not batches:
        return
    kept.require_writable()
    started = time.monotonic()
    with Bar(_screen, left, sum(cost(run) for batch in batches for run in batch)) as bar:
        run_batches(batches, kept, device, workers, bar.update)
    _say(f"{left:,} runs in {time.monotonic() - started:,.0f} s, kept in {store}")


def report(
    store: Store_ = STORE,
    out: Out = OUT,
    open: Annotated[bool, arg(help="show it in a browser", name="open")] = False,
) -> None:
    """Write the report on every figure that the store has whole, and on those that an earlier report in the same folder
    has and the store has not; print where it is."""
    from . import report as pages
    from .reproduce import fresh_summaries
    from .store import Store
    from .summary import read_summaries

    summaries = fresh_summaries(Store(store, _warn), read_summaries(out))
    page = pages.write(summaries, out)
    nothing = f"no figure is whole in {store} yet: `unstale-lab reproduce fig3` makes one"
    _say(pages.answer(summaries) if summaries else nothing)
    print(page)
    if open:
        webbrowser.open(page.resolve().as_uri())


def show(
    run_id: Positional[Annotated[str, arg(metavar="ID", help="or its beginning")]], /, store: Store_ = STORE
) -> None:
    """Say everything about a run: its description, what came of it, and where it was made."""
    from .store import Store

    found = Store(store, _warn).find(run_id)
    record = found.record
    lines = {f.name: getattr(record.run, f.name) for f in fields(Run)}
    lines |= {"parameters": record.parameters, "numbers kept": record.numbers_kept}
    lines |= {"diverged at step": record.diverged_at, "seconds": f"{record.seconds:.3g}"}
    lines |= {f"{name}, first and last": f"{c[0]:.4g}, {c[-1]:.4g}" for name, c in record.curves.items()}
    print(record.run.id)
    for name, value in (lines | found.provenance).items():
        print(f"  {name:28} {value}")


def train_expert(
    problem: Positional[Annotated[str, arg(metavar="PROBLEM", help="acrobot, cartpole, ms_pacman or another game")]],
    /,
    path: Annotated[Path | None, arg(help="the expert's file; that of the package unless given")] = None,
    seed: Annotated[int, arg(help="of all random numbers")] = 0,
    values_only: Annotated[
        bool, arg(help="keep the expert, and estimate the values of its policy anew; of a game, its score")
    ] = False,
    steps: Annotated[int | None, arg(help="of a game: how many to learn from")] = None,
    minutes: Annotated[float | None, arg(help="of a game: learn no longer than this")] = None,
    begin_with: Annotated[Path | None, arg(help="of a game: the file of an expert to go on from")] = None,
    device: Device = "cpu",
) -> None:
    """Train the expert whose values acrobot, cartpole or a game of the Atari 2600 (ms_pacman) asks for."""
    from .experts import TASKS, keep_values, train_and_save

    learning = {"steps": steps, "minutes": minutes, "begin_with": str(begin_with) if begin_with else None}
    chosen: dict[str, Any] = {name: value for name, value in learning.items() if value is not None}
    given = [f"--{name.replace('_', '-')}" for name in chosen] + (["--device"] if device != "cpu" else [])
    if given and (problem in TASKS or values_only):
        raise UserError(f"{' and '.join(given)} can be chosen only where a game is learned")
    if problem not in TASKS:
        _check_player(problem, " and ".join(TASKS))
    if problem in TASKS:
        about = keep_values(problem, path) if values_only else train_and_save(problem, path, seed)
    elif values_only:
        from .atari.experts import score_anew
        from .problems.policies import expert_path

        about = score_anew(problem, path or expert_path(problem), seed)
    else:
        about = _train_player(problem, path, device, seed=seed, **chosen)
    _tell(about)


def _check_player(game: str, others: str) -> None:
    from .atari.games import check_game

    try:
        check_game(game)
    except UserError as error:
        raise UserError(f"cannot train an expert for {game!r}, only for {others} and for games: {error}") from error


def _train_player(game: str, path: Path | None, device: str, **settings: Any) -> dict[str, str]:
    from .atari.experts import train_expert as train_player
    from .atari.ppo import Settings
    from .engine.sweep import check_device
    from .problems.policies import expert_path
    from .progress import Line

    with Line(_screen) as line:
        return train_player(
            Settings(game=game, **settings),
            path or expert_path(game),
            check_device(device),
            lambda now: line.update(_how_far(now)),
        )


def _how_far(now: PlayerProgress) -> str:
    score = "no game over yet" if math.isnan(now.score) else f"score {now.score:,.0f}"
    after = "; whole games are played now for its score" if now.done == 1 else ""
    return f"{now.steps:,} steps in {now.seconds:,.0f} s, {score}, {now.done:.0%} done{after}"


def make_data(
    game: Positional[Annotated[str, arg(metavar="GAME", help="ms_pacman, or another that there is an expert for")]],
    /,
    expert: Annotated[Path | None, arg(help="a file of this project, or a .zip of Stable-Baselines3")] = None,
    transitions: Annotated[int, arg(help="to learn from")] = 100_000,
    test: Annotated[int, arg(help="to be tested on")] = 10_000,
    states: Annotated[int, arg(help="of the test, whose values are estimated")] = 1_000,
    continuations: Annotated[int, arg(help="games played on from each of them")] = 16,
    seed: Annotated[int, arg(help="of all random numbers")] = 0,
    jobs: Jobs = 0,
    data: Data = None,
) -> None:
    """Record an expert's play, and play on many times from some of it to know its true values."""
    from .atari.actor import load_expert
    from .atari.make_data import make_data as make
    from .problems.data_folder import data_folder
    from .problems.policies import expert_path
    from .progress import Line

    _choose_data(data)
    player = load_expert(expert or expert_path(game), game)
    with Line(_screen) as line:
        about = make(
            game,
            player,
            data_folder(game),
            transitions=transitions,
            test=test,
            states=states,
            count=continuations,
            seed=seed,
            expert_file=expert,
            jobs=_workers(jobs, "cpu"),
            progress=lambda what, done, total: line.update(f"{what}: {done:,} of {total:,}"),
        )
    _tell(about)


def fetch_svhn(data: Data = None) -> None:
    """Download the pictures of SVHN, 246 MB, from where they are published."""
    from .problems.data_folder import data_folder
    from .problems.svhn_download import fetch
    from .progress import Line

    _choose_data(data)
    with Line(_screen) as line:
        fetch(
            data_folder("svhn"),
            lambda name, came, total: line.update(f"{name}: {came >> 20} of {total >> 20 or '?'} MiB"),
        )


COMMANDS: dict[str, Callable[..., Any]] = {
    "list": list_,
    "reproduce": reproduce,
    "report": report,
    "show": show,
    "train-expert": train_expert,
    "make-data": make_data,
    "fetch-svhn": fetch_svhn,
}


def main(arguments: list[str] | None = None) -> None:
    """Errors that a user can mend are one line, and exit code 2; others are the program's own, with a traceback."""
    try:
        tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="unstale-lab", description=__doc__, args=arguments)
    except BrokenPipeError:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (LabError, OSError) as error:
        _refuse(str(error))
    except RuntimeError as error:
        # torch has several types for it; all speak so.
        if "CUDA" not in str(error) or "out of memory" not in str(error):
            raise
        _refuse("the memory of the GPU is full: ask for fewer processes with --jobs, or end others that use it")
    except KeyboardInterrupt:
        _screen.print("stopped: what was finished is kept, and the same command goes on from there")
        sys.exit(130)


def _choose_data(folder: Path | None) -> None:
    """For this process and those that it starts."""
    if folder is not None:
        os.environ["UNSTALE_DATA"] = str(folder)


def _tell(about: dict[str, str]) -> None:
    for name, value in about.items():
        print(f"{name:28} {value}")


def _scale(name: str) -> Scale:
    for scale in SCALES:
        if scale == name:
            return scale
    raise unknown("scale", name, SCALES)


def _workers(jobs: int, device: str) -> int:
    """How many processes are meant."""
    if jobs < 0:
        raise UserError(f"--jobs {jobs}: there cannot be fewer than 1 process; 0 chooses how many")
    if jobs or device.startswith("cuda"):
        return jobs or 1
    if hasattr(os, "sched_getaffinity"):  # a container or a scheduler may allow fewer cores than the machine has
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _refuse(why: str) -> NoReturn:
    _screen.print(f"unstale-lab: {why}", style="red", markup=False, soft_wrap=True)
    sys.exit(2)


def _say(text: str) -> None:
    _screen.print(text, markup=False, soft_wrap=True)


def _warn(text: str) -> None:
    _screen.print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
