"""Summaries, plots and reports: data is preserved and rendered correctly."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import lab_samples
import matplotlib
import numpy as np
import pytest

from unstale_lab.analysis.formatting import label
from unstale_lab.analysis.panels import Panel, Series
from unstale_lab.claims.verdict import ANSWERS, Effect, Part, Verdict
from unstale_lab.errors import DataError
from unstale_lab.files import write_file
from unstale_lab.methods import METHODS
from unstale_lab.report import CLAIMS, answer, claim_records, write
from unstale_lab.report.axes import MOMENTUM_LABEL, make_axis
from unstale_lab.report.drawing import (
    describe_coinciding,
    describe_undrawn,
    drawn_series,
    finite_line,
    legend,
    panel_axes,
    panel_note,
    panel_title,
    series_label,
    spread,
    styles,
)
from unstale_lab.report.forest import GROUPS, forest_groups, forest_rows, position
from unstale_lab.report.forest_plot import draw_forest
from unstale_lab.report.headline import describe_main_result, headline_rows
from unstale_lab.report.html import html_report
from unstale_lab.report.markdown import markdown_report
from unstale_lab.report.overview import describe_results, describe_tallies, describe_tally, tally_table
from unstale_lab.report.plots import draw, mathtext, save
from unstale_lab.report.svg_charts import MARKERS, chart
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
    compared = again.verdicts[0].parts[2].comparison
    assert compared.ratio == math.inf and compared.interval == (math.inf, math.inf)
    assert again.verdicts[0].parts[2].effect == Effect("diagonal / full", math.inf, (math.inf, math.inf))


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


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda own: own["verdicts"][0].update(answer="does not hold"),
            "its answer to claim 3 is 'does not",
        ),
        (lambda own: own["verdicts"][0].update(claim=4), "it judges claim 4, which is not among"),
        (lambda own: own["verdicts"][0].update(claim="3"), "it judges claim '3', which is not among"),
        (lambda own: own.update(title=None), "its title is None, which is no str"),
        (lambda own: own.update(versions=[]), "its versions is \\[\\], which is no dict\\[str, str\\]"),
        (lambda own: own.update(runs="x"), "its runs is 'x', which is no int"),
        (lambda own: own.update(machines=[1]), r"its machines is \(1,\), which is no tuple"),
    ],
)
def test_edited_summaries_are_refused(change, message):
    own = json.loads(lab_samples.replay().to_json())
    change(own)
    with pytest.raises(ValueError, match=message):
        Summary.from_json(json.dumps(own))


# Claims


def answers(record) -> dict[str, str]:
    return {reading: found["answer"] for reading, found in record["answers"].items()}


def test_every_claim_has_a_record():
    records = claim_records(lab_samples.summaries())
    assert [record["number"] for record in records] == [claim.number for claim in CLAIMS] == list(range(1, 26))
    assert {record["number"] for record in records if record["verdicts"]} == {3, 4, 19, 25}
    assert all((answers(record)["text"] == "not run") == (not record["verdicts"]) for record in records)
    assert records[0]["answers"]["text"]["why"] == ""


def test_readings_are_answered_apart():
    records = claim_records(lab_samples.summaries())
    assert answers(records[3]) == {"text": "does not hold", "code": "holds"}
    assert records[3]["answers"]["code"]["is_own"] and not records[2]["answers"]["code"]["is_own"]
    assert answers(records[2]) == {"text": "holds in part", "code": "not run"}
    assert answers(records[24]) == {"text": "holds", "code": "holds"}  # the authors' code is no different there
    assert records[3]["verdicts"][1]["parts"][0]["comparison"]["a"] == "oracle"


def test_claim_of_two_figures_combines_both():
    pacman = replace(lab_samples.cost(), name="fig17", verdicts=(Verdict(12, "holds", "b.", scope="MsPacman"),))
    car = replace(lab_samples.cost(), name="fig16", verdicts=(Verdict(12, "undecided", "a.", scope="Car"),))
    both, one = claim_records([pacman, car])[11], claim_records([pacman])[11]
    assert answers(both)["text"] == "holds in part"
    assert both["answers"]["text"]["why"] == "Car: a. MsPacman: b."
    assert [verdict["section"] for verdict in both["verdicts"]] == ["fig16", "fig17"]
    assert answers(one)["text"] == "holds in part" and "Not run: fig16." in one["answers"]["text"]["why"]


def test_extra_verdicts_do_not_change_the_answer():
    own = lab_samples.cost()
    extra = replace(own, verdicts=(*own.verdicts, Verdict(25, "does not hold", "x.", is_extra=True)))
    assert answers(claim_records([extra])[24])["text"] == "holds"


def test_describe_results_counts_answers():
    records = claim_records(lab_samples.summaries())
    assert describe_tally(records, "text") == (
        "1 holds, 1 holds in part, 1 does not hold, 1 is shown only and 21 are not run"
    )
    assert describe_tallies(records) == (
        "Of the paper's 25 claims, as described in the text, 1 holds, 1 holds in part, 1 does not hold, 1 is shown "
        "only and 21 are not run; as the authors ran it, 2 hold and 23 are not run."
    )
    assert tally_table(records) == [
        ("holds", [1, 2]),
        ("holds in part", [1, 0]),
        ("does not hold", [1, 0]),
        ("shown", [1, 0]),
        ("not run", [21, 23]),
    ]
    assert describe_results(records) == "1 figure is below the paper's scale, where no claim can be refuted."
    assert describe_results(claim_records([])) == "None of the paper's 25 claims has been measured yet."


def test_headline_has_the_main_part_of_each_reading():
    def verdict(reading: str, *briefs: str, **more) -> Verdict:
        parts = tuple(Part("μ̂ differs from μ", "holds", "long", brief=brief) for brief in briefs)
        return Verdict(3, "holds", "x.", parts, reading=reading, **more)

    own = replace(
        lab_samples.cost(),
        name="fig3",
        claims=(3,),
        verdicts=(
            verdict("text", "extra", is_extra=True),
            verdict("text", "0.8x; μ̂ diverges at α = 0.5", "another part"),
            verdict("text", "another scope", scope="undamped"),
        ),
    )
    assert headline_rows(claim_records([])) == []
    [row] = headline_rows(claim_records([own]))
    assert (row.claim, row.problem) == (3, "Mountain Car, replay")
    assert row.found == {"text": "0.8x; it diverges at α = 0.5", "code": "the same"}
    [row] = headline_rows(claim_records([replace(own, verdicts=(*own.verdicts, verdict("code", "0.9x")))]))
    assert row.found["code"] == "0.9x"
    [row] = headline_rows(claim_records([replace(own, scale="large")]))
    assert row.found["text"].endswith(" (a reduced scale)")


def test_main_result_is_described_once_all_of_it_was_measured():
    def summary(claim: int, ratio: float | None, reading: str, **more) -> Summary:
        effect = None if ratio is None else Effect("μ̂ / μ", ratio)
        unstable = ("full", "momentum") if ratio is None else ("momentum",) if ratio == 1.0 else ()
        part = Part("μ̂ has a lower error than μ", "holds", "", effect=effect, unstable=unstable)
        own = Verdict(claim, "holds", "x.", (part,), reading=reading)
        return replace(lab_samples.cost(), name=f"fig{claim}{reading}", claims=(claim,), verdicts=(own,), **more)

    own = [summary(claim, ratio, reading) for claim, ratio, reading in [
        (3, 0.8, "text"), (3, 0.9, "code"), (4, 1.0, "text"), (4, 0.7, "code"),
        (16, None, "text"), (16, 0.9, "code"), (17, 0.2, "text"), (17, 0.6, "code"),
    ]]  # fmt: skip
    assert describe_main_result(claim_records(own)) == (
        "In policy evaluation on small control problems, the paper's correction lowers the error of momentum to "
        "between 0.20x and 0.90x in 6 of 8 experiments (4 problems, each as described in the text and as the authors "
        "ran it); it makes no difference in 1, and cannot be compared in 1."
    )
    parts = [replace(own[4].verdicts[0].parts[0], unstable=("full",))]
    alone = replace(own[4], verdicts=(replace(own[4].verdicts[0], parts=parts),))
    found = describe_main_result(claim_records([*own[:4], alone, *own[5:]]))
    assert found.endswith("; it makes no difference in 1, and diverges at every learning rate in 1.")
    parts = [replace(own[0].verdicts[0].parts[0], unstable=("full",))]
    partly = replace(own[0], verdicts=(replace(own[0].verdicts[0], parts=parts),))
    found = describe_main_result(claim_records([partly, *own[1:]]))
    assert found.endswith(" In 1 of the 8 it diverges at some learning rates, which are left out.")
    regression = [summary(1, 0.9967, "text"), summary(1, 1.5, "code")]
    assert describe_main_result(claim_records(regression)) == (
        "In regression, without bootstrapping, it makes no difference as described in the text (0.997x) and raises the "
        "error as the authors ran it (1.50x)."
    )
    assert describe_main_result(claim_records(own[1:])) == ""
    assert describe_main_result(claim_records([replace(own[0], scale="quick"), *own[1:]])) == ""


# Drawing


def test_method_colours_are_unique():
    panels = [
        make_panel(Series("x", [0], [1]), Series("μ", [0], [1], method="momentum")),
        make_panel(Series("y", [0], [1])),
    ]
    look = styles(panels)
    assert look["momentum"] is METHODS["momentum"].style
    assert len({look[key].light for key in ("x", "y", "momentum")}) == 3


# Methods that are drawn in one figure.
DRAWN_TOGETHER = [
    ["momentum", "oracle", "full", "diagonal", "default", "frozen"],
    ["momentum", "full", "second_order", "default"],
    ["momentum", "oracle", "diagonal", "window"],
    ["adam", "adam_oracle", "adam_window", "adam_diagonal", "adam_diagonal_literal", "adam_frozen"],
    ["adam", "adam_dense", "adam_window", "adam_linearized"],
    ["adam", "adam_default"],
    ["momentum", "sgd_default"],
]
# Linear RGB as a reader without one kind of cones sees it (Machado et al., 2009).
COLOUR_VISION = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
}


def lab_colour(colour: str, vision: str) -> np.ndarray:
    """Return the CIE Lab coordinates of a colour as a reader sees it."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(COLOUR_VISION[vision]) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ seen / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", COLOUR_VISION)
