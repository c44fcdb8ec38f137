"""The answers to all claims as JSON-like records, from which all reports are made, and how many claims hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..analysis.formatting import capitalized, listed
from ..claims.judging import combine_answers
from ..claims.paper import CLAIMS, Claim
from ..claims.verdict import ANSWER_VERBS, ANSWERS, READINGS, Answer, Reading
from ..summary import Summary, in_order

ClaimRecord = dict[str, Any]
NOT_MEASURED = "Not run at a scale at which claims are judged."


def claim_records(summaries: Iterable[Summary]) -> list[ClaimRecord]:
    """Return one record per claim: the answer for each reading, and the verdicts that it is made of."""
    found: dict[int, list[ClaimRecord]] = {}
    for summary in in_order(summaries):
        for verdict in summary.verdicts:
            source: ClaimRecord = {"section": summary.name, "scale": summary.scale, "command": summary.command}
            found.setdefault(verdict.claim, []).append(asdict(verdict) | source)
    return [_record(claim, found.get(claim.number, [])) for claim in CLAIMS]


def _record(claim: Claim, verdicts: Sequence[ClaimRecord]) -> ClaimRecord:
    own = {name: value for name, value in asdict(claim).items() if name not in ("figures", "has_two_readings")}
    answers = {reading: _answer(claim, verdicts, reading) for reading in READINGS}
    return own | {"answers": answers, "verdicts": list(verdicts)}


def _answer(claim: Claim, verdicts: Sequence[ClaimRecord], reading: Reading) -> ClaimRecord:
    """Combine the verdicts of all scopes. If the authors ran what the text describes, one verdict serves both."""
    judged = [verdict for verdict in verdicts if not verdict["is_extra"]]
    if reading == "code" and claim.has_two_readings and not any(v["reading"] == "code" for v in judged):
        return {"answer": "not run", "why": "", "is_own": False}
    chosen = []
    for scope in dict.fromkeys(verdict["scope"] for verdict in judged):
        own = [v for v in judged if v["scope"] == scope and v["reading"] == reading]
        chosen += own or [v for v in judged if v["scope"] == scope and v["reading"] == "text"]
    answers: list[Answer] = [verdict["answer"] for verdict in chosen]
    sentences = [
        f"{capitalized(v['scope'])}: {v['why']}" if v["scope"] and len(chosen) > 1 else v["why"] for v in chosen
    ]
    missing = set(claim.figures) - {verdict["section"] for verdict in chosen}
    if chosen and missing:
        answers.append("undecided")
        sentences.append(f"Not run: {', '.join(sorted(missing))}.")
    return {
        "answer": combine_answers(answers) if answers else "not run",
        "why": " ".join(sentences),
        "is_own": any(verdict["reading"] == reading for verdict in chosen),
    }


def claims_by_answer(records: Iterable[Mapping[str, Any]], reading: Reading) -> dict[Answer, list[int]]:
    """Return the numbers of the claims by answer."""
    claims: dict[Answer, list[int]] = {answer: [] for answer in ANSWERS}
    for record in records:
        claims[record["answers"][reading]["answer"]].append(record["number"])
    return claims


def describe_tally(records: Sequence[Mapping[str, Any]], reading: Reading) -> str:
    """Return how many claims hold for a reading: "7 hold, 10 hold in part and 2 are shown only"."""
    counts = {answer: len(claims) for answer, claims in claims_by_answer(records, reading).items()}
    return listed(f"{count} {ANSWER_VERBS[answer][count != 1]}" for answer, count in counts.items() if count)


@dataclass(frozen=True)
class AnswerRow:
    """A row of the table of claims: the answer for one reading, or for both."""

    reading: Reading | None  # None if there is one answer for both readings
    answer: Answer
    why: str


def answer_rows(record: Mapping[str, Any]) -> list[AnswerRow]:
    """Return one row, or one per reading where the authors ran something else than the text has."""
    answers = record["answers"]
    readings: Sequence[Reading] = READINGS if answers["code"]["is_own"] else ("text",)
    return [
        AnswerRow(
            reading if len(readings) > 1 else None, answers[reading]["answer"], answers[reading]["why"] or NOT_MEASURED
        )
        for reading in readings
    ]
