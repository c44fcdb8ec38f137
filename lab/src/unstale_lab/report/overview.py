"""Texts that all reports share: the one-paragraph result, provenance and cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..analysis.formatting import format_duration
from ..claims.verdict import ANSWERS, READING_NAMES, Answer, Reading
from ..summary import Summary
from .drawing import section_title
from .headline import describe_main_result, describe_reduced
from .tally import claim_records, claims_by_answer, describe_tally

ANSWER_SIGNS: dict[Answer, str] = {
    "holds": "✓",
    "holds in part": "◐",
    "does not hold": "✗",
    "undecided": "?",
    "shown": "·",
    "not run": "–",
}
SYMBOLS_NOTE = (
    "μ: momentum. μ*: the oracle, which evaluates past batches again. μ̂: the paper's full correction. μ̂ diag: its "
    "diagonal. 0.8x [0.7x, 0.9x]: 0.8 times the error, with its 95 % confidence interval."
)
FIGURES_NOTE = (
    "Panels titled “Figure …” are like the paper's: means over the runs that did not diverge, unless they say "
    "interquartile mean (IQM), the mean of the middle half of the runs. The share of runs that diverged is written "
    "beside the line or below the panel. Further panels show interquartile means."
)
FULL_SCALE_NOTE = "These are small runs. Verdicts at full scale: results/REPORT.md."


def measured_readings(records: Sequence[Mapping[str, Any]]) -> list[Reading]:
    """Return the readings of which there are answers."""
    has_code = any(record["answers"]["code"]["is_own"] for record in records)
    return ["text", "code"] if has_code else ["text"]


def describe_tallies(records: Sequence[Mapping[str, Any]]) -> str:
    """Return how many claims hold, for each reading, as a sentence."""
    tallies = (f"{READING_NAMES[each]}, {describe_tally(records, each)}" for each in measured_readings(records))
    return f"Of the paper's {len(records)} claims, {'; '.join(tallies)}."


def tally_table(records: Sequence[Mapping[str, Any]]) -> list[tuple[Answer, list[int]]]:
    """Return, for each answer that occurs, the number of claims that have it in each of ``measured_readings``."""
    by_reading = [claims_by_answer(records, reading) for reading in measured_readings(records)]
    rows = [(answer, [len(claims[answer]) for claims in by_reading]) for answer in ANSWERS]
    return [(answer, counts) for answer, counts in rows if any(counts)]


def describe_results(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the main result as a paragraph, without the tally of the claims."""
    verdicts = [verdict for record in records for verdict in record["verdicts"]]
    if not verdicts:
        return f"None of the paper's {len(records)} claims has been measured yet."
    reduced = {verdict["section"] for verdict in verdicts if verdict["scale"] != "paper"}
    scale = f"{_count_figures(reduced)} below the paper's scale, where no claim can be refuted." if reduced else ""
    return " ".join(filter(None, [describe_main_result(records), describe_reduced(records) or scale]))


def _count_figures(names: set[str]) -> str:
    return "1 figure is" if len(names) == 1 else f"{len(names)} figures are"


def judged_summaries(summaries: Iterable[Summary]) -> list[Summary]:
    """Leave out small runs that say what they measured instead of an answer to a claim."""
    return [summary for summary in summaries if summary.is_judged]


def describe_answer(summaries: Sequence[Summary], has_tally: bool = True) -> list[str]:
    """Return paragraphs: the main result and the tally of the claims, then what small runs measured.

    Args:
        summaries: in order.
        has_tally: whether to count the claims; the reports have a table instead.
    """
    judged = judged_summaries(summaries)
    measured = [sentence for summary in summaries if summary.scale != "paper" for sentence in summary.measured]
    sentences = [*measured, FULL_SCALE_NOTE] if measured else []
    if not measured or any(summary.claims for summary in judged):
        records = claim_records(judged)
        is_counted = has_tally and any(record["verdicts"] for record in records)
        results = [describe_results(records), describe_tallies(records) if is_counted else ""]
        sentences = [*filter(None, results), *sentences]
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
    return section_title(summary.name), summary.scale, f"{summary.runs:,}", time, _join_unique(summary.machines)


def describe_cost(summary: Summary) -> str:
    """Return number of runs, compute time, machines and scale."""
    diverged = f"{summary.diverged:,} diverged" if summary.diverged else "none diverged"
    where = f" on {_join_unique(summary.machines)}" if summary.machines else ""
    time = format_duration(summary.seconds)
    return f"{summary.runs:,} runs ({diverged}); {time} of compute time{where}; scale: {summary.scale}"
