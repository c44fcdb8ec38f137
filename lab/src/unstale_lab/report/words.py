"""Numbers and findings as people read them, the same in HTML and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from ..figures.base import Outcome
from ..figures.words import NOTHING as NOTHING
from ..figures.words import interval as interval
from ..figures.words import number as number
from ..figures.words import probability as probability
from ..summary import Summary

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
SIGNS: dict[Outcome, str] = {"holds": "✓", "does not hold": "✗", "inconclusive": "?", "not run": "–"}


def probabilities(values: Iterable[float]) -> str:
    """From the smallest to the largest.

    >>> probabilities([0.0001, 0.5, 0.02]), probabilities([])
    ('< 0.001 to 0.50', '–')
    """
    ends = sorted(value for value in values if not math.isnan(value))
    words = dict.fromkeys(probability(value) for value in (ends[:1] + ends[-1:]))
    return " to ".join(words) or NOTHING


def duration(seconds: float) -> str:
    """
    >>> duration(0.5), duration(61), duration(3 * 3600 + 120), duration(3570.4)
    ('less than a second', '1 min 1 s', '3 h 2 min', '59 min 30 s')
    """
    whole = round(seconds)
    minutes, hours = whole // 60, whole // 3600
    if whole < 1:
        return "less than a second"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def tally(records: Iterable[Mapping[str, Any]]) -> dict[Outcome, list[int]]:
    """The numbers of the claims by verdict."""
    counted: dict[Outcome, list[int]] = {outcome: [] for outcome in OUTCOMES}
    for record in records:
        counted[record["verdict"]].append(record["claim"])
    return counted


def answer(records: Sequence[Mapping[str, Any]]) -> str:
    """The whole report in a paragraph."""
    counts = {outcome: len(claims) for outcome, claims in tally(records).items()}
    measured = len(records) - counts["not run"]
    if not measured:
        return f"None of the paper's {len(records)} claims has been measured yet."
    scales = sorted({str(r["scale"]) for r in records if r["scale"]})
    sentences = [
        f"Of the paper's {len(records)} claims, {measured} {_be(measured)} measured here: "
        f"{counts['holds']} {'holds' if counts['holds'] == 1 else 'hold'}, {counts['does not hold']} "
        f"{'does' if counts['does not hold'] == 1 else 'do'} not, and {counts['inconclusive']} "
        f"{_be(counts['inconclusive'])} inconclusive.",
        f"{counts['not run']} {_be(counts['not run'])} not run." if counts["not run"] else "",
        f"Scale: {' and '.join(scales)}.",
        "Runs that diverged are counted everywhere and dropped nowhere." if any(r["diverged"] for r in records) else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _be(count: int) -> str:
    return "is" if count == 1 else "are"


def provenance(summaries: Sequence[Summary]) -> dict[str, str]:
    """What the numbers were made with: machines, versions, commits, dates."""
    versions: dict[str, list[str]] = {}
    for summary in summaries:
        for library, version in sorted(summary.versions.items()):
            versions.setdefault(library, []).extend(version.split(", "))
    dates = sorted({summary.date for summary in summaries if summary.date})
    told = {
        "Machines": _each(machine for summary in summaries for machine in summary.machines),
        "Versions": ", ".join(f"{library} {' and '.join(dict.fromkeys(v))}" for library, v in versions.items()),
        "Commits": _each(commit for summary in summaries for commit in summary.commit.split(", ")),
        "Dates": " to ".join(dict.fromkeys(dates[:1] + dates[-1:])),
    }
    return {heading: text for heading, text in told.items() if text}


def _each(values: Iterable[str]) -> str:
    return ", ".join(value for value in dict.fromkeys(values) if value)


def effort(summary: Summary) -> str:
    """How many runs, how long, where."""
    diverged = f", {summary.diverged:,} of them diverged" if summary.diverged else ", none of them diverged"
    where = f" on {_each(summary.machines)}" if summary.machines else ""
    return f"{summary.runs:,} runs{diverged}; {duration(summary.seconds)} of computing{where}; scale {summary.scale}"
