"""What the paper is mainly about, problem by problem: the error with the correction, relative to that without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..claims.verdict import READINGS, Reading

# The main part of each of these claims compares a corrected method with an uncorrected one.
PROBLEMS = {
    3: "Mountain Car, replay",
    4: "Mountain Car, online",
    16: "Acrobot",
    17: "Cartpole",
    11: "MsPacman: diagonal against Adam",
    1: "Regression, without bootstrapping",
}
CAPTION = (
    "The error with corrected momentum μ̂, relative to momentum alone: below 1x the correction helps. α is the learning "
    "rate; undamped momentum makes it 1/(1-β) times as large."
)
SAME_RUNS = "the same"  # for problems on which the authors ran what the text describes


@dataclass(frozen=True)
class HeadlineRow:
    """The main result on one problem."""

    claim: int
    problem: str
    found: Mapping[Reading, str]  # "0.83x at α ≤ 0.1; μ̂ diverges at α = 0.5"


def headline_rows(records: Iterable[Mapping[str, Any]]) -> list[HeadlineRow]:
    """Return the main result on each problem that was measured, in the order of ``PROBLEMS``."""
    by_number = {record["number"]: record for record in records}
    rows = []
    for claim, problem in PROBLEMS.items():
        found = {reading: brief for reading in READINGS if (brief := _main_result(by_number[claim], reading))}
        if "text" in found:
            rows.append(HeadlineRow(claim, problem, {"code": SAME_RUNS, **found}))
    return rows


def _main_result(record: Mapping[str, Any], reading: Reading) -> str:
    """Return the effect of the first part of the claim; an empty string if it was not measured."""
    verdicts = [v for v in record["verdicts"] if v["reading"] == reading and not v["is_extra"] and v["parts"]]
    if not verdicts:
        return ""
    first = verdicts[0]
    limits = ["a reduced scale"] * (first["scale"] != "paper") + ["runs of an earlier version"] * first["is_outdated"]
    return first["parts"][0]["brief"] + (f" ({', '.join(limits)})" if limits else "")
