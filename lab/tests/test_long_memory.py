"""The study of tuned optimizers: its runs, and its analysis on synthetic records with known effects."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from unstale_lab import cli
from unstale_lab.analysis import curves
from unstale_lab.engine.settings_check import check_settings
from unstale_lab.experiment import SCALES, Run
from unstale_lab.figures import find
from unstale_lab.figures.long_memory import CONTESTANTS, QUICK_SETTINGS, RATES, SETUPS, STUDY
from unstale_lab.figures.shared import tuned
from unstale_lab.figures.shared.contest import Contestant, Setup, Study, holm_p, results
from unstale_lab.figures.shared.contest_findings import findings, measured
from unstale_lab.figures.shared.contest_panels import learning_panels, rate_panels
from unstale_lab.figures.shared.contest_tables import samples_needed, tables
from unstale_lab.figures.shared.tuned import Sweep, matched_cells, mean_interval, ratio, select_setting, sweep, tune
from unstale_lab.methods import METHODS
from unstale_lab.records import Record
from unstale_lab.report import claim_records
from unstale_lab.summary import read_summaries

inf = math.inf
SETUP = Setup("Mountain Car, batches", "mountain_car_scaled", steps=100)
STREAM = Setup("Mountain Car, stream", "mountain_car_online", batch=1, steps=100)
ADAM = Contestant("adam", "Adam", "reference", betas=(0.0, 0.99), is_drawn=True)
ANNEALED = Contestant("annealed", "Adam, annealed", "reference", settings={"lr_schedule": "linear"}, is_drawn=True)
BIG = Contestant("big", "Adam, 4x the batch", "peer", batch_factor=4, only="batch")
DENSE = Contestant("dense", "Corrected Adam", "ours", method="adam_dense", betas=(0.99,), is_drawn=True)
SMALL_STUDY = Study((STREAM, SETUP), (ADAM, ANNEALED, BIG, DENSE), headline="dense")
ALPHAS, SEEDS = [0.001, 0.01, 0.1], list(range(15))


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(curves, "BAND_RESAMPLES", 40)


def record(run: Run, error: float, noise: float = 0.1) -> Record:
    """Return a record that falls to ``error`` within half the training; it diverges if that is infinite."""
    at = np.arange(51) * (run.steps // 50)
    way = at / run.steps
    end = error if math.isfinite(error) else 1.0
    factor = math.exp(random.Random(f"{run.seed} {run.method} {run.lr_schedule}").gauss(0, noise))
    errors = 2.5 * (end * factor / 2.5) ** np.minimum(1, 2 * way)
    if not math.isfinite(error):
        errors = np.where(way > 0.5, inf, errors)
    return Record(run, at, {"evaluation": errors}, None if math.isfinite(error) else run.steps // 2, 100, 100, 1, 1.0)


def make_records(error, study=SMALL_STUDY, seeds=SEEDS, alphas=ALPHAS) -> list[Record]:
    """Return records of all contestants; ``error`` gives the final error of a run."""
    runs = {
        run: None
        for setup in study.setups
        for contestant in study.contestants
        if contestant.takes_part_in(setup)
        for run in contestant.runs(setup, alpha=alphas, beta=list(contestant.betas), seed=seeds, steps=setup.steps)
    }
    return [record(run, error(run)) for run in runs]


def usual_error(run: Run) -> float:
    """Best at α 0.01 and β 0; annealing and batches help; the correction helps most."""
    error = 0.1 * (1 + abs(math.log10(run.alpha / 0.01))) * (2 if run.beta else 1)
    error *= 0.5 if run.lr_schedule == "linear" else 1
    error *= 0.25 if run.batch == 64 else 1
    return error * (0.1 if run.method == "adam_dense" else 1)


# The runs.


def test_contestants_have_names_labels_and_known_methods():
    assert len({c.name for c in CONTESTANTS}) == len({c.label for c in CONTESTANTS}) == len(CONTESTANTS)
    assert {c.method for c in CONTESTANTS} <= set(METHODS)
    assert all((c.role == "ours") == (METHODS[c.method].correction != "none") for c in CONTESTANTS)
    assert all(c.batch_factor == 1 and not c.only for c in CONTESTANTS if c.role == "reference")
    assert STUDY.headline in {c.name for c in CONTESTANTS}


@pytest.mark.parametrize("scale", SCALES)
def test_all_runs_are_valid(scale):
    for run in find("long_memory").runs(scale):
        check_settings(run)


def test_paper_scale_is_the_whole_search():
    runs = find("long_memory").runs("paper")
    adam = [
        run for run in runs if run == replace(Run(method="adam"), **{
            name: getattr(run, name) for name in ("alpha", "beta", "seed", "problem", "n_step", "batch", "steps")
        }) and run.batch <= 16
    ]  # fmt: skip
    assert len(adam) == 5 * len(SETUPS) * len(RATES) * 15  # β 0, 0.9, 0.99, 0.997 and 0.999
    assert {run.seed for run in runs} == set(range(15))
    assert {run.steps for run in runs if run.batch == 1} == {20_000}
    assert {run.steps for run in runs if run.batch > 1} == {5000}
    assert {run.batch for run in runs} == {1, 16, 64, 256}
    assert {run.trace_decay for run in runs if run.batch > 1} == {0.0}


def test_every_corrected_run_has_an_uncorrected_one_at_the_same_setting():
    runs = find("long_memory").runs("paper")
    corrected = [run for run in runs if METHODS[run.method].correction != "none"]
    assert {replace(run, method="adam", slots=0) for run in corrected} <= set(runs)


def test_number_of_runs():
    assert len(find("long_memory").runs("paper")) == 11_160 and len(RATES) == 6


def test_the_headline_is_the_library_default():
    (headline,) = [c for c in CONTESTANTS if c.name == STUDY.headline]
    assert headline.method == "adam_default" and not headline.settings and headline.beta_grows
    assert headline.betas == (Run().beta,)  # so that it is compared with Adam at β 0.9
    assert {c.settings["slots"] for c in CONTESTANTS if c.method == "adam_reservoir"} == {256, 1024, 4096}
    assert {c.kind for c in CONTESTANTS if c.role == "reference"} == {
        "constant learning rate",
        "annealed",
        "averaged weights",
    }


def test_quick_scale_has_one_setting_per_contestant():
    by_name = {c.name: c for c in CONTESTANTS}
    problems = {setup.problem for setup in SETUPS}
    for problem, settings in QUICK_SETTINGS.items():
        assert problem in problems and STUDY.headline in settings
        assert all(alpha in RATES and beta in by_name[name].betas for name, (alpha, beta) in settings.items())
    assert len(find("long_memory").runs("quick")) == 3 * sum(map(len, QUICK_SETTINGS.values()))


# Selection and statistics.


def test_final_error_is_the_mean_over_the_last_tenth():
    run = ADAM.runs(SETUP, alpha=0.01, beta=0.0, seed=5, steps=100)[0]
    errors = np.arange(51.0)
    found = sweep([Record(run, np.arange(51) * 2, {"evaluation": errors}, None, 1, 1, 1, 1.0)])
    assert found.final.item() == np.mean([46, 47, 48, 49, 50]) and found.area.item() == np.mean(np.arange(1, 51))


def make_sweep(final, seeds, settings=None) -> Sweep:
    final = np.asarray(final, dtype=float)
    settings = settings or [(10.0**-i, 0.9) for i in range(len(final))]
    return Sweep(
        settings, list(seeds), np.array([0.0, 1.0]), np.stack([np.full_like(final, 3), final]), final, 2 * final
    )


def test_tuning_seeds_select_and_test_seeds_are_reported():
    # The second setting is best on seeds 0 and 1, the third on the test seeds, which must not matter.
    found = tune(make_sweep([[5, 5, 5, 5], [1, 2, 8, 9], [3, 3, 0.1, 0.1], [4, 4, 4, 4]], seeds=[0, 1, 5, 6]))
    assert (found.alpha, found.beta) == (0.1, 0.9)
    assert found.final.tolist() == [8, 9] and found.area.tolist() == [16, 18] and found.curves.shape == (2, 2)
    assert not found.is_at_range_end and found.diverged == 0 and found.grid_runs == 16


def test_a_selected_rate_at_an_end_of_the_range_is_marked():
    assert tune(make_sweep([[1, 1], [2, 2]], seeds=[0, 5])).is_at_range_end
    assert not tune(make_sweep([[1, 1]], seeds=[0, 5])).is_at_range_end  # nothing was selected


def test_divergence_is_infinite_in_the_selection():
    assert select_setting(np.array([[0.1, 0.1, inf], [9.0, 9.0, 9.0]])) == 1
    assert select_setting(np.array([[0.1, inf, inf], [9.0, 8.0, inf], [9.0, 7.0, inf]])) == 2
    assert select_setting(np.full((3, 2), inf)) == 0


def test_one_setting_needs_no_tuning_seeds():
    assert tune(make_sweep([[1, 2]], seeds=[5, 6])).final.tolist() == [1, 2]
    for errors, seeds in [([[1, 2], [3, 4]], [5, 6]), ([[1, 2], [3, 4]], [0, 1])]:
        with pytest.raises(ValueError, match="some must be tuning seeds"):
            tune(make_sweep(errors, seeds))


def test_ratio_matches_a_t_test_on_logarithms():
    generator = np.random.default_rng(0)
    a, b = np.exp(generator.normal(-1, 0.5, 10)), np.exp(generator.normal(0, 0.5, 10))
    found = ratio(a, b, worst_error=100.0)
    expected = stats.ttest_1samp(np.log(a) - np.log(b), 0)
    assert found.value == pytest.approx(stats.gmean(a) / stats.gmean(b))
    assert found.p == pytest.approx(expected.pvalue)
    assert np.log(found.interval) == pytest.approx(expected.confidence_interval())
    assert ratio(b, a, 100.0).value == pytest.approx(1 / found.value)


def test_a_diverged_run_counts_as_the_worst_error():
    assert ratio(np.array([inf, 1.0]), np.array([1.0, 1.0]), worst_error=4.0).value == pytest.approx(2)
    assert tuned.worst_error([make_sweep([[1, inf], [7, 2]], [0, 5])]) == 7
    assert tuned.worst_error([make_sweep([[1, inf]], [0, 5])]) == 3  # before the first step


def test_few_seeds_are_never_significant():
    few, enough = (ratio(np.full(n, 1.0), np.full(n, 2.0), 9.0) for n in (4, 5))
    assert not few.is_significant and enough.is_significant


def test_cells_are_settings_of_both_without_divergence():
    seeds, settings = range(5, 15), [(0.1, 0.9), (0.1, 0.99), (0.01, 0.9), (0.001, 0.9)]
    jitter = np.linspace(0.99, 1.01, 10)
    ours = make_sweep([2 * jitter, jitter, 0.5 * jitter, jitter], seeds, settings)
    ours.final[1, 3] = inf
    theirs = make_sweep([jitter[::-1], jitter, jitter[::-1], jitter], seeds, [*settings[:3], (0.5, 0.9)])
    found = {(cell.alpha, cell.beta): cell for cell in matched_cells(ours, theirs, worst_error=10.0)}
    assert set(found) == set(settings[:3])
    assert found[0.1, 0.9].is_worse and not found[0.1, 0.9].is_better
    assert found[0.01, 0.9].is_better and not found[0.01, 0.9].is_worse
    assert found[0.1, 0.99].ratio.value > 1  # ours diverged once
    theirs.final[0, 2] = inf  # in a test seed: nothing to be worse than
    assert (0.1, 0.9) not in {(cell.alpha, cell.beta) for cell in matched_cells(ours, theirs, 10.0)}


# The study.


def test_results_are_of_tuned_contestants():
    stream, batches = results(SMALL_STUDY, make_records(usual_error))
    assert list(stream.entries) == ["adam", "annealed", "dense"] and list(batches.entries)[2] == "big"
    adam = batches.entries["adam"].tuned
    assert (adam.alpha, adam.beta) == (0.01, 0.0) and len(adam.final) == 10 and adam.grid_runs == 6 * 15
    assert batches.entries["adam"].mean_error == pytest.approx(0.1, rel=0.1)


def test_the_reference_is_the_best_adam_with_the_same_samples():
    _, batches = results(SMALL_STUDY, make_records(usual_error))
    assert batches.reference.contestant == ANNEALED  # not the one with four times the samples, which is better
    found = batches.ratio(batches.entries["dense"])
    assert found.value == pytest.approx(0.02 / 0.1, rel=0.1) and found.p < 1e-4 and found.seeds == 10


def test_holm_is_over_corrected_contestants_of_all_setups():
    found = results(SMALL_STUDY, make_records(usual_error))
    ps = holm_p(found)
    assert set(ps) == {(setup.label, "dense") for setup in (STREAM, SETUP)}
    smallest = min(found, key=lambda result: result.ratio(result.entries["dense"]).p)
    single = smallest.ratio(smallest.entries["dense"]).p
    assert ps[smallest.setup.label, "dense"] == pytest.approx(2 * single)


@pytest.mark.parametrize(
    "factor, conclusion, counts",
    [
        (0.1, "the error is significantly lower", "lower on 2, significantly higher on 0, and undecided on 0"),
        (2.0, "the error is significantly higher", "lower on 0, significantly higher on 2, and undecided on 0"),
        (0.5, "the difference is not significant", "lower on 0, significantly higher on 0, and undecided on 2"),
    ],
)
def test_findings_follow_the_effect(factor, conclusion, counts):
    def error(run: Run) -> float:
        return usual_error(run) * (factor / 0.1 if run.method == "adam_dense" else 1)

    found = results(SMALL_STUDY, make_records(error))
    sentences = findings(SMALL_STUDY, found)
    assert counts in sentences[0] and "“Corrected Adam” against the best tuned reference" in sentences[0]
    assert sentences[1].startswith(
        "Mountain Car, stream (one transition per step, 100 samples): “Corrected Adam” (α 0.01"
    )
    assert sentences[2].startswith("Mountain Car, batches (16 transitions per step, 1,600 samples)")
    assert all(conclusion in sentence for sentence in sentences[1:3])
    assert "“Adam, 4x the batch” (α 0.01, β 0.9), has 0.0" in sentences[2] and "6,400 samples" in sentences[2]


def test_findings_list_cells_in_which_the_correction_is_worse():
    def error(run: Run) -> float:
        return usual_error(run) * (50 if run.method == "adam_dense" and run.alpha == 0.1 and run.batch == 1 else 1)

    sentences = findings(SMALL_STUDY, results(SMALL_STUDY, make_records(error)))
    own, every = sentences[3:5]
    assert own.startswith("“Corrected Adam” against uncorrected Adam at equal α, where the latter never diverges (6 ")
    assert "significantly lower in 5 and significantly higher in 1 (Mountain Car, stream, α 0.1: 4." in own
    assert re.search(r"α 0\.1: 4\.\d+x \(95 % CI 4\.\d+x to 5\.\d+x\), p < 0\.001\)\.$", own)
    assert "(6 cells)" in every and "lower in 5 and significantly higher in 1 (p < 0.05 each; 1 after Holm's" in every


def test_a_growing_beta_is_compared_with_adam_at_its_usual_beta():
    default = Contestant("default", "CorrectedAdam (default)", "ours", method="adam_default")
    slots = Contestant("slots", "reservoir", "ours", method="adam_reservoir", settings={"slots": 8})
    adam = replace(ADAM, betas=(0.0, 0.9))
    study = Study((SETUP,), (adam, ANNEALED, default, slots), headline="default")

    def error(run: Run) -> float:
        return usual_error(run) * (1.1 if run.method in ("adam_default", "adam_reservoir") else 1)

    found = results(study, make_records(error, study, seeds=list(range(60))))
    assert [(contestant.name, cell.alpha, cell.beta) for contestant, cell in found[0].cells] == [
        (name, alpha, 0.9) for name in ("default", "slots") for alpha in ALPHAS
    ]
    sentences = findings(study, found)
    assert "“CorrectedAdam (default)” (α 0.01, β grows)" in sentences[1]
    assert "against uncorrected Adam (β 0.9) at equal α" in sentences[2]
    assert re.search(r"α 0\.01: 1\.\d+x \(95 % CI 1\.\d+x to 1\.\d+x\), p < 0\.001", sentences[2])
    _, _, setup, counts, worse = tables(study, found)
    assert [row[2] for row in setup.rows] == ["0", "0.9", "grows", "grows"]
    assert len(counts.rows) == 2 and len(worse.rows) == 6 and worse.rows[0][:4] == [
        SETUP.label, "CorrectedAdam (default)", "0.001", "grows"
    ]  # fmt: skip
    assert re.match(r"1\.\d+x \(95 % CI", worse.rows[0][4])


def test_findings_compare_with_the_best_reference_of_each_kind():
    kinds = (replace(ADAM, kind="constant learning rate"), replace(ANNEALED, kind="annealed"), BIG, DENSE)
    study = replace(SMALL_STUDY, contestants=kinds)
    found = results(study, make_records(usual_error, study))
    assert [e.contestant.name for e in found[1].best_by_kind().values()] == ["adam", "annealed"]
    expected = r"each kind: constant learning rate 0\.1\d* \([^)]*, p < 0\.001\), annealed 0\.\d+ \("
    assert re.search(expected, findings(study, found)[2])


def test_mean_and_median_are_both_shown():
    def error(run: Run) -> float:
        return usual_error(run) * (100 if run.method == "adam_dense" and run.seed == 14 else 1)  # on a plateau

    found = results(SMALL_STUDY, make_records(error))
    entry = found[0].entries["dense"]
    assert entry.mean_error > 5 * entry.median_error
    overview, _, stream, *_ = tables(SMALL_STUDY, found)
    assert overview.rows[3][1] == f"{entry.mean_error:.3g} ({entry.median_error:.3g})"
    row = dict(zip(stream.heading, stream.rows[2], strict=True))
    assert float(row["IQM"]) == pytest.approx(entry.median_error, rel=0.2)
    assert f"median {entry.median_error:.3g})" in findings(SMALL_STUDY, found)[1]


def test_findings_count_divergences_and_ends_of_the_range():
    def error(run: Run) -> float:
        return inf if run.method == "adam_dense" and run.alpha >= 0.01 and run.batch == 16 else usual_error(run)

    sentences = findings(SMALL_STUDY, results(SMALL_STUDY, make_records(error)))
    assert sentences[-2] == (
        "Diverged runs, over all settings that were tried: “Corrected Adam” 30 of 90, all corrected optimizers 30 of "
        "90, references 0 of 270, other peers 0 of 45."
    )
    assert sentences[-1].endswith("may lie outside. Mountain Car, batches: “Corrected Adam”.")


def test_few_seeds_decide_nothing():
    sentences = findings(SMALL_STUDY, results(SMALL_STUDY, make_records(usual_error, seeds=[0, 5, 6, 7])))
    assert "undecided on 2" in sentences[0] and "3 seeds, too few to decide (at least 5)" in sentences[1]


def test_measured_errors_come_without_tests():
    few = results(SMALL_STUDY, make_records(usual_error, seeds=[0, 5, 6, 7]))
    stream, batches = measured(SMALL_STUDY, few)
    errors = [f"{few[1].entries[name].mean_error:.3g}" for name in ("dense", "adam", "annealed")]
    assert batches == (
        f"Mountain Car, batches (16 transitions per step, 1,600 samples): “Corrected Adam” ended at an error of "
        f"{errors[0]}, “Adam” at {errors[1]}, “Adam, annealed” at {errors[2]}; lower than “Adam, annealed” in 3 of 3 "
        "seeds."
    )
    assert stream.startswith("Mountain Car, stream (one transition per step, 100 samples): “Corrected Adam” ended at")


def test_tables_have_all_contestants():
    found = results(SMALL_STUDY, make_records(usual_error))
    overview, samples, stream, batches, cells = tables(SMALL_STUDY, found)
    assert [row[0] for row in samples.rows] == [row[0] for row in overview.rows]
    assert [row[0] for row in overview.rows] == [c.label for c in SMALL_STUDY.contestants]
    assert overview.heading == ["optimizer", STREAM.label, SETUP.label] and overview.rows[2][1] == "–"
    assert len(stream.rows) == 3 and len(batches.rows) == 4
    row = dict(zip(batches.heading, batches.rows[1], strict=True))
    assert row["ratio to the best reference [95 % CI]"] == "1 (reference)" and row["samples"] == "1,600"
    low, high = mean_interval(found[1].reference.tuned.final)
    assert row["final MSE [95 % CI]"].endswith(f"[{low:.3g}, {high:.3g}]")
    ours = dict(zip(batches.heading, batches.rows[3], strict=True))
    assert (
        ours["p, Holm"] == "< 0.001" and ours["diverged"] == "0 of 10" and ours["diverged in the search"] == "0 of 45"
    )
    assert [row[:5] for row in cells.rows] == [[s.label, "Corrected Adam", "3", "3", "0"] for s in (STREAM, SETUP)]
    assert all(
        len(row) == len(table.heading) for table in (overview, samples, stream, batches, cells) for row in table.rows
    )


def with_low_errors_at(result, name, points):
    """Return the result with other curves of a contestant: below the reference's final error at these points only."""
    entry = result.entries[name]
    curves = np.full_like(entry.tuned.curves, 2 * result.reference.mean_error)
    curves[points] = 0.5 * result.reference.mean_error
    entry = replace(entry, tuned=replace(entry.tuned, curves=curves))
    return replace(result, entries={**result.entries, name: entry})