@pytest.mark.parametrize("methods", DRAWN_TOGETHER, ids=lambda methods: methods[-1])
def test_colours_of_a_figure_differ_for_every_reader(methods, vision):
    for theme in ("light", "dark"):
        for a, b in itertools.combinations((METHODS[method].style for method in methods), 2):
            distance = np.linalg.norm(lab_colour(getattr(a, theme), vision) - lab_colour(getattr(b, theme), vision))
            assert a.marker != b.marker and distance > 10, (a, b, distance)


def test_a_family_of_methods_has_one_colour():
    families = [
        ["momentum", "adam"],
        ["oracle", "adam_oracle"],
        ["full", "adam_dense"],
        ["diagonal", "adam_diagonal_literal"],
        ["frozen", "adam_frozen"],
        ["window", "adam_window"],
        ["default", "adam_default", "sgd_default", "adam_reservoir"],
    ]
    for family in families:
        assert len({METHODS[method].style for method in family}) == 1
    ours = METHODS["default"].style
    others = [method.style for name, method in METHODS.items() if name not in families[-1]]
    assert ours.dashes and all(style.light != ours.light and style.dashes != ours.dashes for style in others)


def test_variants_of_a_method_have_its_colour_and_differ_in_dashes():
    labels = ["Adam", "Adam, annealed", "Adam, TD(0.5), annealed", "CorrectedAdam (default)", "CorrectedAdam, annealed"]
    look = styles([make_panel(*(Series(name, [0], [1]) for name in labels))])
    assert [look[name].light for name in labels] == [METHODS["adam"].style.light] * 3 + [
        METHODS["adam_default"].style.light
    ] * 2
    assert len({(look[name].light, look[name].dashes) for name in labels}) == 5


