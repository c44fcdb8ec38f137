"""Summaries, plots and reports: data is preserved and rendered correctly."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import lab_samples
import matplotlib
import numpy as np
import pytest

from unstale_lab.analysis.formatting import label
from unstale_lab.analysis.panels import Panel, Series
from unstale_lab.claims.verdict import Verdict
from unstale_lab.errors import DataError
from unstale_lab.files import write_file
from unstale_lab.methods import METHODS
from unstale_lab.report import CLAIMS, answer, claim_records, write
from unstale_lab.report.drawing import finite_line, legend, panel_note, series_label, styles
from unstale_lab.report.html import html_report
from unstale_lab.report.markdown import markdown_report
from unstale_lab.report.overview import OUTCOMES, describe_results
from unstale_lab.report.plotly_charts import SYMBOLS, chart
from unstale_lab.report.plots import draw, mathtext, save
from unstale_lab.report.tables import MAX_ROWS, panel_table
from unstale_lab.summary import Summary, in_order, read_summaries, write_summary


def reject_constant(constant):
    raise AssertionError(f"{constant} is not JSON")


def make_panel(*series: Series, **more) -> Panel:
    return Panel("title", "x", "y", series, **more)


@pytest.fixture(scope="module")
def report_folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    assert write(lab_samples.summaries(), out) == out / "report.html"
    return out


# Summaries


@pytest.mark.parametrize("summary", [*lab_samples.summaries(), lab_samples.study()], ids=lambda s: s.name)
def test_summary_json_round_trip(summary):
    text = summary.to_json()
    json.loads(text, parse_constant=reject_constant)
    again = Summary.from_json(text)
    assert again.to_json() == text
    assert Summary.from_json(again.to_json()) == again or "nan" in text  # nan differs from itself
    for kept, given in zip(again.panels, summary.panels, strict=True):
        for a, b in zip(kept.series, given.series, strict=True):
            np.testing.assert_allclose(a.y, b.y, rtol=1e-5)
            np.testing.assert_allclose(a.high, b.high, rtol=1e-5)
            assert (a.label, a.method, a.dashed, a.runs, a.diverged) == (
                b.label,
                b.method,
                b.dashed,
                b.runs,
                b.diverged,
            )


def test_infinities_round_trip():
    again = Summary.from_json(lab_samples.replay().to_json())
    assert again.panels[1].series[2].y[-1] == math.inf
    assert again.verdicts[0].comparisons[2].effect == math.inf
    assert again.verdicts[0].comparisons[2].interval == (0.2, math.inf)


def test_summaries_are_in_numerical_order(tmp_path):
    names = ["claim20", "fig10", "fig3", "claim4", "fig1"]
    for name in names:
        write_summary(replace(lab_samples.cost(), name=name), tmp_path)
    assert [summary.name for summary in read_summaries(tmp_path)] == ["fig1", "fig3", "fig10", "claim4", "claim20"]


@pytest.mark.parametrize("damage", [lambda text: text[:-9], lambda text: text.replace('"runs"', '"runes"')])
def test_damaged_summary_is_named_in_the_error(tmp_path, damage):
    path = write_summary(lab_samples.replay(), tmp_path)
    path.write_text(damage(path.read_text("utf-8")), "utf-8")
    with pytest.raises(DataError, match=r"fig3\.json is not a summary"):
        read_summaries(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "/tmp/outside",
        "a/b",
        "..",
        ".",
        "",
        "fig3.json",
        "fig3\n",
        "Fig3",
        "fig 3",
        "é",
        3,
        None,
        ["fig3"],
    ],
)
def test_invalid_summary_names_are_rejected(tmp_path, name):
    own = json.loads(lab_samples.replay().to_json())
    out = tmp_path / "out"
    (out / "summaries").mkdir(parents=True)
    (out / "summaries" / "fig3.json").write_text(json.dumps(own | {"name": name}))
    with pytest.raises(DataError, match=r"fig3\.json is not a summary \(its name must consist of"):
        read_summaries(out)
    with pytest.raises((ValueError, TypeError)):
        write([replace(lab_samples.replay(), name=name)], out)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "summaries", "fig3.json"]


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = write_file(tmp_path / "deep" / "file", b"old")

    def full_disk(self, target):
        raise OSError("no space left")

    monkeypatch.setattr(type(path), "replace", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_file(path, b"new")
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


# Claims


def test_every_claim_has_a_record():
    records = claim_records(lab_samples.summaries())
    assert [record["claim"] for record in records] == [claim.number for claim in CLAIMS] == list(range(1, 26))
    assert {record["claim"] for record in records if record["verdict"] != "not run"} == {3, 4, 19, 25}
    assert records[0]["command"] is None and records[0]["runs"] == 0


def test_first_reading_decides_the_claim():
    record = claim_records(lab_samples.summaries())[3]
    assert record["verdict"] == "does not hold"
    assert [(r["reading"], r["verdict"]) for r in record["readings"]] == [
        ("damped, as in the paper's text", "does not hold"),
        ("undamped", "holds"),
    ]
    assert record["readings"][1]["comparisons"][0]["a"] == "oracle"


def test_readings_of_a_claim_from_different_figures():
    pacman = replace(lab_samples.cost(), name="fig17", verdicts=(Verdict(12, "holds", "", reading="MsPacman"),))
    car = replace(lab_samples.cost(), name="fig16", verdicts=(Verdict(12, "inconclusive", "", reading="Car"),))
    record = claim_records([pacman, car])[11]
    assert record["verdict"] == "inconclusive"
    assert [reading["section"] for reading in record["readings"]] == ["fig16", "fig17"]


def test_describe_results_counts_verdicts():
    records = claim_records(lab_samples.summaries())
    assert describe_results(records).startswith(
        "Of the paper's 25 claims, 4 are measured here: 2 hold, 1 does not hold, and 1 is inconclusive. 21 are not run."
    )
    assert describe_results(claim_records([])) == "None of the paper's 25 claims has been measured yet."


# Drawing


def test_method_colours_are_unique():
    panels = [
        make_panel(Series("x", [0], [1]), Series("μ", [0], [1], method="momentum")),
        make_panel(Series("y", [0], [1])),
    ]
    look = styles(panels)
    assert look["momentum"] is METHODS["momentum"].style
    assert len({look[key].light for key in ("x", "y", "momentum")}) == 3


def test_styles_for_many_lines():
    panel = make_panel(*(Series(str(i), [0], [1]) for i in range(40)), *(Series(m, [0], [1]) for m in METHODS))
    assert len(styles([panel])) == 40 + len(METHODS)


def test_divergences_are_in_legend_or_panel_note():
    once = make_panel(Series("full", [0], [1], method="full", runs=60, diverged=12))
    twice = make_panel(Series("full", [0], [1], method="full", runs=60, diverged=24))
    assert [(entry.label, entry.note) for entry in legend([once, once])] == [("μ̂", "12 of 60 diverged")]
    assert panel_note(once, legend([once, once])) == ""
    assert [entry.note for entry in legend([once, twice])] == [""]
    assert panel_note(twice, legend([once, twice])) == "μ̂: 24 of 60 diverged"


def test_finite_line_of_a_diverging_series():
    tall = Series("b", [0.0], [9.0])
    series = Series("a", [0.0, 1.0, 2.0], [1.0, 2.0, math.inf], [0.5, 1.0, math.inf], [1.5, math.inf, math.inf])
    line = finite_line(make_panel(series, tall), series)
    assert (line.x, line.y, line.end) == ([0.0, 1.0], [1.0, 2.0], (1.0, 2.0))
    assert (line.band_x, line.low, line.high) == ([0.0, 1.0], [0.5, 1.0], [1.5, 9.0])


def test_finite_line_with_missing_end():
    series = Series("a", [0.0, 1.0], [1.0, math.nan])
    assert finite_line(make_panel(series), series).end is None


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 12])
def test_every_panel_has_axes(count):
    figure = draw([replace(make_panel(Series("a", [1], [1])), title=str(i)) for i in range(count)], "all")
    assert [axes.get_title() for axes in figure.axes if axes.axison] == [str(i) for i in range(count)]


def test_plot_shows_the_given_data():
    panel = lab_samples.learning_rate().panels[0]
    axes = draw([panel], "title").axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    solid, dashed = axes.lines[:2]
    np.testing.assert_array_equal(solid.get_ydata(), panel.series[0].y)
    assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    assert solid.get_color() == dashed.get_color() == METHODS["momentum"].style.light


def test_saved_plots_are_deterministic(tmp_path):
    before = dict(matplotlib.rcParams)
    panels = [make_panel(Series("default", [1, 2], [1, 3], [0.5, 2], [2, 4], method="default"), log_y=True)]
    first, second = (save(draw(panels, "μ̂ & $"), tmp_path / part, "fig") for part in "ab")
    assert [path.name for path in first] == ["fig.pdf", "fig.svg", "fig.png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("method", METHODS)
def test_labels_and_markers_of_methods(method):
    assert "\u0302" not in mathtext(METHODS[method].label)
    assert METHODS[method].style.marker in SYMBOLS


def test_method_label():
    series = Series("full", [0], [1], method="full")
    assert label("full") == series_label(series) == METHODS["full"].label == "μ̂"


def test_chart_has_the_data_of_the_panel():
    panel = Summary.from_json(lab_samples.replay().to_json()).panels[1]
    made = chart(panel, legend([panel]))
    json.dumps(made, allow_nan=False)
    lines = [trace for trace in made["data"] if trace["meta"]["part"] == "line"]
    assert [trace["name"] for trace in lines] == ["μ", "μ*", "μ̂", "μ̂ diag", "μ̂ bounded"]
    assert lines[0]["y"] == list(panel.series[0].y)
    assert lines[2]["y"] == list(panel.series[2].y[:31])
    assert lines[2]["customdata"][-1][1] == "∞"
    assert [t["x"] for t in made["data"] if t["meta"]["part"] == "end"] == [[panel.series[2].x[30]]]
    assert made["layout"]["yaxis"]["type"] == "log"


def test_panel_table_keeps_both_ends():
    series = Series("a", list(range(100)), list(range(100, 200)))
    table = panel_table(make_panel(series, Series("b", [99], [math.inf])))
    assert table.thinned and len(table.rows) == MAX_ROWS
    assert table.rows[0] == ["0", "100", "–"]
    assert table.rows[-1] == ["99", "199", "∞"]


# Reports


def test_all_files_are_written(report_folder):
    files = {str(path.relative_to(report_folder)) for path in report_folder.rglob("*") if path.is_file()}
    drawn = {f"figures/{name}.{kind}" for name in ("fig3", "fig4", "fig19") for kind in ("pdf", "svg", "png")}
    kept = {f"summaries/{name}.json" for name in ("fig3", "fig4", "fig19", "claim25")}
    assert files == drawn | kept | {"claims.json", "REPORT.md", "report.html"}


def test_claims_json(report_folder):
    records = json.loads((report_folder / "claims.json").read_text("utf-8"), parse_constant=reject_constant)
    assert len(records) == 25
    asked = {"claim", "figure", "verdict", "effect", "interval", "p", "runs", "diverged", "scale", "command", "note"}
    assert all(asked <= set(record) and record["verdict"] in OUTCOMES for record in records)
    assert records[2]["effect"] == -0.37 and records[2]["command"] == "unstale-lab reproduce fig3 --scale paper"


def test_report_from_files_is_identical(report_folder):
    summaries = read_summaries(report_folder)
    records = claim_records(summaries)
    assert markdown_report(records, summaries) == (report_folder / "REPORT.md").read_text("utf-8")
    assert html_report(records, summaries) == (report_folder / "report.html").read_text("utf-8")


def test_markdown_has_every_claim_and_valid_links(report_folder):
    text = (report_folder / "REPORT.md").read_text("utf-8")
    assert set(re.findall(r"^\| (\d+) \|", text, re.M)) == {str(n) for n in range(1, 26)}
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (report_folder / target).exists(), target
    for anchor in re.findall(r"\]\(#([^)]+)\)", text):
        assert f"\n### {anchor}\n" in text
    assert "Reduced: Half the seeds." in text
    assert r"\<overlap> & cross" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {11}


def test_html_escapes_text(report_folder):
    text = (report_folder / "report.html").read_text("utf-8")
    assert "Intervals &lt;overlap&gt; &amp; cross" in text
    assert "<b>SELU</b>" not in text
    assert "72 of 180 diverged" in text and "3 of 60 diverged" in text


def test_html_links_are_valid(report_folder):
    text = (report_folder / "report.html").read_text("utf-8")
    text = text[: text.index('<script type="application/json"')]
    names = re.findall(r' id="([^"]+)"', text)
    assert len(names) == len(set(names))
    links = re.findall(r'(?:href|src)="([^"]*)"', text)
    assert {link[1:] for link in links if link.startswith("#")} <= set(names)
    files = [link for link in links if not link.startswith(("#", "data:"))]
    assert files and all((report_folder / link).exists() for link in files)


def test_report_without_summaries(tmp_path):
    text = write([], tmp_path).read_text("utf-8")
    assert "None of the paper&#39;s 25 claims has been measured yet." in text
    assert in_order([]) == [] and not (tmp_path / "figures").exists()


# Small runs


@pytest.mark.parametrize("scale, is_small", [("smoke", True), ("quick", True), ("paper", False)])
def test_small_runs_say_what_was_measured_instead_of_verdicts(tmp_path, scale, is_small):
    small = replace(lab_samples.replay(), scale=scale, measured=["Momentum ended at 0.03 & lower_in_3 of 3 seeds."])
    said = answer([small])
    assert ("Momentum ended at 0.03" in said) == is_small == ("claims" not in said)
    page = write([small], tmp_path).read_text("utf-8")
    text = (tmp_path / "REPORT.md").read_text("utf-8")
    assert ('<p class="answer">Momentum ended at 0.03 &amp; lower_in_3 of 3 seeds.</p>' in page) == is_small
    assert ("Momentum ended at 0.03 & lower\\_in\\_3 of 3 seeds." in text) == is_small
    assert all(("Of the paper" in report) == (not is_small) for report in (page, text))


def test_small_runs_follow_the_tally_of_others():
    small = replace(lab_samples.replay(), scale="quick", measured=["Momentum ended at 0.03."])
    tally, measured, note = answer([small, lab_samples.online()]).split("\n")
    assert tally.startswith("Of the paper's 25 claims, 1 is measured here: ") and measured == "Momentum ended at 0.03."
    assert "results/REPORT.md" in note


# Studies


def test_studies_come_last_and_leave_the_tally_alone():
    every = [lab_samples.study(), *lab_samples.summaries()]
    assert [summary.name for summary in in_order(every)][-1] == "long_memory"
    assert claim_records(every) == claim_records(lab_samples.summaries())


def test_a_summary_without_findings_and_tables_can_be_read():
    """They were added later."""
    plain = json.loads(lab_samples.cost().to_json())
    del plain["findings"], plain["tables"], plain["measured"]
    again = Summary.from_json(json.dumps(plain))
    assert again.findings == again.tables == again.measured == ()


def test_findings_and_tables_of_a_study_are_in_both_reports():
    ordered = [Summary.from_json(lab_samples.study().to_json())]
    page, text = html_report(claim_records([]), ordered), markdown_report(claim_records([]), ordered)
    assert "<p>The error is lower on 2 of 2 problems &amp; p &lt; 0.001.</p>" in page
    assert "<caption>Final MSE &lt;mean&gt;</caption>" in page
    assert '<th scope="row">a | b &amp; &lt;c&gt;</th><td>–</td>' in page
    assert "- The error is lower on 2 of 2 problems & p \\< 0.001.\n- Second\\_sentence\\_." in text
    assert "**Final MSE \\<mean>**\n\n| optimizer | MSE |\n| --- | --- |\n| Adam | 0.012 [0.01, 0.02] |" in text
    assert "Claim 0" not in page + text
