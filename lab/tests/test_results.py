"""The committed files under ``results/`` match their summaries."""

from __future__ import annotations

import json
import re
from pathlib import Path

from unstale_lab.figures import FIGURES
from unstale_lab.report.markdown import markdown_report
from unstale_lab.report.tally import claim_records
from unstale_lab.summary import json_text, read_summaries

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
SUMMARIES = read_summaries(RESULTS)
# Images and games: at the paper's scale they would take days to weeks on a GPU.
NOT_AT_PAPER_SCALE = {"fig2", "fig9", "fig9_tuned", "fig17", "claim13", "claim22", "claim23"}


def test_scale_of_published_figures():
    judged = {name for name, figure in FIGURES.items() if figure.claims}
    assert judged <= {summary.name for summary in SUMMARIES} <= set(FIGURES)
    for summary in SUMMARIES:
        scale = "quick" if summary.name in NOT_AT_PAPER_SCALE else "paper"
        assert summary.scale == scale and bool(summary.cut) == (scale != "paper")
        assert summary.runs == len(FIGURES[summary.name].runs(scale))


def test_claims_and_report_match_the_summaries():
    records = claim_records(SUMMARIES)
    assert [record["claim"] for record in records] == list(range(1, 26))
    assert (RESULTS / "claims.json").read_text("utf-8") == json_text(records)
    assert (RESULTS / "REPORT.md").read_text("utf-8") == markdown_report(records, SUMMARIES)


def test_readme_counts_match_the_results():
    verdicts = [record["verdict"] for record in json.loads((RESULTS / "claims.json").read_text("utf-8"))]
    said = re.search(r"(\d+) hold, (\d+) do not, and (\d+) are undecided", (ROOT / "README.md").read_text("utf-8"))
    counted = [verdicts.count(outcome) for outcome in ("holds", "does not hold", "inconclusive")]
    assert said and [int(number) for number in said.groups()] == counted