def test_styles_for_many_lines():
    panel = make_panel(*(Series(str(i), [0], [1]) for i in range(40)), *(Series(m, [0], [1]) for m in METHODS))
    assert len(styles([panel])) == 40 + len(METHODS)


def test_divergences_are_in_the_note_of_the_panel():
    panel = make_panel(Series("μ̂", [0.0], [1.0], runs=60, diverged=12), Series("μ", [0.0], [1.0], runs=60))
    assert panel_note(panel) == "μ̂ 12 of 60 runs"


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
    assert not solid.is_dashed() and dashed.is_dashed()
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
    assert METHODS[method].style.marker in MARKERS


def test_method_label():
    series = Series("full", [0], [1], method="full")
    assert label("full") == series_label(series) == METHODS["full"].label == "μ̂"


# Axes


@pytest.mark.parametrize(
    "low, high",
    [(0.38, 0.58), (0.03, 0.2), (0.0001, 0.03), (1, 64), (1e-5, 0.7), (0.01, 14406), (1e-14, 1e14), (177, 5e6)],
)
def test_log_axes_have_three_to_eight_ticks_that_do_not_overlap(low, high):
    axis = make_axis("x", [low, high], is_log=True, room=40)
    assert 3 <= len(axis.ticks) <= 8
    places = [axis.position(tick.value) for tick in axis.ticks]
    assert places == sorted(places) and 0 <= places[0] < places[-1] <= 1
    widths = [len(tick.text) for tick in axis.ticks]
    gaps = [40 * (b - a) for a, b in itertools.pairwise(places)]
    assert all(gap > (a + b) / 2 for gap, a, b in zip(gaps, widths[:-1], widths[1:], strict=True))


def test_ticks_below_two_decades_are_at_1_2_and_5():
    assert [tick.text for tick in make_axis("y", [0.02, 1.0], is_log=True).ticks] == [
        "0.02",
        "0.05",
        "0.1",
        "0.2",
        "0.5",
        "1",
    ]


def test_momentum_is_drawn_as_one_minus_beta():
    betas = [0.8, 0.9, 0.99, 0.999]
    panel = Panel("title", MOMENTUM_LABEL, "error", [Series("a", betas, [1, 2, 3, 4])])
    x, _ = panel_axes(panel, legend([panel]))
    places = [x.position(beta) for beta in betas]
    assert places == sorted(places)
    assert places[2] - places[1] == pytest.approx(places[3] - places[2]), "decades of 1 - β have equal lengths"
    assert [tick.text for tick in x.ticks] == ["0.8", "0.9", "0.95", "0.99", "0.999"]
    axes = draw([panel], "").axes[0]
    left, right = axes.get_xlim()
    assert axes.get_xscale() == "log" and left > right
    np.testing.assert_allclose(axes.lines[0].get_xdata(), [0.2, 0.1, 0.01, 0.001])
    assert "0.99" in chart(panel, legend([panel])) and "log scale of 1 − β" in chart(panel, legend([panel]))


@pytest.mark.parametrize("values", [[], [math.inf], [0.0, -1.0], [3.0, 3.0]])
def test_axes_of_unusual_values(values):
    axis = make_axis("y", values, is_log=True)
    assert axis.low < axis.high and len(axis.ticks) >= 3


# Charts of the page