@pytest.mark.parametrize(
    ("name", "points", "needed"),
    [
        ("dense", slice(7, None), 14 * 16),
        ("dense", [3, 20], 6 * 16),  # the first time, even if the error rises again
        ("dense", [0], 0),
        ("dense", [50], 1600),
        ("dense", [], None),
        ("big", slice(7, None), 14 * 64),  # four times the samples per step
        ("adam", [10], 20 * 16),
    ],
)
def test_samples_until_the_error_of_the_best_reference(name, points, needed):
    """Measurements are two steps apart."""
    _, batches = results(SMALL_STUDY, make_records(usual_error))
    changed = with_low_errors_at(batches, name, points)
    assert changed.reference.contestant == ANNEALED
    assert samples_needed(changed, changed.entries[name]) == needed


def test_samples_are_counted_until_the_mean_over_seeds_is_low():
    """A seed that is as low alone does not count, and one that diverges is never made up for."""
    _, batches = results(SMALL_STUDY, make_records(usual_error))
    changed = with_low_errors_at(batches, "dense", slice(10, None))
    curves = changed.entries["dense"].tuned.curves
    curves[5:10, 0] = 0.0
    assert samples_needed(changed, changed.entries["dense"]) == 20 * 16
    curves[10:, 1] = inf
    assert samples_needed(changed, changed.entries["dense"]) is None


