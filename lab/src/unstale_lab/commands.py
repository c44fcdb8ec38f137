"""The commands of ``unstale-lab``."""

from __future__ import annotations

import math
import os
import re
import sys
import time
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib.metadata import version
from inspect import signature
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

import tyro
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg, subcommand

from .errors import UserError, unknown
from .experiment import SCALES, Run, Scale, unique

if TYPE_CHECKING:
    from .atari.ppo import Progress as PPOProgress

DEFAULT_STORE, DEFAULT_OUT = Path("runs/store"), Path("runs/report")
MAX_SEED = 2**32 - 1
HELP = ("-h", "--help")

StorePath = Annotated[Path, arg(name="store", metavar="FOLDER", help="the store of finished runs")]
OutPath = Annotated[Path, arg(name="out", metavar="FOLDER", help="the folder of the report")]
Device = Annotated[str, arg(metavar="cpu|cuda", help="the device to compute on")]
DataPath = Annotated[
    Path | None,
    arg(name="data", metavar="FOLDER", help="the folder of images and recordings; if not given, $UNSTALE_DATA or data"),
]
Figures = Annotated[
    tuple[str, ...], arg(metavar="FIGURE [FIGURE ...]", help="fig3, claim24, ... or all", help_behavior_hint="")
]
Jobs = Annotated[int, arg(metavar="N", help="number of processes; 0: one per core, or one on a GPU")]
Seed = Annotated[int, arg(metavar="N", help="seed of all random numbers, at least 0")]

_stderr = Console(stderr=True, highlight=False)


def list_figures(store: StorePath = DEFAULT_STORE) -> None:
    """List all figures, and how many of their runs are in the store."""
    from .figures import FIGURES
    from .store import Store

    have = Store(store, _warn).ids()
    table = Table("figure", "claims", "what it shows", *SCALES, box=None, pad_edge=False)
    for figure in FIGURES.values():
        counts = []
        for scale in SCALES:
            runs = figure.runs(scale)
            done = sum(run.id in have for run in runs) if have else 0  # computing 45,000 ids takes a while
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
            help="smoke: seconds (images: minutes); quick: minutes to an hour; large: an hour on a GPU for images "
            "and games, otherwise paper; paper: the full grid of the paper",
        ),
    ] = "quick",
    device: Device = "cpu",
    jobs: Jobs = 0,
    store: StorePath = DEFAULT_STORE,
    data: DataPath = None,
    engine: Annotated[
        str, arg(metavar="local|ray", help="where to compute: in processes of this machine, or on a Ray cluster")
    ] = "local",
    address: Annotated[
        str | None,
        arg(metavar="ADDRESS", help="a running Ray cluster, or auto; if not given, Ray is started on this machine"),
    ] = None,
) -> None:
    """Compute the runs of figures that are not in the store yet. An interrupted command continues when run again."""
    from .engine.plan import cost
    from .engine.sweep import make_engine, missing, run_batches
    from .progress import ProgressBar
    from .reproduce import figures_named, runs_of
    from .store import Store

    _set_data_folder(data)
    if not figures:
        raise UserError("name at least one figure, or all; `unstale-lab list` lists them")
    chosen = figures_named(figures)
    runs, stored = runs_of(chosen, _scale(scale)), Store(store, _warn)
    chosen_engine = make_engine(engine, device, _check_jobs(jobs), store, address)
    stored.check()
    batches = missing(runs, stored, device)
    left = sum(map(len, batches))
    _inform(f"{', '.join(figure.name for figure in chosen)} at scale {scale}: {len(runs):,} runs, {left:,} to do")
    if not batches:
        return
    stored.require_writable()
    started = time.monotonic()
    with ProgressBar(_stderr, left, sum(cost(run) for batch in batches for run in batch)) as bar:
        run_batches(batches, stored, chosen_engine, bar.update)
    _inform(f"{left:,} runs in {time.monotonic() - started:,.0f} s, stored in {store}")


def report(
    store: StorePath = DEFAULT_STORE,
    out: OutPath = DEFAULT_OUT,
    open: Annotated[bool, arg(help="open the report in a browser", name="open")] = False,
) -> None:
    """Write the report and print its path. It covers every figure whose runs are all in the store, and keeps those of
    an earlier report in the same folder."""
    from . import report as pages
    from .reproduce import fresh_summaries
    from .store import Store
    from .summary import read_summaries

    earlier = read_summaries(out)
    summaries = fresh_summaries(Store(store, _warn), earlier)
    if not summaries:
        raise UserError(f"no figure is complete in {store}: run `unstale-lab reproduce fig3` first")
    if {id(summary) for summary in summaries} == {id(summary) for summary in earlier}:
        _warn(f"no figure is complete in {store}: the report in {out} has earlier results only")
    page = pages.write(summaries, out)
    _inform(pages.answer(summaries))
    print(page)
    if open:
        webbrowser.open(page.resolve().as_uri())