def coordinates(path: str) -> np.ndarray:
    """Return the points of an SVG path with relative coordinates, ``[points, 2]``."""
    return np.cumsum([[float(x), float(y)] for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", path)], axis=0)


def curves(svg: str) -> list[tuple[int, str]]:
    """Return the index of the legend entry and the path of each line, from the lowest to the topmost."""
    return [
        (int(i), d) for i, d in re.findall(r'<g class="series[^"]*" data-entry="(\d+)"[^>]*><path d="([^"]*)"', svg)
    ]


def test_chart_has_the_data_of_the_panel():
    panel = Summary.from_json(lab_samples.replay().to_json()).panels[1]
    entries = legend([panel])
    svg = chart(panel, entries)
    x, y = panel_axes(panel, entries)
    width, height = (float(v) for v in re.search(r'class="plot" .* width="([\d.]+)" height="([\d.]+)"', svg).groups())
    paths = dict(curves(svg))
    assert set(paths) == set(range(5))
    for index, series in enumerate(panel.series):
        line = finite_line(panel, series)
        expected = [[x.position(a) * width, (1 - y.position(b)) * height] for a, b in zip(line.x, line.y, strict=True)]
        np.testing.assert_allclose(coordinates(paths[index]), expected, atol=0.051)
    assert len(coordinates(paths[2])) == 31 and svg.count('href="#m-end"') == 1
    assert svg.count('class="band') == 5
    assert ">40 %</text>" in svg and svg.count(">diverged</text>") == 1


def test_bands_pass_the_points_they_leave_out():
    panel = Summary.from_json(lab_samples.replay().to_json()).panels[1]
    entries = legend([panel])
    svg = chart(panel, entries)
    x, y = panel_axes(panel, entries)
    width, height = (float(v) for v in re.search(r'class="plot" .* width="([\d.]+)" height="([\d.]+)"', svg).groups())
    bands = {int(i): coordinates(d) for i, d in re.findall(r'class="band [^"]*" data-entry="(\d+)" d="([^"]*)Z"', svg)}
    for index, series in enumerate(panel.series):
        line, band = finite_line(panel, series), bands[index]
        turn = int(np.argmax(band[:, 0])) + 1
        places = [x.position(a) * width for a in line.band_x]
        for edge, values in ((band[:turn], line.high), (band[turn:][::-1], line.low)):
            exact = [(1 - y.position(value)) * height for value in values]
            drawn = np.interp(places, edge[:, 0], edge[:, 1])
            slope = np.abs(np.gradient(exact, places))
            assert np.all(np.abs(drawn - exact) <= 1.2 * np.sqrt(1 + slope**2))
    assert min(map(len, bands.values())) < 2 * len(panel.series[0].x)


def test_coordinates_have_one_decimal():
    svg = chart(lab_samples.replay().panels[0], legend(lab_samples.replay().panels))
    numbers = re.findall(r"\d+\.(\d+)", " ".join(re.findall(r' (?:d|x|y)="([^"]*)"', svg)))
    assert len(numbers) > 100 and {len(decimals) for decimals in numbers} == {1}


def test_full_correction_is_drawn_on_top_and_our_own_method_below():
    panel = lab_samples.replay().panels[0]
    entries = legend([panel])
    order = [series.method for series in drawn_series(panel, entries)]
    assert order[0] == "default" and order[-1] == "full"
    assert [entries[index].label for index, _ in curves(chart(panel, entries))] == [
        METHODS[method].label for method in order
    ]
    lines = draw([panel], "").axes[0].lines
    assert lines[-1].get_color() == METHODS["full"].style.light and lines[0].get_linewidth() > lines[-1].get_linewidth()
    assert [entry.label for entry in entries] == ["μ", "μ*", "μ̂", "μ̂ diag", "μ̂ bounded"], "the legend keeps the order"


def test_constants_are_said_in_words():
    flat = Series("adam", [0, 1, 2], [300.0] * 3, [150.0] * 3, [450.0] * 3, method="adam")
    curve = Series("full", [0, 1, 2], [1.0, 2.0, 3.0], method="full")
    lost = Series("diagonal", [0, 1, 2], [math.inf] * 3, method="diagonal", runs=9, diverged=9)
    panel = make_panel(flat, curve, lost)
    entries = legend([panel])
    said = (
        "Not drawn because constant: Adam 300 (95 % CI 150 to 450). Not drawn because too many runs diverged: μ̂ diag."
    )
    assert describe_undrawn(panel) == said
    assert [index for index, _ in curves(chart(panel, entries))] == [1]
    assert len(draw([panel], "").axes[0].lines) == 1
    assert chart(make_panel(flat), legend([make_panel(flat)])) == ""
    ordered = [replace(lab_samples.study(), panels=(panel,))]
    assert said in html_report(claim_records([]), ordered) and said in markdown_report(claim_records([]), ordered)


def test_a_single_point_is_drawn():
    panel = make_panel(Series("a", [1.0], [2.0]))
    assert 'href="#m-' in chart(panel, legend([panel])) and describe_undrawn(panel) == ""


def test_divergences_are_written_at_the_ends_of_lines():
    """Over steps, right of the axes; over a hyper-parameter the share differs from point to point."""
    series = [Series(str(i), [0, 1], [1.0, 2.0], runs=200, diverged=i) for i in (0, 1, 30, 200)]
    panel = replace(make_panel(*series), x_label="steps")
    svg = chart(panel, legend([panel]))
    ends = svg[svg.index('<g class="ends">') :]
    found = re.findall(r'<text x="([\d.]+)" y="([\d.-]+)">([^<]*)<', ends)
    assert sorted(text for *_, text in found) == ["0.5 %", "100 %", "15 %", "diverged"]
    heights = sorted(float(height) for _, height, _ in found)
    assert min(b - a for a, b in itertools.pairwise(heights)) > 10 and heights[0] >= 8, "labels do not overlap"
    left, width = (float(v) for v in re.search(r'class="plot" x="([\d.]+)" .* width="([\d.]+)"', svg).groups())
    assert all(float(x) > left + width for x, *_ in found)
    texts = draw([panel], "").axes[0].texts
    assert {"0.5 %", "15 %", "100 %", "diverged"} == {text.get_text() for text in texts if text.get_text()}
    assert all(text.get_position()[0] > 1 for text in texts if text.get_text())
    other = replace(panel, x_label="learning rate α")
    assert 'class="ends"' not in chart(other, legend([other]))


@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_labels_are_spread_within_the_axes(count, place):
    found = spread([place] * count, 0.1, high=0.9)
    assert all(a - b >= 0.1 - 1e-9 for a, b in itertools.pairwise(found))
    assert found[-1] >= 0 and found[0] <= 0.9 + 1e-9


def test_lines_that_coincide_are_named():
    def said(*lines: list[float]) -> str:
        panel = make_panel(*(Series("abc"[i], [0, 1, 2], y) for i, y in enumerate(lines)), log_y=True)
        return describe_coinciding(panel, legend([panel]))

    line = [1.0, 2.0, 3.0]
    assert said(line, [1.01, 2.0, 3.0], [1.0, 2.0, 2.96]) == "All lines coincide within 2 %."
    assert said(line, [1.01, 2.0, 3.0], [1.0, 2.0, 4.0]) == "Within 2 % at every point: a ≈ b."
    assert said(line, [1.0, 2.0, 4.0], [2.0, 2.0, 3.0]) == ""


def test_zeros_and_single_points_are_explained():
    zero = Series("diagonal", [0, 1, 2], [0.0] * 3, method="diagonal")
    point = Series("full", [1], [2.0], method="full", dashed=True)
    panel = make_panel(zero, point)
    assert describe_undrawn(panel) == "Not drawn because 0 at every point: μ̂ diag."
    assert [entry.is_point for entry in legend([panel])] == [False, True]
    handle = draw([panel], "").legends[0].legend_handles[1]
    assert handle.get_linestyle() == "None" and handle.get_markerfacecolor() == "white"


def test_titles_start_with_a_capital():
    panel = replace(make_panel(Series("a", [1], [1])), title="as the authors ran it: IQM")
    assert panel_title(panel) == "As the authors ran it: IQM"
    assert panel_title(replace(panel, title="μ̂: error")) == "μ̂: error"
    assert draw([panel], "").axes[0].get_title() == "As the authors ran it: IQM"


# Main effects


def test_forest_shows_the_first_ratio_of_each_reading():
    rows = forest_rows(claim_records(lab_samples.summaries()))
    assert [(row.claim, row.reading, row.quantity, row.value) for row in rows] == [
        (3, "text", "full / momentum", 0.63),
        (4, "text", "oracle / momentum", 0.996),
        (4, "code", "oracle / momentum", 0.39),
    ]
    assert rows[0].interval == pytest.approx((0.567, 0.693))
    assert rows[2].text == "0.39x [0.35x, 0.43x]"
    [(heading, group)] = forest_groups(rows).items()
    assert heading == GROUPS[0] and group == rows


def test_forest_skips_other_effects_and_extra_verdicts():
    other = Part("a", "holds", "b", effect=Effect("rank correlation", 0.5, is_ratio=False))
    ratio = Part("a", "holds", "b", effect=Effect("a / b", 2.0))
    own = lab_samples.cost()
    rows = forest_rows(claim_records([replace(own, verdicts=(Verdict(25, "holds", "", (other, ratio)),))]))
    assert [(row.quantity, row.interval) for row in rows] == [("a / b", None)]
    assert (
        forest_rows(claim_records([replace(own, verdicts=(Verdict(25, "holds", "", (ratio,), is_extra=True),))])) == []
    )


def test_forest_marks_divergences():
    """A method that diverges everywhere has no ratio, but is not replaced by another comparison."""
    own = lab_samples.cost()
    nowhere = Part("μ̂ is better", "does not hold", "μ̂ diverges", brief="μ̂ diverges", unstable=("full",))
    somewhere = Part("μ* is better", "holds", "0.5x", effect=Effect("μ* / μ", 0.5, (0.4, 0.6)), unstable=("momentum",))
    by_reading = (
        Verdict(25, "does not hold", "", (nowhere, somewhere)),
        Verdict(25, "holds", "", (somewhere,), reading="code"),
    )
    records = claim_records([replace(own, verdicts=by_reading)])
    rows = forest_rows(records)
    assert [row.text for row in rows] == ["μ̂ diverges", "0.50x [0.40x, 0.60x] †"]
    first, second = re.findall(r"<li data-claim.*?</li>", html_report(records, []), re.S)
    assert "<use" not in first and 'class="interval"' not in first and 'class="value"' in second
    assert "μ̂ diverges</text>" in first
    assert 'data-answer="does not hold"' in first and 'data-answer="holds"' in second
    assert [line.get_xdata().tolist() for line in draw_forest(rows).axes[0].lines[1:]] == [[0.4, 0.6], [0.5]]


def test_forest_axis_is_logarithmic_and_clipped():
    assert position(2) - position(1) == pytest.approx(position(1) - position(0.5), abs=0.11)
    assert (position(0.0), position(0.001), position(1), position(50), position(math.inf)) == (0, 0, 50, 100, 100)


def test_forest_values_on_the_page_and_in_the_plot(report_folder):
    rows = forest_rows(claim_records(lab_samples.summaries()))
    page = (report_folder / "report.html").read_text("utf-8")
    drawn = re.findall(r'<li data-claim="(\d+)" data-reading="(\w+)".*?class="value"[^>]* x="([\d.]+)%"', page, re.S)
    assert [(int(claim), reading, float(at)) for claim, reading, at in drawn] == [
        (row.claim, row.reading, position(row.value)) for row in rows
    ]
    axes = draw_forest(rows).axes[0]
    points = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 1]
    assert points == [row.value for row in rows] and axes.get_xscale() == "log"


def test_forest_marks_what_lies_beyond_the_axis():
    own = lab_samples.cost()
    part = Part("a", "holds", "b", effect=Effect("a / b", 17.9, (1.88, 74.5)))
    records = claim_records([replace(own, verdicts=(Verdict(25, "holds", "", (part,)),))])
    page = html_report(records, [])
    row = re.search(r"<li data-claim.*?</li>", page, re.S)[0]
    assert "#forest-right" in row and "#forest-left" not in row and 'class="value"' not in row
    assert "17.9x [1.88x, 74.5x]" in row
    markers = [line.get_marker() for line in draw_forest(forest_rows(records)).axes[0].lines]
    assert ">" in markers and "o" not in markers


def test_panel_table_keeps_both_ends():
    series = Series("a", list(range(100)), list(range(100, 200)))
    table = panel_table(make_panel(series, Series("b", [99], [math.inf])))
    assert table.thinned and len(table.rows) == MAX_ROWS
    assert table.rows[0] == ["0", "100", "–"]
    assert table.rows[-1] == ["99", "199", "∞"]


# Reports


def test_all_files_are_written(report_folder):
    files = {str(path.relative_to(report_folder)) for path in report_folder.rglob("*") if path.is_file()}
    drawn = {f"figures/{name}.{kind}" for name in ("fig3", "fig4", "fig19", "forest") for kind in ("pdf", "svg", "png")}
    kept = {f"summaries/{name}.json" for name in ("fig3", "fig4", "fig19", "claim25")}
    assert files == drawn | kept | {"claims.json", "REPORT.md", "report.html"}


def test_claims_json(report_folder):
    records = json.loads((report_folder / "claims.json").read_text("utf-8"), parse_constant=reject_constant)
    assert len(records) == 25
    asked = {"number", "where", "subject", "statement", "answers", "verdicts"}
    assert all(asked == set(record) for record in records)
    assert all(found["answer"] in ANSWERS for record in records for found in record["answers"].values())
    (verdict,) = records[2]["verdicts"]
    assert verdict["command"] == "unstale-lab reproduce fig3 --scale paper" and verdict["section"] == "fig3"
    assert verdict["parts"][0]["effect"] == {
        "quantity": "full / momentum",
        "value": 0.63,
        "interval": [0.567, 0.693],
        "is_ratio": True,
    }


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
    assert "Reduced: Half the seeds.\n\nSettings at full scale: Mountain Car" in text
    assert r"\<overlap> & cross" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    # Tables of deviations, costs, claims and comparisons.
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4, 6, 8, 11}


