"""The command line: its output, and that every error that a user can fix is one line."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from test_store import flip, span

from unstale_lab import cli, problems
from unstale_lab.engine import sweep
from unstale_lab.experiment import Run
from unstale_lab.figures import FIGURES
from unstale_lab.problems import policies
from unstale_lab.store import Store
from unstale_lab.summary import read_summaries

SMOKE = ("--scale", "smoke", "--jobs", "1")
FIG3 = FIGURES["fig3"].runs("smoke")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store with figure 3 at the smallest scale."""
    path = tmp_path_factory.mktemp("made") / "store"
    cli.main(["reproduce", "fig3", *SMOKE, "--store", str(path)])
    return path


@pytest.fixture
def store(made, tmp_path):
    """A copy of it, to be harmed."""
    return shutil.copytree(made, tmp_path / "store")


@pytest.fixture(autouse=True)
def denormals():
    """A sweep in this process switches them off."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture
def call(capsys):
    """Runs the command and returns its exit code, what it printed, and the lines of what it said besides."""

    def call(*arguments):
        code = 0
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as exit:
            code = exit.code
        said = capsys.readouterr()
        return code, said.out, said.err.splitlines()

    return call


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def fails_with(code):
    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    return fail


# Output.


def test_list_says_every_figure_and_what_of_it_is_there(call, store):
    code, printed, said = call("list", "--store", store)
    assert code == 0 and said == []
    rows = {line.split()[0]: line for line in printed.splitlines() if line.split()[0] in FIGURES}
    assert list(rows) == list(FIGURES)
    assert re.search(r"36 of 36 +100 +4,140 +4,140", rows["fig3"])
    assert re.search(r" 16 .* 40 +820 +7,260 +7,260", rows["fig14"])  # its claim; nothing of it is there


def test_list_of_a_store_that_is_not_there(call, tmp_path):
    code, printed, said = call("list", "--store", tmp_path / "none")
    assert code == 0 and said == [f"warning: there is no store {tmp_path / 'none'}"] and " of 20" not in printed
    assert not (tmp_path / "none").exists()


def test_reproduce_says_what_there_is_to_do_and_does_it_once(call, tmp_path):
    command = ["reproduce", "claim24", "claim24", *SMOKE, "--store", tmp_path / "new"]
    code, printed, said = call(*command)
    assert code == 0 and printed == ""
    assert said[0] == "claim24 at scale smoke: 8 runs, 8 to do"
    assert said[-1].startswith("8 runs in ") and said[-1].endswith(f" s, stored in {tmp_path / 'new'}")
    before = contents(tmp_path / "new")
    assert call(*command) == (0, "", ["claim24 at scale smoke: 8 runs, 0 to do"])
    assert contents(tmp_path / "new") == before


@pytest.mark.parametrize(
    "options, workers",
    [([], 3), (["--jobs", "0"], 3), (["--jobs", "7"], 7), (["--device", "cuda"], 1),
     (["--device", "cuda", "--jobs", "2"], 2)],
)  # fmt: skip
def test_as_many_processes_as_cores_that_may_be_used(call, store, monkeypatch, options, workers):
    asked = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 2, 5}, raising=False)
    monkeypatch.setattr(sweep, "check_device", lambda device: device)
    monkeypatch.setattr(sweep, "run_batches", lambda batches, store, engine, progress: asked.append(engine.jobs))
    code, _, _ = call("reproduce", "fig16", "--scale", "smoke", "--store", store, *options)
    assert code == 0 and asked == [workers]


def test_figures_share_their_runs(call, store):
    _, _, said = call("reproduce", "fig16", *SMOKE, "--store", store)
    assert said[0] == "fig16 at scale smoke: 44 runs, 8 to do"


def test_show_says_all_about_a_run(call, store):
    run = FIG3[-1]
    code, printed, said = call("show", run.id[:8], "--store", store)
    assert code == 0 and said == []
    first, *lines = printed.splitlines()
    shown = dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines if len(line.split()) > 1)
    assert first == run.id
    assert shown["method"] == run.method and shown["seed"] == str(run.seed) and shown["alpha"] == str(run.alpha)
    # The version of the package, which need not name the build as torch.__version__ does ("+cpu").
    assert shown["device"] == "cpu" and torch.__version__.startswith(shown["torch_version"].split("+")[0])
    record = Store(store).find(run.id).record
    curve = record.curves["evaluation"]
    assert shown["evaluation, first and last"] == f"{curve[0]:.4g}, {curve[-1]:.4g}"
    assert shown["parameters"] == str(record.parameters) and shown["diverged at step"] == str(record.diverged_at)


def test_export_makes_a_store_from_which_the_same_report_is_written(call, store, tmp_path):
    code, printed, said = call("export", "fig3", "--store", store, "--to", tmp_path / "published")
    assert (code, printed) == (0, "")
    [path] = (tmp_path / "published").iterdir()
    assert path.match("batch-fig3-*.parquet") and said == [f"fig3 at scale smoke: 36 runs, now in {path}"]
    for name in ("store", "published"):
        call("report", "--store", tmp_path / name, "--out", tmp_path / f"report of {name}")
    first, second = (read_summaries(tmp_path / f"report of {name}") for name in ("store", "published"))
    assert [summary.verdicts for summary in first] == [summary.verdicts for summary in second]


def test_export_leaves_out_figures_that_are_not_complete(call, store, tmp_path):
    code, _, said = call("export", "all", "--store", store, "--to", tmp_path / "published")
    assert code == 0 and [line.split(" at ")[0] for line in said] == ["fig3"]


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((), "name at least one figure"),
        (("fig4", "fig3"), "not complete in .*: fig4;"),
        (("all", "fig4"), "not complete in .*: fig4;"),
        (("fig3", "--to", "store"), "is the store itself"),
        (("fig3", "--to", ""), "--to is empty: name a folder"),
        (("fig3", "--to="), "--to is empty: name a folder"),
    ],
)
def test_export_refuses(call, store, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    to = () if "--to" in " ".join(arguments) else ("--to", "published")
    code, _, [line] = call("export", *arguments, *to, "--store", "store")
    assert code == 2 and re.search(words, line) and not (tmp_path / "published").exists()


def test_export_all_refuses_an_empty_store(call, tmp_path):
    code, _, [line] = call("export", "all", "--store", tmp_path / "empty", "--to", tmp_path / "published")
    assert code == 2 and "no figure is complete in" in line and not (tmp_path / "published").exists()


def test_report_into_a_file_is_refused(call, store, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, [line] = call("report", "--store", store, "--out", tmp_path / "file")
    assert code == 2 and line.endswith("is a file: choose a folder")


def test_report_prints_where_it_is(call, store, tmp_path):
    code, printed, said = call("report", "--store", store, "--out", tmp_path / "report")
    page = Path(printed.strip())
    assert code == 0 and len(said) == 2
    assert said[0].startswith("Mountain Car, figure 3 of the paper: after 50 steps corrected momentum")
    assert said[1] == "These are small runs. Verdicts at full scale: results/REPORT.md."
    assert page.parent == tmp_path / "report" and page.suffix == ".html"
    text = page.read_text("utf-8")
    assert FIGURES["fig3"].title in text and FIGURES["fig18"].title not in text


def test_version(call):
    code, printed, said = call("--version")
    assert code == 0 and said == [] and re.match(r"unstale-lab \d+\.\d+\.\d+, unstale \d+\.\d+\.\d+, torch \d", printed)


def test_report_on_nothing_says_what_to_do(call, tmp_path):
    code, printed, said = call("report", "--store", tmp_path / "none", "--out", tmp_path / "report")
    assert code == 2 and printed == "" and not (tmp_path / "report").exists()
    (line,) = said
    assert "no figure is complete" in line and "unstale-lab reproduce fig3" in line


@pytest.mark.parametrize(
    "command, options",
    [
        ((), ["list", "reproduce", "report", "export", "show", "data"]),
        (("list",), ["--store"]),
        (
            ("reproduce",),
            [
                "FIGURE",
                "--scale smoke|quick|large|paper",
                "--device cpu|cuda",
                "--jobs",
                "--store",
                "--engine local|ray",
                "--address",
            ],
        ),
        (("report",), ["--store", "--out", "--open"]),
        (("show",), ["--store"]),
        (("export",), ["--store", "--to", "FIGURE"]),
        (("data",), ["atari", "svhn", "expert"]),
        (("data", "atari"), ["GAME", "--expert", "--transitions", "--jobs", "--seed"]),
        (("data", "svhn"), ["--data"]),
        (("data", "expert"), ["--path", "--seed", "--values-only"]),
    ],
)
def test_help_names_every_option(call, command, options):
    code, printed, said = call(*command, "--help")
    assert code == 0 and said == []
    assert [option for option in options if option not in printed] == []


def test_stopped_by_its_user(call, store, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "run_batches", stop)
    code, _, said = call("reproduce", "fig16", *SMOKE, "--store", store)
    assert code == 130 and said[-1].startswith("interrupted")


# Errors.


@pytest.fixture
def refused(call, store):
    """Runs a command that must fail and do the store no harm, and returns the one line that it says why in."""

    def refused(*arguments, before=None):
        before = contents(store) if before is None else before
        code, printed, said = call(*arguments)
        assert code == 2 and printed == ""
        assert contents(store) == before
        (line,) = (line for line in said if not re.match(r"\S+ at scale |\d+ of \d+ runs", line))
        assert line.startswith("unstale-lab: ")
        return line.removeprefix("unstale-lab: ")

    return refused


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("", "name a command: reproduce, report, export, list, show, data; see `unstale-lab --help`"),
        ("data", "name a command: atari, svhn, expert; see `unstale-lab data --help`"),
        ("--scale smoke", "unknown command '--scale'. There are reproduce, "),
        ("reproduc fig3", "unknown command 'reproduc': did you mean reproduce? There are reproduce, report, "),
        ("data svhm", "unknown command 'svhm': did you mean svhn? There are atari, svhn, expert. See "),
        ("reproduce fig3 --scal smoke", "unknown option '--scal': did you mean --scale? There are --scale, --device, "),
        ("reproduce --scal=smoke fig3", "unknown option '--scal': did you mean --scale? There are --scale, --device, "),
        ("reproduce -j 2 fig3", "unknown option '-j': did you mean --jobs? There are --scale, --device, "),
        ("data expert --step 9 acrobot", "unknown option '--step': did you mean --steps? There are --path, --seed, "),
        ("list --out x", "unknown option '--out': did you mean --store? There are --store, --help. See `unstale-lab "),
        ("reproduce fig3 --hlep", "unknown option '--hlep': did you mean --help? There are --scale, --device, "),
    ],
)
def test_an_unknown_command_or_option_is_named(refused, arguments, message):
    assert refused(*arguments.split()).startswith(message)


@pytest.mark.parametrize("options", [["--no-open"], ["--open"], ["--open", "--store=none"]])
def test_all_forms_of_an_option_are_known(refused, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    assert refused("report", *options).startswith("no figure is complete")


@pytest.mark.parametrize(
    "name, nearest", [("fig33", "fig3"), ("figure14", "fig14"), ("claim", "claim2"), ("3", "fig3")]
)
def test_an_unknown_figure_suggests_the_nearest(refused, store, name, nearest):
    line = refused("reproduce", "fig3", name, *SMOKE, "--store", store)
    assert line.startswith(f"unknown figure '{name}': did you mean {nearest}")


def test_no_figure(refused, store):
    assert "name at least one figure" in refused("reproduce", *SMOKE, "--store", store)


@pytest.mark.parametrize("scale, nearest", [("quik", "quick"), ("papers", "paper"), ("Smoke", "smoke")])
def test_an_unknown_scale_suggests_the_nearest(refused, store, scale, nearest):
    line = refused("reproduce", "fig3", "--scale", scale, "--store", store)
    assert line == f"unknown scale '{scale}': did you mean {nearest}? There are smoke, quick, large, paper."


def test_a_negative_number_of_processes(refused, store):
    line = refused("reproduce", "fig3", "--scale", "smoke", "--jobs", "-2", "--store", store)
    assert line.startswith("--jobs -2: ") and "or 0 for" in line


@pytest.mark.parametrize(
    "options, message",
    [
        (("--engine", "rey"), "unknown engine 'rey': did you mean ray? There are local, ray."),
        (("--address", "auto"), "--address auto is that of a Ray cluster: add --engine ray"),
    ],
)
def test_an_engine_that_cannot_be(refused, store, options, message):
    assert refused("reproduce", "fig3", "--scale", "smoke", "--store", store, *options) == message


def raises(error):
    def fail(*args, **kwargs):
        raise error

    return fail


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has …"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be …"),
    ],
)
def test_a_gpu_whose_memory_is_full(refused, store, monkeypatch, error):
    monkeypatch.setattr(sweep, "run_batches", raises(error))
    line = refused("reproduce", "fig16", *SMOKE, "--store", store)
    assert "GPU is out of memory" in line and "--jobs" in line


@pytest.mark.parametrize("error", [ValueError("too many values to unpack"), RuntimeError("shapes differ")])
def test_other_errors_keep_their_traceback(call, store, monkeypatch, error):
    monkeypatch.setattr(sweep, "run_batches", raises(error))
    with pytest.raises(type(error), match=str(error)):
        call("reproduce", "fig16", *SMOKE, "--store", store)


def test_a_summary_that_cannot_be_read(refused, store, tmp_path):
    path = tmp_path / "report" / "summaries" / "fig3.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert refused("report", "--store", store, "--out", tmp_path / "report").startswith(f"{path} is not a summary")


def test_a_gpu_that_is_not_there(refused, store, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = refused("reproduce", "fig14", *SMOKE, "--store", store, "--device", "cuda")
    assert "no GPU was found" in line and "--device cpu" in line


def test_a_gpu_beyond_those_there_are(refused, store, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    line = refused("reproduce", "fig14", *SMOKE, "--store", store, "--device", "cuda:2")
    assert "no GPU 2" in line and "there are 2" in line


@pytest.mark.parametrize("device", ["tpu", "cuda:first", "cpu0", ""])
def test_an_unknown_device(refused, store, device):
    assert f"unknown device '{device}': choose cpu or cuda" == refused(
        "reproduce", "fig14", *SMOKE, "--store", store, "--device", device
    )


@pytest.mark.parametrize("command", [("reproduce", "fig3", *SMOKE), ("list",), ("report",), ("show", "a")])
def test_a_store_that_is_a_file(refused, tmp_path, command):
    path = tmp_path / "file"
    path.write_text("mine")
    assert refused(*command, "--store", path) == f"the store {path} is a file; it must be a folder"
    assert path.read_text() == "mine"


@pytest.mark.parametrize("command", [("reproduce", "fig14", *SMOKE), ("list",), ("report",), ("show", "a")])
def test_a_store_of_another_version(refused, store, command):
    path = min(store.iterdir())
    pq.write_table(pq.read_table(path).replace_schema_metadata({"unstale.store": "7"}), path)
    line = refused(*command, "--store", store, before=contents(store))
    assert str(path) in line and "version 7" in line and "version 2" in line


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_store_that_is_read_only_is_known_before_anything_is_computed(refused, store, monkeypatch, code):
    readable = Path.open

    def open(path, mode="r", *args, **kwargs):
        return fails_with(code)() if set(mode) & set("wax+") else readable(path, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", open)
    monkeypatch.setattr(sweep, "run_batches", lambda *args: pytest.fail("computed"))
    line = refused("reproduce", "fig16", *SMOKE, "--store", store)
    assert line == f"cannot write to the store {store}: {os.strerror(code)}"


def test_a_disk_that_fills_while_computing(refused, store, monkeypatch):
    monkeypatch.setattr("unstale_lab.store.write_file", fails_with(errno.ENOSPC))
    line = refused("reproduce", "fig16", *SMOKE, "--store", store)
    assert line == f"cannot write to the store {store}: No space left on device"


def test_a_report_that_cannot_be_written(refused, store, tmp_path):
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refused("report", "--store", store, "--out", tmp_path / "file" / "report")


@pytest.mark.parametrize("content", [b"", b"no safetensors", None], ids=["empty", "corrupt", "absent"])
def test_an_expert_that_cannot_be_read(refused, store, monkeypatch, tmp_path, content):
    monkeypatch.setattr(policies, "DIRECTORY", tmp_path)
    path = policies.expert_path("acrobot")
    if content is not None:
        path.write_bytes(content)
    problems.load.cache_clear()  # another test may have loaded the sound one
    line = refused("reproduce", "fig14", *SMOKE, "--store", store)
    assert line.startswith(f"cannot use the expert {path}: ") and "`unstale-lab data expert acrobot`" in line


def test_an_expert_for_a_problem_without_one(refused):
    line = refused("data", "expert", "mountain_car")
    assert line.startswith("cannot train an expert for 'mountain_car', only for acrobot and cartpole and Atari games: ")
    assert refused("data", "expert", "mountain_car", "--values-only") == line


@pytest.mark.parametrize(
    "options, named",
    [
        (["acrobot", "--steps", "5"], "--steps"),
        (["cartpole", "--minutes", "1", "--device", "cuda"], "--minutes and --device"),
        (["ms_pacman", "--values-only", "--steps", "5"], "--steps"),
    ],
)
def test_options_of_learning_a_game_where_none_is_learned(refused, options, named):
    assert (
        refused("data", "expert", *options) == f"{named} can only be given when an expert for an Atari game is trained"
    )


def test_learning_from_no_steps(refused, tmp_path):
    assert refused("data", "expert", "ms_pacman", "--steps", "0", "--path", tmp_path / "e") == (
        "steps must be at least 1, not 0"
    )


def test_a_run_that_is_not_there(refused, store):
    assert Run().id not in {run.id for run in FIG3}
    line = refused("show", Run().id, "--store", store)
    assert line == f"no run in the store {store} has an id that begins with '{Run().id}'"


def test_the_beginning_of_several_ids(refused, store):
    assert refused("show", "", "--store", store).startswith("36 runs have ids that begin with ''")


# Damaged files.


@pytest.mark.parametrize(
    "damage",
    [lambda path: path.write_bytes(path.read_bytes()[:-200]), lambda path: flip(path, span(path, "evaluation")[-1])],
    ids=["truncated", "a flipped bit in a curve"],
)
def test_a_damaged_file_is_named_and_its_runs_are_run_again(call, store, damage):
    damaged = sorted(store.iterdir())[2]
    sound = Store(store).load(FIG3)
    damage(damaged)
    lost = damaged.read_bytes()
    code, _, said = call("reproduce", "fig3", *SMOKE, "--store", store)
    assert code == 0
    assert said[0].startswith(f"warning: {damaged} is damaged")
    assert said[1] == "fig3 at scale smoke: 36 runs, 4 to do"
    assert (store / f"_{damaged.name}.damaged").read_bytes() == lost
    again = Store(store).load(FIG3)
    assert list(again) == FIG3
    for run in FIG3:
        assert again[run].diverged_at == sound[run].diverged_at
        for name, curve in sound[run].curves.items():
            assert again[run].curves[name].tobytes() == curve.tobytes()


def test_a_figure_of_which_a_file_is_damaged_is_not_drawn(call, store, tmp_path):
    damaged = min(store.iterdir())
    flip(damaged, span(damaged, "evaluation")[-1])  # the file still opens, and says which runs it has
    code, printed, said = call("report", "--store", store, "--out", tmp_path / "report")
    assert code == 2 and printed == ""
    assert said[0].startswith(f"warning: {damaged} is damaged") and "no figure is complete" in said[1]


# Interrupts, seeds and terminals.


def in_a_process(code, **environment):
    """Runs Python code in a process of its own."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, timeout=120)


