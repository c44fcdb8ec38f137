"""What the paper is mainly about, problem by problem: the error with the correction, relative to that without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..analysis.formatting import format_times, label, listed_clauses
from ..claims.contrast import SIGNIFICANCE_LEVEL
from ..claims.judging import MIN_RELEVANT_RATIO
from ..claims.verdict import READING_NAMES, READINGS, Reading
from .tally import describe_tally

# The main part of each of these claims compares the full correction with momentum, at the same settings.
PROBLEMS = {
    3: "Mountain Car, replay",
    4: "Mountain Car, online",
    16: "Acrobot",
    17: "Cartpole",
    1: "Regression, without bootstrapping",
}
BOOTSTRAPPED, REGRESSION = (3, 4, 16, 17), 1
IMAGES = (2, 11, 13, 22, 23)  # claims about SVHN and MsPacman
HEADLINE_CAPTION = (
    "The error with corrected momentum (μ̂), relative to that with plain momentum (μ): below 1x the correction helps. α "
    "is the learning rate; where the authors sum momentum instead of averaging it, the effective rate is α / (1-β). "
    "Diverges: in more than a quarter of the runs, and "
    "significantly more often than plain momentum if that does not."
)
Outcome = Literal["lower", "equal", "higher", "unclear", "diverges", "incomparable"]
OUTCOME_VERBS: dict[Outcome, str] = {
    "equal": "makes no difference",
    "higher": "raises the error",
    "unclear": "has no clear effect",
    "diverges": "diverges at every learning rate",
    "incomparable": "cannot be compared",
}
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
    """Return the answers to the paper's main questions in a few sentences, without those that were not measured.

    The table of ``headline_rows`` has the intervals.
    """
    by_number = {record["number"]: record for record in records}
    return " ".join(filter(None, [_describe_control(by_number), _describe_regression(by_number)]))


def _describe_control(by_number: Mapping[int, Mapping[str, Any]]) -> str:
    """Describe the effect of the correction on control problems; empty unless all of them were measured."""
    parts = [_main_part(by_number[claim], reading) for claim in BOOTSTRAPPED for reading in READINGS]
    measured = [part for part in parts if part is not None]
    if len(measured) < len(parts):
        return ""
    outcomes = [_outcome(part) for part in measured]
    ratios = [part["effect"]["value"] for part, outcome in zip(measured, outcomes, strict=True) if outcome == "lower"]
    size = f" to {_describe_range(ratios)}" if ratios else ""
    others = [f"{verb} in {outcomes.count(each)}" for each, verb in OUTCOME_VERBS.items() if each in outcomes]
    rest = f"; it {listed_clauses(others)}" if others else ""
    partly = sum(bool(part["effect"]) and "full" in part["unstable"] for part in measured)
    left_out = (
        f" In {partly} of the {len(parts)} it diverges at some learning rates, which are left out." if partly else ""
    )
    return (
        f"In policy evaluation on small control problems, the paper's correction lowers the error of momentum{size} in "
        f"{len(ratios) or 'none'} of {len(parts)} experiments ({len(BOOTSTRAPPED)} problems, each as described in the "
        f"text and as the authors ran it){rest}.{left_out}"
    )


def _describe_range(ratios: Sequence[float]) -> str:
    low, high = format_times(min(ratios)), format_times(max(ratios))
    return low if low == high else f"between {low} and {high}"


def _describe_regression(by_number: Mapping[int, Mapping[str, Any]]) -> str:
    parts = {reading: _main_part(by_number[REGRESSION], reading) for reading in READINGS}
    found = {reading: (_outcome(part), part) for reading, part in parts.items() if part is not None}
    verbs = {"lower": "lowers the error", **OUTCOME_VERBS}
    texts = [f"{verbs[outcome]} {READING_NAMES[each]}{_size(part)}" for each, (outcome, part) in found.items()]
    return f"In regression, without bootstrapping, it {' and '.join(texts)}." if texts else ""


def _size(part: Mapping[str, Any]) -> str:
    where = ", where it is stable" if "full" in part["unstable"] else ""
    return f" ({format_times(part['effect']['value'])}{where})" if part["effect"] else ""


def describe_reduced(records: Iterable[Mapping[str, Any]]) -> str:
    """Describe the answers about images; empty if none was measured, or one entirely at the paper's scale."""
    chosen = [record for record in records if record["number"] in IMAGES and record["verdicts"]]
    if not chosen or any(all(v["scale"] == "paper" for v in record["verdicts"]) for record in chosen):
        return ""
    return (
        "The runs on SVHN and MsPacman are smaller than the paper's and can refute nothing: of "
        f"{len(chosen)} claims, as described in the text, {describe_tally(chosen, 'text')}."
    )


def _outcome(part: Mapping[str, Any]) -> Outcome:
    """Return how the correction changes the error, by the rule of ``better`` in ``claims.judging``.

    It makes no difference if the whole interval of the ratio is too close to 1 to be relevant.
    """
    effect, comparison = part["effect"], part["comparison"]
    if not effect:
        return "diverges" if tuple(part["unstable"]) == ("full",) else "incomparable"
    low, high = effect["interval"] or (effect["value"], effect["value"])
    is_significant = comparison is None or comparison["p_holm"] < SIGNIFICANCE_LEVEL
    if is_significant and effect["value"] <= 1 / MIN_RELEVANT_RATIO:
        return "lower"
    if is_significant and effect["value"] >= MIN_RELEVANT_RATIO:
        return "higher"
    return "equal" if low >= 1 / MIN_RELEVANT_RATIO and high <= MIN_RELEVANT_RATIO else "unclear"


def _main_result(record: Mapping[str, Any], reading: Reading) -> str:
    """Return the effect of the first part of the claim; an empty string if it was not measured."""
    verdict = _main_verdict(record, reading)
    if verdict is None:
        return ""
    text = verdict["parts"][0]["brief"].replace(f"{label('full')} diverges", "it diverges")
    return text + (" (a reduced scale)" if verdict["scale"] != "paper" else "")


def _main_part(record: Mapping[str, Any], reading: Reading) -> Mapping[str, Any] | None:
    verdict = _main_verdict(record, reading)
    return None if verdict is None or verdict["scale"] != "paper" else verdict["parts"][0]


def _main_verdict(record: Mapping[str, Any], reading: Reading) -> Mapping[str, Any] | None:
    verdicts = (v for v in record["verdicts"] if v["reading"] == reading and not v["is_extra"] and v["parts"])
    return next(verdicts, None)