def test_markdown_opens_with_the_answer(report_folder):
    lines = [line for line in (report_folder / "REPORT.md").read_text("utf-8").splitlines() if line]
    assert lines[1].startswith("1 figure is below the paper's scale")
    assert lines[2] == "| 25 claims | as described in the text | as the authors ran it |"
    assert lines[4:6] == ["| ✓ holds | 1 | 2 |", "| ◐ holds in part | 1 | 0 |"]
    assert lines[9].startswith("μ: momentum.")
    heading = "| # | claim | in the paper | as described in the text | as the authors ran it | why | figures |"
    assert lines.index("## Main effects") == 10 < lines.index("## The 25 claims") == lines.index(heading) - 1
    both = next(line for line in lines if line.startswith("| 4 |"))
    assert "| ✗ does not hold | ✓ holds | As described in the text: The methods do not separate" in both
    assert "As the authors ran it: μ\\* has 0.39x the error of μ. | [fig4](#fig4) |" in both
    none = next(line for line in lines if line.startswith("| 1 |"))
    assert none.endswith("| – not run | – not run | Not run at a scale at which claims are judged. | – |")
    one = next(line for line in lines if line.startswith("| 3 |"))
    assert "| section 3.2, figure 3 | ◐ holds in part | – not run | μ̂ has 0.63x" in one
    assert "![Main ratio of each claim with its interval](figures/forest.png)" in lines


