"""The report: what held, claim by claim, for browsers, terminals and programs. Made of summaries alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..files import write_file
from ..plots import draw, save
from ..summary import Summary, in_order, json_text, write_summary
from . import words
from .claims import CLAIMS, claim_records
from .html import html_report
from .markdown import markdown_report

__all__ = ["CLAIMS", "answer", "claim_records", "write"]


def answer(summaries: Iterable[Summary]) -> str:
    """How many claims hold, in a sentence or two."""
    return words.answer(claim_records(summaries))


def write(summaries: Iterable[Summary], out: Path) -> Path:
    """Everything under ``out``: ``report.html``, whose path is returned, ``REPORT.md``, ``claims.json``, ``figures/``
    and ``summaries/``."""
    # As they will be read again: a report made now and one made later of the files are the same.
    ordered = [Summary.from_json(summary.to_json()) for summary in in_order(summaries)]
    records = claim_records(ordered)
    for summary in ordered:
        write_summary(summary, out)
        if summary.panels:
            save(draw(summary.panels, summary.title), out / "figures", summary.name)
    write_file(out / "claims.json", json_text(records).encode())
    write_file(out / "REPORT.md", markdown_report(records, ordered).encode())
    return write_file(out / "report.html", html_report(records, ordered).encode())
