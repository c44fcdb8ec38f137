"""What the paper is mainly about, problem by problem: the error with the correction, relative to that without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..analysis.formatting import format_number
from ..claims.verdict import READINGS, Reading

# The main part of each of these claims compares the full correction with momentum, at the same settings.
PROBLEMS = {
    3: "Mountain Car, replay",
    4: "Mountain Car, online",
    16: "Acrobot",
    17: "Cartpole",
    1: "Regression, without bootstrapping",
}
BOOTSTRAPPED = (3, 4, 16, 17)
HEADLINE_CAPTION = (
    "The error with corrected momentum μ̂, relative to that with momentum alone [95 % CI]: below 1x the correction "
    "helps. α is the learning rate; where the authors' momentum is a sum instead of an average, the effective rate is "
    "α / (1-β). Diverges: in more than a quarter of the runs."
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


def describe_main_result(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the answer to the paper's main question in two sentences; empty unless all of it was measured.

    It is empty, too, if the correction is stable nowhere. The table of ``headline_rows`` has the intervals.
    """
    by_number = {record["number"]: record for record in records}
    parts = {(n, reading): _main_part(by_number[n], reading) for n in BOOTSTRAPPED for reading in READINGS}
    ratios = sorted((part["effect"]["value"], n) for (n, _), part in parts.items() if part and part["effect"])
    if not all(parts.values()) or not ratios:
        return ""
    lowest, highest = (f"{format_number(ratio)}x ({PROBLEMS[n]})" for ratio, n in (ratios[0], ratios[-1]))
    diverging = sum("full" in part["unstable"] for part in parts.values() if part)
    return (
        f"Where the paper's full correction is stable, it has {lowest} to {highest} the error of momentum alone. "
        f"It diverges at some or all of the paper's learning rates in {diverging} of {len(parts)} experiments: "
        f"{len(BOOTSTRAPPED)} problems, each as described in the text and as the authors ran it."
    )


def _main_result(record: Mapping[str, Any], reading: Reading) -> str:
    """Return the effect of the first part of the claim; an empty string if it was not measured."""
    verdict = _main_verdict(record, reading)
    if verdict is None:
        return ""
    return verdict["parts"][0]["brief"] + (" (a reduced scale)" if verdict["scale"] != "paper" else "")


def _main_part(record: Mapping[str, Any], reading: Reading) -> Mapping[str, Any] | None:
    verdict = _main_verdict(record, reading)
    return None if verdict is None or verdict["scale"] != "paper" else verdict["parts"][0]


def _main_verdict(record: Mapping[str, Any], reading: Reading) -> Mapping[str, Any] | None:
    verdicts = (v for v in record["verdicts"] if v["reading"] == reading and not v["is_extra"] and v["parts"])
    return next(verdicts, None)