def test_table_of_samples_needed():
    stream, batches = results(SMALL_STUDY, make_records(usual_error))
    found = [with_low_errors_at(stream, "dense", [25]), with_low_errors_at(batches, "dense", [])]
    found[1] = with_low_errors_at(found[1], "big", [30])
    table = tables(SMALL_STUDY, found)[1]
    assert table.title == "Samples until the mean error over test seeds reaches the best reference's final error"
    assert table.heading == ["optimizer", f"{STREAM.label} (Adam, annealed)", f"{SETUP.label} (Adam, annealed)"]
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["Corrected Adam"] == ["50", "–"]  # never in batches
    assert rows["Adam, 4x the batch"] == ["–", "3,840"]  # no part in the stream
    assert rows["Adam"] == ["–", "–"]


def test_panels_show_error_over_samples():
    found = results(SMALL_STUDY, make_records(usual_error))
    stream, batches = learning_panels(found)
    assert stream.title == STREAM.label and stream.x_label == "samples" and stream.log_y
    assert [series.label for series in batches.series] == ["Adam", "Adam, annealed", "Corrected Adam"]
    assert stream.series[0].x[-1] == 100 and batches.series[0].x[-1] == 1600
    assert {series.runs for series in batches.series} == {10}
    rates, _ = rate_panels(found)
    assert rates.log_x and list(rates.series[0].x) == ALPHAS
    assert rates.series[0].y[1] == pytest.approx(0.1, rel=0.1)  # at the selected β