def test_markdown_lists_the_parts_of_a_verdict(report_folder):
    text = (report_folder / "REPORT.md").read_text("utf-8")
    assert "- ✓ 0.63x, paired p \\< 0.001 (Holm), Welch p = 0.012: “μ̂ differs from μ” holds.\n" in text
    assert "| μ̂ / μ | 0.63x [0.57x, 0.69x] | 0.91 | 0.038 | 0.06 | \\< 0.001 |" in text
    assert "**Claim 4 (as the authors ran it): ✓ holds.**" in text


def test_html_escapes_text(report_folder):
    text = (report_folder / "report.html").read_text("utf-8")
    assert "Intervals &lt;overlap&gt; &amp; cross" in text
    assert "<b>SELU</b>" not in text
    assert "Diverged: μ̂ 72 of 180 runs." in text and "Diverged: μ, width 16 3 of 60 runs." in text


def test_html_links_are_valid(report_folder):
    text = (report_folder / "report.html").read_text("utf-8")
    names = re.findall(r' id="([^"]+)"', text)
    assert len(names) == len(set(names))
    links = re.findall(r'(?:href|src)="([^"]*)"', text)
    assert {link[1:] for link in links if link.startswith("#")} <= set(names)
    files = [link for link in links if not link.startswith(("#", "data:"))]
    assert files and all((report_folder / link).exists() for link in files)


def claim_html(page: str, number: int) -> str:
    return re.search(rf'<tbody role="rowgroup" id="claim-{number}".*?(?=<tbody role|</section>)', page, re.S)[0]


