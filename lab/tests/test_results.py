"""The committed files under ``results/`` match their summaries."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from figure_samples import records

from unstale_lab.analysis.divergence import mark_explosion
from unstale_lab.claims.verdict import READING_NAMES
from unstale_lab.figures import FIGURES
from unstale_lab.report.forest import SUPPORTING, forest_rows
from unstale_lab.report.headline import PROBLEMS
from unstale_lab.report.markdown import markdown_report
from unstale_lab.report.overview import describe_tally
from unstale_lab.report.tally import claim_records
from unstale_lab.reproduce import summarise
from unstale_lab.store import Store
from unstale_lab.summary import json_text, read_summaries

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
SUMMARIES = read_summaries(RESULTS)
# Images and games: at the paper's scale they would take days to weeks on a GPU.
NOT_AT_PAPER_SCALE = {"fig2", "fig9", "fig9_equal_settings", "fig9_tuned", "fig17", "claim13", "claim22", "claim23"}
STORED_RUNS = {"fig9": "large", "fig9_equal_settings": "quick", "fig9_tuned": "large", "claim22_time": "paper"}
STORED_RUNS |= dict.fromkeys(("fig4", "fig8", "claim20", "claim21", "claim24", "claim25"), "paper")
STORED_READINGS = [("fig10", "code")]  # of figures whose other reading was run on another machine and is not stored


def test_scale_of_published_figures():
    judged = {name for name, figure in FIGURES.items() if figure.claims}
    assert judged <= {summary.name for summary in SUMMARIES} <= set(FIGURES)
    for summary in SUMMARIES:
        is_reduced = summary.name in NOT_AT_PAPER_SCALE
        assert summary.scale in (("quick", "large") if is_reduced else ("paper",)) and bool(summary.cut) == is_reduced
        assert summary.runs == len(FIGURES[summary.name].runs(summary.scale))
        assert summary.settings == FIGURES[summary.name].settings


@pytest.mark.parametrize("summary", SUMMARIES, ids=lambda summary: summary.name)
def test_published_verdicts_make_the_statements_of_the_code(summary):
    """The results of runs that are not stored cannot be judged again, but what was judged can be compared."""
    now = FIGURES[summary.name].judge(records(summary.name, scale="smoke"))
    assert _statements(summary.verdicts) == _statements(now)


def _statements(verdicts):
    return [
        (
            verdict.claim,
            verdict.reading,
            verdict.scope,
            verdict.is_extra,
            [(p.statement, p.is_main) for p in verdict.parts],
        )
        for verdict in verdicts
    ]


@pytest.mark.parametrize("summary", SUMMARIES, ids=lambda summary: summary.name)
def test_published_reasons_are_short(summary):
    assert max((len(verdict.why.split()) for verdict in summary.verdicts), default=0) <= 50


@pytest.mark.parametrize(("name", "scale"), STORED_RUNS.items())
def test_stored_runs_give_the_published_summary(name, scale):
    published = RESULTS / "summaries" / f"{name}.json"
    again = summarise(FIGURES[name], scale, Store(RESULTS / "runs")).to_json()
    assert again == published.read_text("utf-8")


@pytest.mark.parametrize(("name", "reading"), STORED_READINGS)
def test_stored_runs_of_a_reading_give_the_published_verdicts_and_panels(name, reading):
    [summary] = [summary for summary in SUMMARIES if summary.name == name]
    wanted = [run for run in FIGURES[name].runs(summary.scale) if run.convention == reading]
    own = [mark_explosion(record) for record in Store(RESULTS / "runs").load(wanted).values()]
    assert len(own) == len(wanted)
    again = replace(summary, verdicts=FIGURES[name].judge(own), panels=FIGURES[name].panels(own))
    titles = {panel.title for panel in again.panels}
    published = replace(
        summary,
        verdicts=[verdict for verdict in summary.verdicts if verdict.reading == reading],
        panels=[panel for panel in summary.panels if panel.title in titles],
    )
    assert again.to_json() == published.to_json()


def test_claims_and_report_match_the_summaries():
    records = claim_records(SUMMARIES)
    assert [record["number"] for record in records] == list(range(1, 26))
    assert (RESULTS / "claims.json").read_text("utf-8") == json_text(records)
    assert (RESULTS / "REPORT.md").read_text("utf-8") == markdown_report(records, SUMMARIES)


def test_main_effects_of_claims_that_hold_lie_in_the_shaded_range():
    rows = [row for row in forest_rows(claim_records(SUMMARIES)) if row.is_drawn]
    assert {row.claim for row in rows} == set(SUPPORTING)
    for row in rows:
        is_inside = any(low <= row.value <= high for low, high in row.supporting)
        assert is_inside or row.answer != "holds", row


def test_docs_have_the_tally_of_the_results():
    records = json.loads((RESULTS / "claims.json").read_text("utf-8"))
    readings = ["text", *(["code"] if any(record["answers"]["code"]["is_own"] for record in records) else [])]
    for page in ("README.md", "docs/laboratory.md"):
        text = " ".join((ROOT / page).read_text("utf-8").split())
        for reading in readings:
            assert f"{READING_NAMES[reading]}, {describe_tally(records, reading)}" in text.replace("As the", "as the")


def test_docs_list_the_present_answers_of_claims_that_changed():
    answers = {
        record["number"]: record["answers"]["text"]["answer"]
        for record in json.loads((RESULTS / "claims.json").read_text("utf-8"))
    }
    page = (ROOT / "docs/changed-answers.md").read_text("utf-8")
    section = page.split("## Answers that changed")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    listed = [(int(number), row[2]) for row in rows[2:] for number in row[0].split(",")]
    assert len(listed) > 10
    assert listed == [(number, answers[number]) for number, _ in listed]


def test_headline_compares_corrected_methods_with_uncorrected_ones():
    records = {record["number"]: record for record in json.loads((RESULTS / "claims.json").read_text("utf-8"))}
    for claim in PROBLEMS:
        verdicts = [v for v in records[claim]["verdicts"] if not v["is_extra"] and not v["scope"]]
        main = [verdict["parts"][0] for verdict in verdicts]
        assert main and {part["statement"].split()[0] for part in main} == {"μ̂"}
        assert {(c["a"], c["b"]) for part in main if (c := part["comparison"])} <= {("full", "momentum")}