def test_contestants_with_the_same_runs_are_shown_once():
    twin = replace(DENSE, name="twin", label="the same")
    study = replace(SMALL_STUDY, contestants=(*SMALL_STUDY.contestants, twin))
    for result in results(study, make_records(usual_error, study)):
        assert "twin" not in result.entries


def test_setups_without_records_are_left_out():
    own = [record for record in make_records(usual_error) if record.run.batch > 1]
    (batches,) = results(SMALL_STUDY, own)
    assert batches.setup == SETUP


def test_smoke_scale_from_runs_to_report(tmp_path, capsys):
    store, out = str(tmp_path / "store"), tmp_path / "report"
    cli.main(["reproduce", "long_memory", "--scale", "smoke", "--jobs", "1", "--store", store])
    cli.main(["report", "--store", store, "--out", str(out)])
    said = capsys.readouterr().err
    assert "claims" not in said and "Verdicts at full scale: results/REPORT.md." in said
    assert all(sentence in said for sentence in read_summaries(out)[0].measured)
    (summary,) = read_summaries(out)
    assert summary.claims == () and summary.verdicts == () and summary.scale == "smoke"
    assert len(summary.findings) >= 4 and len(summary.tables) == 5 and len(summary.panels) == 4
    assert "smaller than the full one" in summary.cut
    assert {record["answers"]["text"]["answer"] for record in claim_records([summary])} == {"not run"}
    markdown, page = (out / "REPORT.md").read_text("utf-8"), (out / "report.html").read_text("utf-8")
    assert "| CorrectedAdam (default) | 0.01 | grows |" in markdown and f"- {summary.findings[1]}" in markdown
    assert summary.findings[1] in page and '<th scope="row">CorrectedAdam (default)</th>' in page
