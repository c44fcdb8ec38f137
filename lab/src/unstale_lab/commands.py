"""The commands of ``unstale-lab``."""

from __future__ import annotations

import re
import sys
import time
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib.metadata import version
from inspect import signature
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

from .command_options import STDERR, DataPath, Device, Jobs, check_jobs, inform, set_data_folder, warn
from .data_commands import DATA_COMMANDS, data
from .errors import UserError, unknown
from .experiment import SCALES, Run, Scale, unique

DEFAULT_STORE, DEFAULT_OUT = Path("runs/store"), Path("runs/report")
HELP = ("-h", "--help")
PATH_OPTIONS = ("--store", "--out", "--to", "--data")

StorePath = Annotated[Path, arg(name="store", metavar="FOLDER", help="the store of finished runs")]
OutPath = Annotated[Path, arg(name="out", metavar="FOLDER", help="the folder of the report")]
Figures = Annotated[
    tuple[str, ...], arg(metavar="FIGURE [FIGURE ...]", help="fig3, claim24, ... or all", help_behavior_hint="")
]


def list_figures(store: StorePath = DEFAULT_STORE) -> None:
    """List all figures, and how many of their runs are in the store."""
    from .figures import FIGURES
    from .store import Store

    if store != DEFAULT_STORE and not store.exists():
        warn(f"there is no store {store}")
    have = Store(store, warn).ids()
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

    set_data_folder(data)
    if not figures:
        raise UserError("name at least one figure, or all; `unstale-lab list` lists them")
    chosen = figures_named(figures)
    runs, stored = runs_of(chosen, _scale(scale)), Store(store, warn)
    chosen_engine = make_engine(engine, device, check_jobs(jobs), store, address)
    stored.check()
    batches = missing(runs, stored, device)
    left = sum(map(len, batches))
    inform(f"{', '.join(figure.name for figure in chosen)} at scale {scale}: {len(runs):,} runs, {left:,} to do")
    if not batches:
        return
    stored.require_writable()
    started = time.monotonic()
    with ProgressBar(STDERR, left, sum(cost(run) for batch in batches for run in batch)) as bar:
        run_batches(batches, stored, chosen_engine, bar.update)
    inform(f"{left:,} runs in {time.monotonic() - started:,.0f} s, stored in {store}")


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

    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: choose a folder")
    earlier = read_summaries(out)
    summaries = fresh_summaries(Store(store, warn), earlier)
    if not summaries:
        raise UserError(f"no figure is complete in {store}: run `unstale-lab reproduce fig3` first")
    if {id(summary) for summary in summaries} == {id(summary) for summary in earlier}:
        warn(f"no figure is complete in {store}: the report in {out} has earlier results only")
    page = pages.write(summaries, out)
    inform(pages.answer(summaries))
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

    source, target = Store(store, warn), Store(to, warn)
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
            inform(f"{figure.name} at scale {scale}: {len(unique(figure.runs(scale))):,} runs, {where}")


def show(
    run_id: Positional[
        Annotated[str, arg(metavar="ID", help="an id of the store's column `id`, or its first characters")]
    ],
    /,
    store: StorePath = DEFAULT_STORE,
) -> None:
    """Print the settings, results and provenance of one run."""
    from .store import Store

    found = Store(store, warn).find(run_id)
    record = found.record
    lines = {f.name: getattr(record.run, f.name) for f in fields(Run)}
    lines |= {"parameters": record.parameters, "numbers kept": record.numbers_kept}
    lines |= {"diverged at step": record.diverged_at, "seconds": f"{record.seconds:.3g}"}
    lines |= {f"{name}, first and last": f"{c[0]:.4g}, {c[-1]:.4g}" for name, c in record.curves.items()}
    print(record.run.id)
    for name, value in (lines | found.provenance).items():
        print(f"  {name:28} {value}")


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
    # An empty path would be the current folder.
    for word, following in pairwise([*rest, "-"]):
        option, has_value, value = word.partition("=")
        if option in PATH_OPTIONS and not (value if has_value else following):
            raise UserError(f"{option} is empty: name a folder")
    for word in takewhile(lambda word: word != "--", rest):
        option = word.partition("=")[0]
        if re.match(r"--[a-zA-Z]|-[a-zA-Z]$", option) and option.replace("_", "-") not in known:
            raise UserError(f"{unknown('option', option, [*options, '--help'])} See `{program} {command} --help`.")


def _scale(name: str) -> Scale:
    for scale in SCALES:
        if scale == name:
            return scale
    raise unknown("scale", name, SCALES)
