"""The report: the result of every claim as HTML, Markdown and JSON, made from summaries alone."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..claims.paper import CLAIMS
from ..files import write_file
from ..summary import Summary, in_order, json_text, write_summary
from .forest import forest_rows
from .forest_plot import draw_forest
from .html import html_report
from .markdown import markdown_report
from .overview import describe_answer, judged_summaries
from .plots import draw, save
from .tally import claim_records

__all__ = ["CLAIMS", "answer", "claim_records", "write"]


def answer(summaries: Iterable[Summary]) -> str:
    """Return how many claims hold, in a sentence or two; of small runs, what they measured."""
    return "\n".join(describe_answer(in_order(summaries)))


def write(summaries: Iterable[Summary], out: Path) -> Path:
    """Write the report under ``out`` and return the path of ``report.html``.

    Also writes ``REPORT.md``, ``claims.json``, ``figures/`` and ``summaries/``.
    """
    # Round trip through JSON, so that a report made later from the files is the same.
    ordered = [Summary.from_json(summary.to_json()) for summary in in_order(summaries)]
    records = claim_records(judged_summaries(ordered))
    pages = {"REPORT.md": markdown_report(records, ordered), "report.html": html_report(records, ordered)}
    for summary in ordered:
        write_summary(summary, out)
        if summary.panels:
            save(draw(summary.panels, summary.title), out / "figures", summary.name)
    if rows := forest_rows(records):
        save(draw_forest(rows), out / "figures", "forest")
    write_file(out / "claims.json", json_text(records).encode())
    *_, page = (write_file(out / name, text.encode()) for name, text in pages.items())
    return page
