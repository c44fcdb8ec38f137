"""Texts that all reports share: the one-paragraph result, provenance and cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..analysis.formatting import format_duration
from ..claims.verdict import READING_NAMES, Answer, Reading
from ..summary import Summary
from .headline import describe_main_result
from .tally import claim_records, claims_by_answer

ANSWER_SIGNS: dict[Answer, str] = {
    "holds": "✓",
    "holds in part": "◐",
    "does not hold": "✗",
    "undecided": "?",
    "shown": "·",
    "not run": "–",
}
# For one claim and for several.
ANSWER_VERBS: dict[Answer, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "holds in part": ("holds in part", "hold in part"),
    "does not hold": ("does not hold", "do not hold"),
    "undecided": ("is undecided", "are undecided"),
    "shown": ("is shown only", "are shown only"),
    "not run": ("is not run", "are not run"),
}

SYMBOLS_NOTE = (
    "μ: momentum. μ*: the oracle, which evaluates past batches again. μ̂: the paper's full correction. μ̂ diag: its "
    "diagonal. 0.8x: 0.8 times the error."
)
FULL_SCALE_NOTE = "These are small runs. Verdicts at full scale: results/REPORT.md."


def describe_tally(records: Sequence[Mapping[str, Any]], reading: Reading) -> str:
    """Return how many claims hold for a reading: "7 hold, 10 hold in part and 2 are shown only"."""
    counts = {answer: len(claims) for answer, claims in claims_by_answer(records, reading).items()}
    *texts, last = [f"{count} {ANSWER_VERBS[answer][count != 1]}" for answer, count in counts.items() if count]
    return f"{', '.join(texts)} and {last}" if texts else last


def describe_results(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the result of all claims as a paragraph."""
    measured = [record for record in records if record["verdicts"]]
    if not measured:
        return f"None of the paper's {len(records)} claims has been measured yet."
    readings: list[Reading] = ["text"]
    if any(record["answers"]["code"]["is_own"] for record in measured):
        readings.append("code")
    tallies = "; ".join(f"{READING_NAMES[reading]}, {describe_tally(records, reading)}" for reading in readings)
    verdicts = [verdict for record in measured for verdict in record["verdicts"]]
    reduced = {verdict["section"] for verdict in verdicts if verdict["scale"] != "paper"}
    sentences = [describe_main_result(records), f"Of the paper's {len(records)} claims, {tallies}."]
    if reduced:
        sentences.append(f"{_count_figures(reduced)} below the paper's scale, where no claim can be refuted.")
    return " ".join(filter(None, sentences))


def _count_figures(names: set[str]) -> str:
    return "1 figure is" if len(names) == 1 else f"{len(names)} figures are"


def judged_summaries(summaries: Iterable[Summary]) -> list[Summary]:
    """Leave out small runs that say what they measured instead of an answer to a claim."""
    return [summary for summary in summaries if summary.is_judged]


def describe_answer(summaries: Sequence[Summary]) -> list[str]:
    """Return the results of all claims as a paragraph, then what small runs measured, as sentences without verdicts."""
    judged = judged_summaries(summaries)
    measured = [sentence for summary in summaries if summary.scale != "paper" for sentence in summary.measured]
    sentences = [*measured, FULL_SCALE_NOTE] if measured else []
    if not measured or any(summary.claims for summary in judged):
        sentences.insert(0, describe_results(claim_records(judged)))
    return sentences


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


COST_NOTE = (
    "Compute time is the sum over processes, several of which share a machine. Runs that figures share count in each."
)
COST_HEADING = ("figure", "scale", "runs", "compute time", "on")


def cost_row(summary: Summary) -> tuple[str, ...]:
    """Return what a figure cost, in the order of ``COST_HEADING``."""
    time = format_duration(summary.seconds)
    return summary.name, summary.scale, f"{summary.runs:,}", time, _join_unique(summary.machines)


def describe_cost(summary: Summary) -> str:
    """Return number of runs, compute time, machines and scale."""
    diverged = f"{summary.diverged:,} diverged" if summary.diverged else "none diverged"
    where = f" on {_join_unique(summary.machines)}" if summary.machines else ""
    time = format_duration(summary.seconds)
    return f"{summary.runs:,} runs ({diverged}); {time} of compute time{where}; scale: {summary.scale}"