INTERRUPTED_IMPORT = """
import importlib.abc, os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets background jobs ignore it

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000):
                    pass
            except BaseException:  # as extension modules do
                raise ImportError("initialization failed")

sys.meta_path.insert(0, Interrupt())
from unstale_lab.cli import main
main(["reproduce", "fig3", "--scale", "smoke", "--store", {store!r}])
"""


@pytest.mark.parametrize(
    "module", ["tyro", "rich.console", "numpy.linalg", "torch", "pyarrow", "unstale_lab.engine.sweep"]
)
def test_an_interrupt_during_imports_is_one_line(tmp_path, module):
    code = INTERRUPTED_IMPORT.format(module=module, store=str(tmp_path / "store"))
    done = in_a_process(code)
    errors = done.stderr.decode().splitlines()
    assert done.returncode == 130
    assert len(errors) == 1 and errors[0].startswith("interrupted")


@pytest.mark.parametrize("seed", ["-1", str(2**32), "99999999999999999999999"])
@pytest.mark.parametrize(
    "command", [("data", "expert", "cartpole"), ("data", "expert", "ms_pacman"), ("data", "atari", "ms_pacman")]
)
def test_a_seed_out_of_range(refused, tmp_path, command, seed):
    options = ["--data", tmp_path] if "atari" in command else ["--path", tmp_path / "expert"]
    line = refused(*command, "--seed", seed, *options)
    assert line == f"--seed {seed}: give a whole number from 0 to 4294967295"
    assert not (tmp_path / "expert").exists()


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
    ids=lambda environment: " ".join(f"{name}={value}" for name, value in environment.items()),
)
def test_terminals_without_unicode(store, tmp_path, environment):
    """Everything that prints: tables, help, errors, and a path that such a terminal cannot show."""
    code = f"""
import os
from unstale_lab.cli import main
for arguments, wanted in [
    (["list", "--store", {str(store)!r}], 0),
    (["show", {FIG3[0].id!r}, "--store", {str(store)!r}], 0),
    (["report", "--store", {str(store)!r}, "--out", {str(tmp_path)!r} + os.fsdecode(b"/\\xce\\xb2")], 0),
    (["reproduce", "fig3", "--scale", "smoke", "--store", {str(store)!r}], 0),
    (["reproduce", "fig\\u03b2", "--store", {str(store)!r}], 2),
    (["--help"], 0),
    (["data", "--help"], 0),
    (["reproduce", "--help"], 0),
    (["reproduce", "--\\u03b2"], 2),
]:
    code = 0
    try:
        main(arguments)
    except SystemExit as exit:
        code = exit.code
    assert code == wanted, (arguments, code)
"""
    done = in_a_process(code, PYTHONWARNINGS="ignore", **environment)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr and b"fig3" in done.stdout