def test_html_has_one_answer_per_reading(report_folder):
    page = (report_folder / "report.html").read_text("utf-8")
    one, two, none = (claim_html(page, number) for number in (3, 4, 1))
    outside = one[: one.index("<details>")]
    assert re.findall(r'class="badge" data-answer="([^"]+)"', outside) == ["holds in part"]
    assert "as described in the text" not in outside and "μ̂ has 0.63x the error of μ at α ≤ 0.1" in outside
    outside = two[: two.index("<details>")]
    assert re.findall(r'class="badge" data-answer="([^"]+)"', outside) == ["does not hold", "holds"]
    assert outside.index("as described in the text") < outside.index("as the authors ran it")
    assert "section 3.1, figure 1" in none and 'data-answer="not run"' in none and "<details>" not in none


def test_html_unfolds_parts_and_comparisons(report_folder):
    details = claim_html((report_folder / "report.html").read_text("utf-8"), 3).split("<details>")[1]
    assert re.findall(r"<li>([^<,]+), <span[^>]*>[^<]+</span>: <b>([^<]+)</b>", details) == [
        ("0.63x", "μ̂ differs from μ"),
        ("0.88x", "μ* differs from μ̂"),
        ("infx", "μ̂ diag differs from μ̂"),
    ]
    assert '<th scope="col">ratio a / b [95 % CI]</th>' in details
    assert '<td>0.63x <span class="faint">[0.57x, 0.69x]</span>' in details
    assert "At α = 0.5, 72 of 180 runs of μ̂ diverged." in details and 'href="#fig3"' in details


def test_a_comparison_of_two_parts_is_listed_once():
    part = lab_samples.part("μ̂ differs from μ", "holds", "full", "momentum", 0.63)
    parts = (part, replace(part, statement="μ̂ is close to μ", answer="does not hold"))
    verdict = Verdict(25, "holds in part", "", parts)
    own = Summary.from_json(replace(lab_samples.cost(), verdicts=(verdict,)).to_json())
    assert html_report(claim_records([own]), [own]).count('<span class="faint">[0.57x, 0.69x]') == 1
    assert markdown_report(claim_records([own]), [own]).count("[0.57x, 0.69x]") == 1


def test_other_effects_say_what_they_are(tmp_path):
    part = Part("close to 1", "holds", "high", effect=Effect("cosine", 0.95, (0.9, 1.0), is_ratio=False))
    own = replace(lab_samples.cost(), verdicts=(Verdict(25, "holds", "", (part,)),))
    assert "cosine: 0.95 (95 % CI 0.9 to 1)" in html_report(claim_records([own]), [own])


def test_html_says_where_a_figure_was_reduced_first(report_folder):
    page = (report_folder / "report.html").read_text("utf-8")
    reduced, full = (re.search(rf'<section id="{name}".*?</section>', page, re.S)[0] for name in ("fig19", "fig3"))
    assert reduced.index("Half the seeds.") < reduced.index("<dt>Settings at full scale</dt>")
    assert "<dt>Settings</dt>" in full and "full scale" not in full


def test_no_other_words_for_verdicts(report_folder):
    for name in ("report.html", "REPORT.md"):
        assert "inconclusive" not in (report_folder / name).read_text("utf-8")


def test_size_of_a_whole_report():
    """29 figures with as many lines as those of the paper: about 400, of which most have 51 points."""
    replayed, rates = lab_samples.replay(), lab_samples.learning_rate()
    verdicts = [replace(replayed.verdicts[0], claim=number) for number in range(1, 26)]
    names = [f"fig{number}" for number in range(1, 20)] + [f"claim{number}" for number in range(20, 30)]
    whole = [
        replace(replayed, name=name, panels=(*replayed.panels, *rates.panels), verdicts=(verdicts[i % 25],) * 2)
        for i, name in enumerate(names)
    ]
    assert sum(len(panel.series) for summary in whole for panel in summary.panels) == 377
    size = len(html_report(claim_records(whole), whole).encode())
    assert 500_000 < size < 1_500_000


def test_size_of_the_published_page():
    published = read_summaries(Path(__file__).parents[2] / "results")
    assert 1_000_000 < len(html_report(claim_records(published), published).encode()) < 1_500_000


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
    assert ("Of the paper" in page) == ("| 25 claims |" in text) == (not is_small)


def test_small_runs_follow_the_tally_of_others():
    small = replace(lab_samples.replay(), scale="quick", measured=["Momentum ended at 0.03."])
    tally, measured, note = answer([small, lab_samples.online()]).split("\n")
    assert (
        tally.startswith("Of the paper's 25 claims, as described in the text, 1 does not hold and 24")
        and measured == "Momentum ended at 0.03."
    )
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
    assert '<th scope="row">a | b &amp; &lt;c&gt;</th><td>–</tr>' in page
    assert "- The error is lower on 2 of 2 problems & p \\< 0.001.\n- Second\\_sentence\\_." in text
    assert "**Final MSE \\<mean>**\n\n| optimizer | MSE |\n| --- | --- |\n| Adam | 0.012 [0.01, 0.02] |" in text
    assert "Claim 0" not in page + text