def export(
    figures: Positional[Figures],
    /,
    to: Annotated[Path, arg(metavar="FOLDER", help="the store that receives the runs")],
    store: StorePath = DEFAULT_STORE,
) -> None:
    """Copy the runs of complete figures to another store: for each figure, one new file with the runs that the store
    lacks. Each figure is copied at the largest scale that is complete."""
    from .reproduce import figures_named, largest_scale
    from .store import Store

    source, target = Store(store, _warn), Store(to, _warn)
    if to.resolve() == store.resolve():
        raise UserError(f"--to {to} is the store itself: choose another folder")
    if not figures:
        raise UserError("name at least one figure, or all; `unstale-lab list` lists them")
    have = source.ids()
    chosen = [(figure, largest_scale(figure, have)) for figure in figures_named(figures)]
    incomplete = [figure.name for figure, scale in chosen if scale is None]
    if named := [name for name in incomplete if name in figures]:
        raise UserError(f"not complete in {store}: {', '.join(named)}; `unstale-lab list` counts their runs")
    if len(incomplete) == len(chosen):
        raise UserError(f"no figure is complete in {store}")
    target.require_writable()
    for figure, scale in chosen:
        if scale is not None:
            path = source.export(figure.runs(scale), target, figure.name)
            where = f"now in {path}" if path else f"already in {to}"
            _inform(f"{figure.name} at scale {scale}: {len(unique(figure.runs(scale))):,} runs, {where}")


def show(
    run_id: Positional[
        Annotated[str, arg(metavar="ID", help="an id of the store's column `id`, or its first characters")]
    ],
    /,
    store: StorePath = DEFAULT_STORE,
) -> None:
    """Print the settings, results and provenance of one run."""
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

    _check_seed(seed)
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

    with StatusLine(_stderr) as line:
        return train_expert(
            Settings(game=game, **settings),
            path or expert_path(game),
            check_device(device),
            lambda now: line.update(_format_progress(now)),
            warn=_warn,
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

    _check_seed(seed)
    _set_data_folder(data)
    policy = load_expert(expert or expert_path(game), game)
    with StatusLine(_stderr) as line:
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
            jobs=_check_jobs(jobs) or usable_cores(),
            progress=lambda what, done, total: line.update(f"{what}: {done:,} of {total:,}"),
        )
    _print_table(about)


def data_svhn(data: DataPath = None) -> None:
    """Download SVHN, 246 MB, from its official site."""
    from .problems.data_folder import data_folder
    from .problems.svhn_download import download
    from .progress import StatusLine

    _set_data_folder(data)
    with StatusLine(_stderr) as line:
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


COMMANDS: dict[str, Callable[..., Any]] = {
    "reproduce": reproduce,
    "report": report,
    "export": export,
    "list": list_figures,
    "show": show,
    "data": data,
}


def run(arguments: list[str] | None = None) -> None:
    """Parses the arguments and runs the command."""
    words = sys.argv[1:] if arguments is None else arguments
    if words == ["--version"]:
        print(f"unstale-lab {version('unstale-lab')}, unstale {version('unstale')}, torch {version('torch')}")
        return
    _check_words(words)
    tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog="unstale-lab",
        description="Reproduce the figures of the paper, and report which claims hold.",
        args=words,
        config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes),
    )


def _check_words(words: Sequence[str]) -> None:
    """Raises ``UserError`` for an unknown command or option, for which tyro prints a box."""
    program, commands = "unstale-lab", COMMANDS
    if words[:1] == ["data"]:
        program, commands, words = "unstale-lab data", DATA_COMMANDS, words[1:]
    if not words:
        raise UserError(f"name a command: {', '.join(commands)}; see `{program} --help`")
    command, *rest = words
    if set(HELP) & set(words) or command.startswith("--tyro-"):
        return
    if command not in commands:
        raise UserError(f"{unknown('command', command, commands)} See `{program} --help`.")
    parameters = [p for p in signature(commands[command]).parameters.values() if p.kind is not p.POSITIONAL_ONLY]
    options = [f"--{p.name}".replace("_", "-") for p in parameters]
    negated = [f"--no-{p.name}".replace("_", "-") for p in parameters if isinstance(p.default, bool)]
    known = {*HELP, *options, *negated}
    for word in takewhile(lambda word: word != "--", rest):
        option = word.partition("=")[0]
        if re.match(r"--[a-zA-Z]|-[a-zA-Z]$", option) and option.replace("_", "-") not in known:
            raise UserError(f"{unknown('option', option, [*options, '--help'])} See `{program} {command} --help`.")


def _set_data_folder(folder: Path | None) -> None:
    """For this process and its workers."""
    if folder is not None:
        os.environ["UNSTALE_DATA"] = str(folder)


def _check_seed(seed: int) -> None:
    if not 0 <= seed <= MAX_SEED:
        raise UserError(f"--seed {seed}: give a whole number from 0 to {MAX_SEED}")


def _scale(name: str) -> Scale:
    for scale in SCALES:
        if scale == name:
            return scale
    raise unknown("scale", name, SCALES)


def _check_jobs(jobs: int) -> int:
    if jobs < 0:
        raise UserError(f"--jobs {jobs}: give at least 1, or 0 for one process per core")
    return jobs


def _print_table(about: dict[str, str]) -> None:
    for name, value in about.items():
        print(f"{name:28} {value}")


def _inform(text: str) -> None:
    _stderr.print(text, markup=False, soft_wrap=True)


def _warn(text: str) -> None:
    _stderr.print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)
