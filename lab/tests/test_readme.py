"""The numbers in README.md are those of the stored results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from unstale_lab.report.headline import describe_main_result
from unstale_lab.summary import read_summaries

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
SUMMARIES = {summary.name: summary for summary in read_summaries(ROOT / "results")}
COST = json.loads((ROOT / "benchmarks/results/cpu.json").read_text("utf-8"))["adam"]
LABORATORY_NETWORK = "2-16-16-16-1"


def rows(heading: str) -> list[list[str]]:
    """The rows of the README's table whose first heading is ``heading``."""
    lines = README.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip().strip("*") for cell in line.strip("|").split("|")])
    return table


def by_optimizer(study: str, table: int) -> dict[str, list[str]]:
    return {row[0]: list(row[1:]) for row in SUMMARIES[study].tables[table].rows}


def laboratory_range(candidate: str) -> str:
    """The range of times of a step with the study's network, relative to Adam."""
    cells = [cell for cell in COST["cells"] if cell["where"]["network"] == LABORATORY_NETWORK]
    ratios = [row["ratio"] for cell in cells for row in cell["rows"] if row["name"] == candidate]
    return f"{min(ratios):.1f} to {max(ratios):.1f}"


def test_table_of_errors():
    errors = by_optimizer("long_memory", 0)
    problems = list(SUMMARIES["long_memory"].tables[0].heading[1:])
    names = [
        "Adam",
        "Adam, annealed",
        "CorrectedAdam (default)",
        "CorrectedAdam (default), annealed",
        "CorrectedAdam, reservoir of 1,024",
    ]
    *table, _ = rows("problem")
    assert [row[0] for row in table] == problems
    for i, (_, *numbers, _) in enumerate(table):
        assert numbers == [errors[name][i].split()[0] for name in names]


def test_samples_of_adam():
    """The samples that the default and the best reference need, and the share."""
    title = SUMMARIES["long_memory"].tables[1].heading[1:]
    needed = by_optimizer("long_memory", 1)
    references = [re.search(r"\((.*)\)", cell)[1] for cell in title]
    theirs = [int(needed[name][i].replace(",", "")) for i, name in enumerate(references)]
    ours = [int(cell.replace(",", "")) for cell in needed["CorrectedAdam (default)"]]
    shares = [100 * a / b for a, b in zip(ours, theirs, strict=True)]
    cells = [f"{a:,} of {b:,} ({share:.0f} %)" for a, b, share in zip(ours, theirs, shares, strict=True)]
    assert [row[-1] for row in rows("problem")[:-1]] == cells
    assert f"{min(shares):.0f} to {max(shares):.0f} %" in README.replace("\n", " ")


def test_cases_at_equal_learning_rate():
    sentence = next(s for s in SUMMARIES["long_memory"].findings if "at equal α" in s and "default" in s)
    cases, lower, higher = re.search(r"\((\d+) cells\).*lower in (\d+).*higher in (\d+)", sentence).groups()
    assert f"lower in {lower} of {cases} cases and higher in {higher}" in README.replace("\n", " ")
    sizes = [float(size) for size in re.findall(r"\+([\d.]+) % \(", sentence)]
    assert f"({min(sizes):.0f} to {max(sizes):.0f} %; single tests)" in README
    assert max(float(rate) for rate in re.findall(r"α ([\d.]+):", sentence)) <= 0.0003


def test_numbers_of_ms_pacman():
    errors, steps = by_optimizer("ms_pacman_memory", 0), by_optimizer("ms_pacman_memory", 1)
    text = README.replace("\n", " ")
    assert f"tuned Adam's final error ({errors['Adam'][1].split()[0]}) is reached" in text
    slots, annealed = "CorrectedAdam, 1,024 slots", "CorrectedAdam, 1,024 slots, annealed"
    assert f"after {steps[slots][0]} steps instead of {steps['Adam'][0]}" in text
    assert f"(annealed: {steps[annealed][0]} instead of {steps['Adam, annealed'][0]})" in text
    longer = [
        float(steps[name][1]) / float(steps[adam][1]) for name, adam in ((slots, "Adam"), (annealed, "Adam, annealed"))
    ]
    assert f"in {min(longer):.1f} to {max(longer):.1f} times the time" in text
    final = errors[annealed][1].split()[0]
    assert final == errors["Adam, annealed"][1].split()[0] and f"({final} both)" in text


def test_significance_against_the_best_adam():
    answer = SUMMARIES["long_memory"].findings[0]
    lower, higher = re.search(r"significantly lower on (\d), significantly higher on (\d)", answer).groups()
    assert (lower, higher) == ("2", "0") and "significantly so on two" in README.replace("\n", " ")
    diverged = next(s for s in SUMMARIES["long_memory"].findings if s.startswith("Diverged"))
    assert re.search(r"“CorrectedAdam \(default\)” (\d+ of \d+)", diverged)[1] == "0 of 450"
    assert "(0 of 450 runs)" in README


@pytest.mark.parametrize(("slots", "count"), [("1,024", "four of five problems"), ("256", "one of 256 on two")])
def test_reservoirs_against_the_best_adam(slots, count):
    errors = by_optimizer("long_memory", 0)
    means = {name: [float(cell.split()[0]) for cell in cells if cell != "–"] for name, cells in errors.items()}
    adams = ["Adam", "Adam, annealed", "Adam, averaged weights 0.99", "Adam, averaged weights 0.999"]
    best = [min(means[name][i] for name in adams) for i in range(5)]
    wins = sum(a < b for a, b in zip(means[f"CorrectedAdam, reservoir of {slots}"], best, strict=True))
    assert wins == {"1,024": 4, "256": 2}[slots] and count in README.replace("\n", " ")


def test_cost_of_the_study():
    *_, (_, _, _, cost, annealed, slots, _) = rows("problem")
    assert cost == annealed == laboratory_range("default")
    assert slots == laboratory_range("1,024 slots")


def test_cost_of_a_step():
    ratios = [row["ratio"] for cell in COST["cells"] for row in cell["rows"] if row["name"] == "default"]
    assert f"takes {min(ratios):.1f} to {max(ratios):.1f} times as long" in README.replace("\n", " ")
    assert f"[{len(ratios)} combinations of network and batch size]" in README.replace("\n", " ")


def test_main_result_of_the_paper():
    records = json.loads((ROOT / "results/claims.json").read_text("utf-8"))
    main = re.search(r"lowers the error of momentum to .* in \d+ of \d+ experiments", describe_main_result(records))[0]
    assert main in " ".join(README.split())
