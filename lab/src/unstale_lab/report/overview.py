"""Texts that all reports share: the one-paragraph result, the count of verdicts, provenance and cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from ..analysis.formatting import format_duration
from ..claims.verdict import Outcome
from ..summary import Summary
from .tally import claim_records

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
OUTCOME_SIGNS: dict[Outcome, str] = {"holds": "✓", "does not hold": "✗", "inconclusive": "?", "not run": "–"}

FULL_SCALE_NOTE = "These are small runs. Verdicts at full scale: results/REPORT.md."


def claims_by_outcome(records: Iterable[Mapping[str, Any]]) -> dict[Outcome, list[int]]:
    """Return the numbers of the claims by outcome."""
    claims: dict[Outcome, list[int]] = {outcome: [] for outcome in OUTCOMES}
    for record in records:
        claims[record["verdict"]].append(record["claim"])
    return claims


def describe_results(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the result of all claims as a paragraph."""
    counts = {outcome: len(claims) for outcome, claims in claims_by_outcome(records).items()}
    measured = len(records) - counts["not run"]
    if not measured:
        return f"None of the paper's {len(records)} claims has been measured yet."
    scales = sorted({str(r["scale"]) for r in records if r["scale"]})
    sentences = [
        f"Of the paper's {len(records)} claims, {measured} {_is_or_are(measured)} measured here: "
        f"{counts['holds']} {'holds' if counts['holds'] == 1 else 'hold'}, {counts['does not hold']} "
        f"{'does' if counts['does not hold'] == 1 else 'do'} not hold, and {counts['inconclusive']} "
        f"{_is_or_are(counts['inconclusive'])} inconclusive.",
        f"{counts['not run']} {_is_or_are(counts['not run'])} not run." if counts["not run"] else "",
        f"Scale: {' and '.join(scales)}.",
        "Diverged runs are always counted and never dropped." if any(r["diverged"] for r in records) else "",
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def describe_answer(summaries: Sequence[Summary]) -> list[str]:
    """Return the results of all claims as a paragraph, then what small runs measured, as sentences without verdicts."""
    judged = [summary for summary in summaries if summary.scale == "paper" or not summary.measured]
    measured = [sentence for summary in summaries if summary.scale != "paper" for sentence in summary.measured]
    sentences = [*measured, FULL_SCALE_NOTE] if measured else []
    if not measured or any(summary.claims for summary in judged):
        sentences.insert(0, describe_results(claim_records(judged)))
    return sentences


def _is_or_are(count: int) -> str:
    return "is" if count == 1 else "are"


def describe_provenance(summaries: Sequence[Summary]) -> dict[str, str]:
    """Return machines, versions, commits and dates of the results, by heading."""
    versions: dict[str, list[str]] = {}
    for summary in summaries:
        for library, version in sorted(summary.versions.items()):
            versions.setdefault(library, []).extend(version.split(", "))
    dates = sorted({summary.date for summary in summaries if summary.date})
    texts = {
        "Machines": _join_unique(machine for summary in summaries for machine in summary.machines),
        "Versions": ", ".join(f"{library} {' and '.join(dict.fromkeys(v))}" for library, v in versions.items()),
        "Commits": _join_unique(commit for summary in summaries for commit in summary.commit.split(", ")),
        "Dates": " to ".join(dict.fromkeys(dates[:1] + dates[-1:])),
    }
    return {heading: text for heading, text in texts.items() if text}


def _join_unique(values: Iterable[str]) -> str:
    return ", ".join(value for value in dict.fromkeys(values) if value)


def describe_cost(summary: Summary) -> str:
    """Return number of runs, compute time, machines and scale."""
    diverged = f"{summary.diverged:,} diverged" if summary.diverged else "none diverged"
    where = f" on {_join_unique(summary.machines)}" if summary.machines else ""
    time = format_duration(summary.seconds)
    return f"{summary.runs:,} runs ({diverged}); {time} of compute time{where}; scale: {summary.scale}"
