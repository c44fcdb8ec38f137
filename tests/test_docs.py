"""The pages of the site: the tutorial and its notebook run, and what pages name is there."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import pkgutil
import re
from pathlib import Path

import pytest
import torch

import unstale
from unstale._optimizer import CorrectedOptimizer

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TUTORIAL = (DOCS / "tutorial.md").read_text("utf-8")


def load_tool(name):
    """A tool as a module. It is not installed, so it is loaded from its file."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_notebook = load_tool("make_notebook")


def blocks(page, language="python"):
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text("utf-8"), flags=re.M | re.S)


def without_numbers(text):
    return re.sub(r"-?\d+\.\d+", "#", " ".join(text.split()))


def test_tutorial_runs_and_prints_what_it_quotes(capsys):
    """Shortened, it prints the lines that the page shows, with other numbers."""
    torch.set_default_dtype(torch.float32)
    names: dict = {}
    assert TUTORIAL.count("steps=1000") == 2 and TUTORIAL.count("range(300)") == 1
    printed = ""
    for code in blocks("docs/tutorial.md"):
        exec(code.replace("steps=1000", "steps=20").replace("range(300)", "range(30)"), names)
        printed += capsys.readouterr().out
    printed = without_numbers(printed)
    quoted = [line for block in blocks("docs/tutorial.md", "text") for line in block.splitlines()]
    # The advice depends on the run.
    for line in quoted:
        if not line.startswith(("Momentum is", "noise away")):
            assert without_numbers(line) in printed, line
    assert len(quoted) >= 10 and names["error"] < 0.5
    assert names["reading"]["staleness"] > 0 and names["reading"]["coverage"] > 0.8


def test_the_tutorials_problem_is_the_examples():
    names: dict = {}
    exec(blocks("docs/tutorial.md")[0], names)
    value, gamma = names["true_values"](), names["GAMMA"]
    around = torch.cat([torch.zeros(1), value, torch.zeros(1)])
    expected = gamma / 2 * (around[:-2] + around[2:])
    expected[0] -= 0.5
    expected[-1] += 0.5
    torch.testing.assert_close(value, expected)


def test_notebook_is_the_page():
    assert make_notebook.main(["--check"]) == 0
    notebook = json.loads((DOCS / "tutorial.ipynb").read_text("utf-8"))
    code = ["".join(cell["source"]) + "\n" for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code == blocks("docs/tutorial.md")
    text = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    assert "".join(text.split()) == "".join(make_notebook.BLOCK.sub("", TUTORIAL).split())
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


def test_a_changed_page_makes_the_notebook_old(monkeypatch, tmp_path, capsys):
    for name in ("tutorial.md", "tutorial.ipynb"):
        (tmp_path / name).write_text((DOCS / name).read_text("utf-8"), "utf-8")
    monkeypatch.setattr(make_notebook, "DOCS", tmp_path)
    (tmp_path / "tutorial.md").write_text("# Other\n\n```python\nprint(6 * 7)\n```\n", "utf-8")
    assert make_notebook.main(["--check"]) == 1
    assert make_notebook.main([]) == 0 and make_notebook.main(["--check"]) == 0
    capsys.readouterr()
    assert make_notebook.main(["--run"]) == 0 and capsys.readouterr().out == "42\n"


def test_front_page_loop_runs():
    torch.set_default_dtype(torch.float32)
    names: dict = {}
    exec(blocks("docs/recipes.md")[0], names)
    (code,) = blocks("docs/index.md")
    exec(code, names)
    assert names["loss"].isfinite() and unstale.diagnostics.read(names["optimizer"])["steps"] == 1


HOW_TO_PRELUDE, *HOW_TOS = blocks("docs/how-to.md")


@pytest.mark.parametrize(
    "code", HOW_TOS, ids=re.findall(r"^## (.*)$", (DOCS / "how-to.md").read_text("utf-8"), flags=re.M)
)
def test_how_to_runs(code):
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    names: dict = {}
    exec(HOW_TO_PRELUDE + code, names)
    assert names["loss"].isfinite() and unstale.diagnostics.read(names["optimizer"])["steps"] >= 3


def test_every_python_block_of_the_site_is_run_by_a_test():
    """Those of the laboratory need its data and further packages, and are only compiled."""
    run, compiled = (
        {"recipes.md", "how-to.md", "tutorial.md", "index.md", "integrations.md", "evaluate.md", "distributed.md"},
        {"laboratory.md", "games.md"},
    )
    assert {path.name for path in DOCS.glob("*.md") if blocks(f"docs/{path.name}")} == run | compiled
    for page in compiled:
        for code in blocks(f"docs/{page}"):
            compile(code, page, "exec")


@pytest.mark.parametrize("page", ["docs/index.md", "docs/results.md", "docs/when-not-to-use.md"])
def test_shares_are_those_of_the_readme(page):
    """Whose numbers are compared with the stored results."""
    readme = (ROOT / "README.md").read_text("utf-8").replace("\n", " ")
    shares = re.findall(r"[\d.]+(?: to [\d.]+)? (?:%|times)", (ROOT / page).read_text("utf-8").replace("\n", " "))
    known = {"1.6 to 2.4 times", "4 times"}  # of the benchmark's table, and of batches
    assert shares and all(share in readme or share in known for share in shares), shares


# ------------------------------------------------------------------------------------------------------------- costs


def rows_of(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:2] == "| "]


