"""What is kept of a figure, drawn and written: nothing lost on the way, nothing made up."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import lab_samples
import matplotlib
import numpy as np
import pytest

from unstale_lab.drawing import METHOD_STYLE, finite_line, label, legend, method_label, panel_note, styles
from unstale_lab.figures.base import METHODS, Panel, Series, Verdict
from unstale_lab.plots import draw, mathtext, save
from unstale_lab.report import CLAIMS, claim_records, write
from unstale_lab.report.html import html_report
from unstale_lab.report.interactive import SYMBOLS, chart
from unstale_lab.report.markdown import markdown_report
from unstale_lab.report.tables import ROWS, panel_table
from unstale_lab.report.words import OUTCOMES, answer
from unstale_lab.summary import Summary, in_order, read_summaries, write_file, write_summary


def not_json(constant):
    raise AssertionError(f"{constant} is not JSON")


def panel_of(*series: Series, **more) -> Panel:
    return Panel("title", "x", "y", series, **more)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    assert write(lab_samples.summaries(), out) == out / "report.html"
    return out


# Summaries


@pytest.mark.parametrize("summary", lab_samples.summaries(), ids=lambda s: s.name)
def test_a_summary_survives_its_file(summary):
    text = summary.to_json()
    json.loads(text, parse_constant=not_json)
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


def test_infinities_come_back_as_numbers():
    again = Summary.from_json(lab_samples.replay().to_json())
    assert again.panels[1].series[2].y[-1] == math.inf
    assert again.verdicts[0].comparisons[2].effect == math.inf
    assert again.verdicts[0].comparisons[2].interval == (0.2, math.inf)


def test_figures_come_in_the_order_of_their_numbers(tmp_path):
    names = ["claim20", "fig10", "fig3", "claim4", "fig1"]
    for name in names:
        write_summary(replace(lab_samples.cost(), name=name), tmp_path)
    assert [summary.name for summary in read_summaries(tmp_path)] == ["fig1", "fig3", "fig10", "claim4", "claim20"]


@pytest.mark.parametrize("damage", [lambda text: text[:-9], lambda text: text.replace('"runs"', '"runes"')])
def test_a_damaged_summary_is_reported_by_name(tmp_path, damage):
    path = write_summary(lab_samples.replay(), tmp_path)
    path.write_text(damage(path.read_text("utf-8")), "utf-8")
    with pytest.raises(ValueError, match=r"fig3\.json is not a summary"):
        read_summaries(tmp_path)


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = write_file(tmp_path / "deep" / "file", b"old")

    def full_disk(self, target):
        raise OSError("no space left")

    monkeypatch.setattr(type(path), "replace", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_file(path, b"new")
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


# Claims


def test_every_claim_has_a_record_and_those_without_data_were_not_run():
    records = claim_records(lab_samples.summaries())
    assert [record["claim"] for record in records] == [claim.number for claim in CLAIMS] == list(range(1, 26))
    assert {record["claim"] for record in records if record["verdict"] != "not run"} == {3, 4, 19, 25}
    assert records[0]["command"] is None and records[0]["runs"] == 0


def test_a_claim_read_in_two_ways_is_judged_by_the_first():
    record = claim_records(lab_samples.summaries())[3]
    assert record["verdict"] == "does not hold"
    assert [(r["reading"], r["verdict"]) for r in record["readings"]] == [
        ("damped, as the text has it", "does not hold"),
        ("undamped", "holds"),
    ]
    assert record["readings"][1]["comparisons"][0]["a"] == "oracle"


def test_parts_of_a_claim_may_come_from_different_figures():
    pacman = replace(lab_samples.cost(), name="fig17", verdicts=(Verdict(12, "holds", "", reading="MsPacman"),))
    car = replace(lab_samples.cost(), name="fig16", verdicts=(Verdict(12, "inconclusive", "", reading="Car"),))
    record = claim_records([pacman, car])[11]
    assert record["verdict"] == "inconclusive"
    assert [reading["section"] for reading in record["readings"]] == ["fig16", "fig17"]


def test_the_answer_counts_the_verdicts():
    records = claim_records(lab_samples.summaries())
    assert answer(records).startswith(
        "Of the paper's 25 claims, 4 are measured here: 2 hold, 1 does not, and 1 is inconclusive. 21 are not run."
    )
    assert answer(claim_records([])) == "None of the paper's 25 claims has been measured yet."


# Drawing


def test_a_method_has_one_colour_and_nothing_else_has_it():
    panels = [
        panel_of(Series("x", [0], [1]), Series("μ", [0], [1], method="momentum")),
        panel_of(Series("y", [0], [1])),
    ]
    look = styles(panels)
    assert look["momentum"] is METHOD_STYLE["momentum"]
    assert len({look[key].light for key in ("x", "y", "momentum")}) == 3


def test_there_are_always_colours_left():
    panel = panel_of(*(Series(str(i), [0], [1]) for i in range(40)), *(Series(m, [0], [1]) for m in METHOD_STYLE))
    assert len(styles([panel])) == 40 + len(METHOD_STYLE)


def test_divergences_stand_in_the_legend_where_panels_agree_and_at_the_panel_where_not():
    once = panel_of(Series("full", [0], [1], method="full", runs=60, diverged=12))
    twice = panel_of(Series("full", [0], [1], method="full", runs=60, diverged=24))
    assert [(entry.label, entry.note) for entry in legend([once, once])] == [("μ̂", "12 of 60 diverged")]
    assert panel_note(once, legend([once, once])) == ""
    assert [entry.note for entry in legend([once, twice])] == [""]
    assert panel_note(twice, legend([once, twice])) == "μ̂: 24 of 60 diverged"


def test_a_line_ends_where_it_diverges_and_an_infinite_band_reaches_the_top():
    tall = Series("b", [0.0], [9.0])
    series = Series("a", [0.0, 1.0, 2.0], [1.0, 2.0, math.inf], [0.5, 1.0, math.inf], [1.5, math.inf, math.inf])
    line = finite_line(panel_of(series, tall), series)
    assert (line.x, line.y, line.end) == ([0.0, 1.0], [1.0, 2.0], (1.0, 2.0))
    assert (line.band_x, line.low, line.high) == ([0.0, 1.0], [0.5, 1.0], [1.5, 9.0])


def test_a_line_that_is_missing_its_end_does_not_diverge():
    series = Series("a", [0.0, 1.0], [1.0, math.nan])
    assert finite_line(panel_of(series), series).end is None


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 12])
def test_every_panel_has_its_axes(count):
    figure = draw([replace(panel_of(Series("a", [1], [1])), title=str(i)) for i in range(count)], "all")
    assert [axes.get_title() for axes in figure.axes if axes.axison] == [str(i) for i in range(count)]


def test_what_is_drawn_is_what_was_given():
    panel = lab_samples.learning_rate().panels[0]
    axes = draw([panel], "title").axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    solid, dashed = axes.lines[:2]
    np.testing.assert_array_equal(solid.get_ydata(), panel.series[0].y)
    assert (solid.get_linestyle(), dashed.get_linestyle()) == ("-", "--")
    assert solid.get_color() == dashed.get_color() == METHOD_STYLE["momentum"].light


def test_files_are_the_same_every_time_and_settings_are_left_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    panels = [panel_of(Series("default", [1, 2], [1, 3], [0.5, 2], [2, 4], method="default"), log_y=True)]
    first, second = (save(draw(panels, "μ̂ & $"), tmp_path / part, "fig") for part in "ab")
    assert [path.name for path in first] == ["fig.pdf", "fig.svg", "fig.png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("method", METHODS)
def test_labels_can_be_set_and_markers_have_a_name_on_screen(method):
    assert "\u0302" not in mathtext(METHODS[method])
    assert METHOD_STYLE[method].marker in SYMBOLS


def test_a_method_has_one_label_everywhere():
    series = Series("full", [0], [1], method="full")
    assert method_label("full") == label(series) == METHODS["full"] == "μ̂"
    assert set(METHOD_STYLE) == set(METHODS)


def test_a_chart_holds_the_same_numbers():
    panel = Summary.from_json(lab_samples.replay().to_json()).panels[1]
    made = chart(panel, legend([panel]))
    json.dumps(made, allow_nan=False)
    lines = [trace for trace in made["data"] if trace["meta"]["part"] == "line"]
    assert [trace["name"] for trace in lines] == ["μ", "μ*", "μ̂", "μ̂ diag", "unstale (default)"]
    assert lines[0]["y"] == list(panel.series[0].y)
    assert lines[2]["y"] == list(panel.series[2].y[:31])
    assert lines[2]["customdata"][-1][1] == "∞"
    assert [t["x"] for t in made["data"] if t["meta"]["part"] == "end"] == [[panel.series[2].x[30]]]
    assert made["layout"]["yaxis"]["type"] == "log"


def test_a_table_keeps_both_ends():
    series = Series("a", list(range(100)), list(range(100, 200)))
    table = panel_table(panel_of(series, Series("b", [99], [math.inf])))
    assert table.thinned and len(table.rows) == ROWS
    assert table.rows[0] == ["0", "100", "–"]
    assert table.rows[-1] == ["99", "199", "∞"]


# Reports


def test_everything_is_written(written):
    files = {str(path.relative_to(written)) for path in written.rglob("*") if path.is_file()}
    drawn = {f"figures/{name}.{kind}" for name in ("fig3", "fig4", "fig19") for kind in ("pdf", "svg", "png")}
    kept = {f"summaries/{name}.json" for name in ("fig3", "fig4", "fig19", "claim25")}
    assert files == drawn | kept | {"claims.json", "REPORT.md", "report.html"}


def test_claims_are_plain_json(written):
    records = json.loads((written / "claims.json").read_text("utf-8"), parse_constant=not_json)
    assert len(records) == 25
    asked = {"claim", "figure", "verdict", "effect", "interval", "p", "runs", "diverged", "scale", "command", "note"}
    assert all(asked <= set(record) and record["verdict"] in OUTCOMES for record in records)
    assert records[2]["effect"] == -0.37 and records[2]["command"] == "unstale-lab reproduce fig3 --scale paper"


def test_a_report_of_the_files_is_the_report(written):
    summaries = read_summaries(written)
    records = claim_records(summaries)
    assert markdown_report(records, summaries) == (written / "REPORT.md").read_text("utf-8")
    assert html_report(records, summaries) == (written / "report.html").read_text("utf-8")


def test_the_markdown_has_every_claim_and_links_that_lead_somewhere(written):
    text = (written / "REPORT.md").read_text("utf-8")
    assert set(re.findall(r"^\| (\d+) \|", text, re.M)) == {str(n) for n in range(1, 26)}
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (written / target).exists(), target
    for anchor in re.findall(r"\]\(#([^)]+)\)", text):
        assert f"\n### {anchor}\n" in text
    assert "What was cut: Half the seeds." in text
    assert r"\<overlap> & cross" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {11}


def test_the_page_escapes_what_it_is_given(written):
    text = (written / "report.html").read_text("utf-8")
    assert "Intervals &lt;overlap&gt; &amp; cross" in text
    assert "<b>SELU</b>" not in text
    assert "72 of 180 diverged" in text and "3 of 60 diverged" in text


def test_links_within_the_page_lead_somewhere(written):
    text = (written / "report.html").read_text("utf-8")
    text = text[: text.index('<script type="application/json"')]
    names = re.findall(r' id="([^"]+)"', text)
    assert len(names) == len(set(names))
    links = re.findall(r'(?:href|src)="([^"]*)"', text)
    assert {link[1:] for link in links if link.startswith("#")} <= set(names)
    files = [link for link in links if not link.startswith(("#", "data:"))]
    assert files and all((written / link).exists() for link in files)


def test_a_report_of_nothing_is_still_a_report(tmp_path):
    text = write([], tmp_path).read_text("utf-8")
    assert "None of the paper&#39;s 25 claims has been measured yet." in text
    assert in_order([]) == [] and not (tmp_path / "figures").exists()
