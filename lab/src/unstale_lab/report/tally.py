"""The answers to all claims as JSON-like records, from which all reports are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from ..claims.paper import CLAIMS, Claim
from ..claims.verdict import Verdict
from ..summary import Summary, in_order


def claim_records(summaries: Iterable[Summary]) -> list[dict[str, Any]]:
    """Return one record per claim; if it has several readings, ``readings`` has them all, the paper's first."""
    found: dict[int, list[dict[str, Any]]] = {}
    for summary in in_order(summaries):
        for verdict in summary.verdicts:
            found.setdefault(verdict.claim, []).append(_reading(verdict, summary))
    return [_record(claim, found.get(claim.number, [])) for claim in CLAIMS]


def _record(claim: Claim, readings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    fields = {"claim": claim.number, "figure": claim.figure, "problem": claim.problem, "statement": claim.statement}
    several = list(readings) if len(readings) > 1 else []
    return fields | (readings[0] if readings else _NOT_RUN) | {"readings": several}


def _reading(verdict: Verdict, summary: Summary) -> dict[str, Any]:
    own = asdict(verdict)
    del own["claim"]
    source = {"section": summary.name, "scale": summary.scale, "command": summary.command}
    return {"verdict": own.pop("outcome")} | own | source


_NOT_RUN: dict[str, Any] = {
    "verdict": "not run",
    "reading": "",
    "note": "",
    "effect": None,
    "interval": None,
    "p": None,
    "runs": 0,
    "diverged": 0,
    "comparisons": (),
    "section": None,
    "scale": None,
    "command": None,
}