def test_costs_are_the_measured_ones():
    """Times of steps are those of the benchmark, and times to an error those times the samples of the study."""
    steps, clock = (DOCS / "costs.md").read_text("utf-8").split("## By the clock")
    page = (ROOT / "benchmarks/results/cpu.md").read_text("utf-8")
    defaults = page.split("**Default settings.**")[1].split("**Other settings.**")[0]
    measured = {row[0]: row[1:] for row in rows_of(defaults)}
    times = {}
    for network, batch, chosen, beta, adam, time, state in rows_of(steps.split("## Memory")[0])[2:]:
        choice, *numbers = measured.pop(f"{network}, batch {batch}")
        assert choice == f"{chosen}, β ≤ {beta}" and [number.strip("†") for number in numbers] == [adam, time, state]
        times[network.split(",")[0], batch] = float(time)
    assert set(measured) == {"", "---"}  # heading and rule: the page has every row
    report = (ROOT / "results/REPORT.md").read_text("utf-8")
    table = rows_of(report.split("reaches the best reference's final error**")[1].split("\n\n**")[0])
    samples = {row[0]: [int(cell.replace(",", "")) if cell != "–" else None for cell in row[1:]] for row in table[2:]}
    best = [re.search(r"\((.*)\)", head)[1] for head in table[0][1:]]
    for place, row in enumerate(rows_of(clock)[2:]):
        assert table[0][1 + place].startswith(row[0])
        adam, ours = samples[best[place]][place], samples["CorrectedAdam (default)"][place]
        assert [row[1], row[2]] == [f"{adam:,}", f"{ours:,}"]
        time = times["2-16-16-16-1", "1" if "stream" in row[0] else "16"]
        assert [row[3], row[4]] == [f"{ours / adam:.2f}", f"{ours / adam * time:.2f}"]
    atari = report.split("Steps and seconds until the mean error")[1].split("Settings:")[0]
    for row in rows_of(atari)[2:]:
        assert all(number in clock for number in row[1:3]), row


# ------------------------------------------------------------------------------------------- equation by function


def modules():
    found = [module.name for module in pkgutil.walk_packages(unstale.__path__, "unstale.")]
    return [unstale, *(importlib.import_module(name) for name in found if not name.endswith("__main__"))]


def is_known(name):
    """Whether some module of the library has this dotted name."""
    for module in modules():
        found = module
        for part in name.split("."):
            found = inspect.getattr_static(found, part, None)
        if found is not None:
            return True
    return False


def test_every_function_of_the_derivation_is_there():
    page = (DOCS / "how-it-works.md").read_text("utf-8").split("## Equation by function")[1]
    rows = [line.rsplit("|", 2)[1] for line in page.splitlines() if line.startswith("| ")][2:]
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(rows) >= 15 and len(names) >= 25
    for name in names:
        exists = (ROOT / "src/unstale" / name).exists() if "/" in name or name.endswith(".py") else is_known(name)
        assert exists or name == ".grad", name
    assert not is_known("momentum.no_such_function")


def test_the_reference_names_what_exists():
    page = (DOCS / "reference.md").read_text("utf-8")
    names = re.findall(r"auto(?:class|function|exception):: unstale\.([\w.]+)", page)
    assert len(names) > 15 and all(is_known(name) for name in names)
    listed = {name.split(".")[-1] for name in names}
    classes = {name for name in unstale.__all__ if inspect.isclass(getattr(unstale, name))}
    assert classes <= listed
    assert all(f"unstale.{name}" in page for name in unstale.__all__ if inspect.ismodule(getattr(unstale, name)))
    internal = {"ready_groups", "state_of"}
    methods = {name for name, found in vars(CorrectedOptimizer).items() if inspect.isfunction(found)}
    members = set(re.search(r"CorrectedOptimizer\(\)\n +:members: (.*)", page)[1].split(", "))
    assert {name for name in methods if not name.startswith("_")} == members | internal