# Damaged or odd summaries


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda own: own | {"scale": "zzz"}, "its scale 'zzz' is none of"),
        (lambda own: own | {"seconds": "inf"}, "its seconds are not a finite number"),
        (lambda own: own["verdicts"][0].update(answer="maybe") or own, "the answer 'maybe' is none of"),
        (lambda own: own["verdicts"][0].update(reading="other") or own, "the reading 'other' is none of"),
        (lambda own: own["panels"][0]["series"][0]["y"].pop() and own, "has values of different lengths"),
        (lambda own: own["panels"][0]["series"][0].update(diverged="5") or own, "its diverged is '5', which is no int"),
        (lambda own: own["panels"][0].update(title=None) or own, "its title is None, which is no str"),
        (lambda own: own["verdicts"][0].update(why=[1]) or own, "its why is [1], which is no str"),
        (lambda own: own["verdicts"][0]["parts"][0].update(is_main="no") or own, "which is no bool"),
        (lambda own: own["verdicts"][0]["parts"][0].update(unstable=[3]) or own, "which is no tuple[str, ...]"),
        (lambda own: own["verdicts"][0]["parts"][0]["effect"].update(interval=["nan", "inf"]) or own, "is empty"),
        (lambda own: own["verdicts"][0]["parts"][0]["effect"].update(interval=[1, 2, 3]) or own, "too many values"),
        (lambda own: own | {"tables": [{"title": "t", "heading": ["a"], "rows": [[1]]}]}, "cells that are not texts"),
        (lambda own: own | {"title": "\ud800"}, "surrogates not allowed"),
        (lambda own: own | {"machines": "H200"}, "its machines is 'H200', which is no list"),
        (lambda own: own | {"panels": {}}, "its panels is {}, which is no list"),
        (lambda own: own["verdicts"][0].update(parts=[]) or own, "has no parts"),
        (lambda own: own["verdicts"][0]["parts"][0].update(comparison=0) or own, "is not a summary"),
        (lambda own: own["verdicts"][0]["parts"][0].update(effect={}) or own, "is not a summary"),
        (lambda own: own["verdicts"][0]["parts"][0]["effect"].update(value="nan") or own, "has no value"),
        (lambda own: own["verdicts"][0]["parts"][0]["comparison"].update(p_holm=7.0) or own, "its p_holm is 7.0"),
        (lambda own: own["verdicts"][0]["parts"][0]["comparison"].update(ratio=-1) or own, "its ratio is -1.0"),
        (lambda own: own["verdicts"][0].update(answer="holds") or own, "that of its parts 'holds in part'"),
        (lambda own: own | {"cut": "Half.", "verdicts": [_refuted(own)]}, "that of its parts 'undecided'"),
        (lambda own: own["panels"][0]["series"][0]["x"].__setitem__(0, "nan") or own, "a place that is not finite"),
        (lambda own: own | {"runs": -1}, "its runs is -1"),
        (lambda own: own | {"runs": True}, "its runs is True"),
        (lambda own: own | {"seconds": -1}, "not a finite number of at least 0"),
    ],
)
def test_invalid_summaries_are_refused(tmp_path, damage, message):
    own = damage(json.loads(lab_samples.replay().to_json()))
    (tmp_path / "summaries").mkdir()
    (tmp_path / "summaries" / "fig3.json").write_text(json.dumps(own), "utf-8")
    with pytest.raises(DataError, match=re.escape(message)):
        read_summaries(tmp_path)


def _refuted(own):
    """Return the first verdict with a single part that does not hold."""
    verdict = own["verdicts"][0]
    return verdict | {"answer": "does not hold", "parts": verdict["parts"][2:]}


@pytest.mark.parametrize("text", ["[" * 200_000, '{"name": "fig3", "seconds": 1e999}', '{"name": "fig4"}'])
def test_hostile_summaries_give_one_line(tmp_path, text):
    (tmp_path / "summaries").mkdir()
    (tmp_path / "summaries" / "fig3.json").write_text(text, "utf-8")
    with pytest.raises(DataError, match=r"^[^\n]*fig3.json is not a summary[^\n]*$"):
        read_summaries(tmp_path)


def test_a_summary_under_another_name_is_refused(tmp_path):
    write_summary(lab_samples.replay(), tmp_path)
    (tmp_path / "summaries" / "fig3.json").rename(tmp_path / "summaries" / "fig5.json")
    with pytest.raises(DataError, match="it is the summary of fig3"):
        read_summaries(tmp_path)


@pytest.mark.parametrize(
    "x, y, more",
    [
        ([0.0, 1.0], [0.0, -1.0], {"log_y": True}),
        ([0.0], [1.0], {"log_x": True}),
        ([0.0, 1.0, 2.0], [1.0, 2.0, 3.0], {"log_x": True}),
        ([0.9, 0.99, 1.0], [1.0, 2.0, 3.0], {"x_label": "momentum β"}),
        ([0.0, math.inf, math.nan], [1.0, 2.0, 3.0], {}),
        ([0.0, 1.0], [1e-300, 1.7e308], {"log_y": True}),
        ([0.0, 1.0], [5e-324, 1e-310], {"log_y": True}),
        ([0.0, 1.0], [-1.7e308, 1.7e308], {}),
    ],
)
def test_odd_values_can_be_drawn(x, y, more):
    """Alone and beside an ordinary line, with bands."""
    odd = Series("odd", x, y, y, y)
    for series in ([odd], [odd, Series("ordinary", [1.0, 2.0], [1.0, 3.0])]):
        panel = replace(make_panel(*series), **more)
        svg = chart(panel, legend([panel]))
        assert "nan" not in svg and "inf" not in svg
        if max(map(abs, y)) < 1e300:  # beyond, matplotlib overflows
            draw([panel], "odd")
