"""Panels, tables and sentences of a study of tuned optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..statistics import clip_errors, holm, iqm
from .contest import Entry, Setup, SetupResult, Study, holm_p
from .curves import AXIS_LABELS, MSE, mean, series_with_band
from .figure import Panel, Series, Table
from .formatting import MISSING, format_interval, format_number, format_p, format_p_value
from .tuned import MIN_SEEDS, SIGNIFICANCE_LEVEL, Cell, Ratio, mean_interval

SAMPLES = "samples"
LOWER = "the error is significantly lower"
HIGHER = "the error is significantly higher"
UNDECIDED = "the difference is not significant"
PValues = Mapping[tuple[str, str], float]  # by setup and name of the contestant
HEADING = [
    "optimizer",
    "α",
    "β",
    "samples",
    "final MSE [95 % CI]",
    "median",
    "ratio to the best reference [95 % CI]",
    "p, paired",
    "p, Holm",
    "MSE over training",
    "diverged",
    "diverged in the search",
]


# Panels.


def learning_panels(found: Sequence[SetupResult]) -> list[Panel]:
    """Return a panel per setup: error over samples of the drawn contestants at their selected settings."""
    return [
        Panel(
            result.setup.label, SAMPLES, MSE, [_learning_curve(result, entry) for entry in _drawn(result)], log_y=True
        )
        for result in found
    ]


def rate_panels(found: Sequence[SetupResult]) -> list[Panel]:
    """Return a panel per setup: final error over the learning rate, where several were tried."""
    panels = []
    for result in found:
        series = [_rate_curve(entry) for entry in _drawn(result) if len({a for a, _ in entry.sweep.settings}) > 1]
        if series:
            title = f"{result.setup.label}: final error, IQM"
            panels.append(Panel(title, AXIS_LABELS["alpha"], MSE, series, log_x=True, log_y=True))
    return panels


def _drawn(result: SetupResult) -> list[Entry]:
    return [entry for entry in result.entries.values() if entry.contestant.is_drawn]


def _learning_curve(result: SetupResult, entry: Entry) -> Series:
    tuned = entry.tuned
    curves = clip_errors(tuned.curves, result.worst_error)[:, None, :]
    samples = tuned.at * result.setup.batch * entry.contestant.batch_factor
    runs = {"runs": len(tuned.final), "diverged": tuned.diverged}
    return series_with_band(entry.contestant.label, samples, curves, mean, **runs)


def _rate_curve(entry: Entry) -> Series:
    """Return the final errors of the test seeds at the selected β."""
    chosen = [i for i, (_, beta) in enumerate(entry.sweep.settings) if beta == entry.tuned.beta]
    rates = [entry.sweep.settings[i][0] for i in chosen]
    errors = entry.sweep.test_final[chosen][:, None, :]
    return series_with_band(
        entry.contestant.label, rates, errors, iqm, runs=errors.size, diverged=int(np.isinf(errors).sum())
    )


# Tables.


def tables(study: Study, found: Sequence[SetupResult]) -> list[Table]:
    """Return an overview, a table per setup, and the comparison at equal α and β."""
    ps = holm_p(found)
    return [
        _overview_table(study, found),
        *(Table(_describe_setup(result), HEADING, _rows(result, ps)) for result in found),
        *_cells_table(found),
    ]


def _overview_table(study: Study, found: Sequence[SetupResult]) -> Table:
    rows = [
        [contestant.label, *(_mean_error(result.entries.get(contestant.name)) for result in found)]
        for contestant in study.contestants
        if any(contestant.name in result.entries for result in found)
    ]
    return Table("Final MSE, mean over test seeds", ["optimizer", *(result.setup.label for result in found)], rows)


def _mean_error(entry: Entry | None) -> str:
    return MISSING if entry is None else format_number(entry.mean_error)


def _rows(result: SetupResult, ps: PValues) -> list[list[str]]:
    return [_row(result, entry, ps.get((result.setup.label, name))) for name, entry in result.entries.items()]


def _row(result: SetupResult, entry: Entry, p_holm: float | None) -> list[str]:
    tuned, compared = entry.tuned, result.ratio(entry)
    is_reference = entry is result.reference
    return [
        entry.contestant.label,
        format_number(tuned.alpha),
        format_number(tuned.beta),
        f"{_samples(result.setup, entry):,}",
        f"{format_number(entry.mean_error)} {format_interval(mean_interval(tuned.final))}",
        format_number(float(np.median(tuned.final))),
        "1 (reference)" if is_reference else f"{format_number(compared.value)} {format_interval(compared.interval)}",
        MISSING if is_reference else format_p(compared.p),
        format_p(p_holm),
        format_number(float(tuned.area.mean())),
        f"{tuned.diverged} of {len(tuned.final)}",
        f"{tuned.grid_diverged} of {tuned.grid_runs}",
    ]


def _samples(setup: Setup, entry: Entry) -> int:
    return int(entry.tuned.at[-1]) * setup.batch * entry.contestant.batch_factor


def _cells_table(found: Sequence[SetupResult]) -> list[Table]:
    rows = [row for result in found for row in _cell_rows(result)]
    title = f"Corrected and uncorrected optimizer at equal α and β (p < {SIGNIFICANCE_LEVEL} in single tests)"
    heading = ["setup", "corrected optimizer", "cells", "lower error", "higher error", "largest ratio"]
    return [Table(title, heading, rows)] if rows else []


def _cell_rows(result: SetupResult) -> list[list[str]]:
    by_label: dict[str, list[Cell]] = {}
    for contestant, cell in result.cells:
        by_label.setdefault(contestant.label, []).append(cell)
    return [
        [
            result.setup.label,
            label,
            str(len(cells)),
            str(sum(cell.is_better for cell in cells)),
            str(sum(cell.is_worse for cell in cells)),
            _describe_cell(max(cells, key=lambda cell: cell.ratio.value)),
        ]
        for label, cells in by_label.items()
    ]


def _describe_cell(cell: Cell) -> str:
    setting = f"α {format_number(cell.alpha)}, β {format_number(cell.beta)}"
    return f"{format_number(cell.ratio.value)}x at {setting} ({format_p_value(cell.ratio.p)})"


# Sentences.


def findings(study: Study, found: Sequence[SetupResult]) -> list[str]:
    """Return the answer, then a sentence per setup, then the comparison at equal α and β, and notes."""
    judged = [result for result in found if study.headline in result.entries]
    ps = holm_p(found)
    sentences = [
        _answer(judged, study.headline, ps) if judged else "",
        *(_setup_sentence(result, study.headline, ps) for result in judged),
        _cells_sentence(found),
        _divergence_sentence(found),
        _range_sentence(found),
    ]
    return [sentence for sentence in sentences if sentence]


def _answer(judged: Sequence[SetupResult], headline: str, ps: PValues) -> str:
    conclusions = [_conclusion(result, headline, ps) for result in judged]
    lower, higher, undecided = (conclusions.count(conclusion) for conclusion in (LOWER, HIGHER, UNDECIDED))
    ratios = [result.ratio(result.entries[headline]).value for result in judged]
    return (
        f"“{judged[0].entries[headline].contestant.label}” against the best tuned reference with the same samples: the "
        f"ratio of final errors is {format_number(min(ratios))} to {format_number(max(ratios))} on {len(judged)} "
        f"problems. The error is significantly lower on {lower}, significantly higher on {higher}, and undecided on "
        f"{undecided} (paired t-tests over seeds, Holm's correction)."
    )


def _conclusion(result: SetupResult, name: str, ps: PValues) -> str:
    compared = result.ratio(result.entries[name])
    if ps[result.setup.label, name] >= SIGNIFICANCE_LEVEL or compared.seeds < MIN_SEEDS:
        return UNDECIDED
    return LOWER if compared.value < 1 else HIGHER


def _setup_sentence(result: SetupResult, headline: str, ps: PValues) -> str:
    ours, reference = result.entries[headline], result.reference
    compared = result.ratio(ours)
    few = f", too few to decide (at least {MIN_SEEDS})" if compared.seeds < MIN_SEEDS else ""
    texts = [
        f"{_describe_setup(result)}: {_describe_entry(ours)} has a final MSE of {_describe_error(ours)}; the best "
        f"reference, {_describe_entry(reference)}, has {_describe_error(reference)}.",
        f"Ratio {_describe_ratio(compared)}, paired {format_p_value(compared.p)}, after Holm "
        f"{format_p_value(ps[result.setup.label, headline])}, {compared.seeds} seeds{few}: "
        f"{_conclusion(result, headline, ps)}.",
        _describe_best_peer(result, ours),
    ]
    return " ".join(filter(None, texts))


def _describe_best_peer(result: SetupResult, ours: Entry) -> str:
    peers = [entry for entry in result.entries.values() if entry.contestant.role == "peer"]
    if not peers:
        return ""
    best = min(peers, key=lambda entry: entry.mean_error)
    compared, samples = result.ratio_to(best, ours), _samples(result.setup, best)
    return (
        f"The best other peer, {_describe_entry(best)}, has {_describe_error(best)} with {samples:,} samples; ratio to "
        f"it {_describe_ratio(compared)}, paired {format_p_value(compared.p)}."
    )


def _cells_sentence(found: Sequence[SetupResult]) -> str:
    cells = [(result.setup, contestant, cell) for result in found for contestant, cell in result.cells]
    if not cells:
        return ""
    worse = [each for each in cells if each[2].is_worse]
    ps = holm([cell.ratio.p for _, _, cell in cells])
    after_holm = sum(p < SIGNIFICANCE_LEVEL and cell.is_worse for p, (_, _, cell) in zip(ps, cells, strict=True))
    better = sum(cell.is_better for _, _, cell in cells)
    listed = "; ".join(
        f"{setup.label}, {contestant.label}: {_describe_cell(cell)}" for setup, contestant, cell in worse
    )
    return (
        f"At equal α and β, where the uncorrected optimizer never diverges ({len(cells)} cells), the corrected one has "
        f"a significantly lower error in {better} and a significantly higher one in {len(worse)} (p < "
        f"{SIGNIFICANCE_LEVEL} each; {after_holm} after Holm's correction){f': {listed}' if listed else ''}."
    )


def _divergence_sentence(found: Sequence[SetupResult]) -> str:
    names = {"ours": "corrected optimizers", "reference": "references", "peer": "other peers"}
    counts = []
    for role, name in names.items():
        tuned = [e.tuned for result in found for e in result.entries.values() if e.contestant.role == role]
        if tuned:
            diverged, runs = sum(e.grid_diverged for e in tuned), sum(e.grid_runs for e in tuned)
            counts.append(f"{name} {diverged:,} of {runs:,}")
    return f"Diverged runs, over all settings that were tried: {', '.join(counts)}."


def _range_sentence(found: Sequence[SetupResult]) -> str:
    parts = []
    for result in found:
        labels = [f"“{e.contestant.label}”" for e in result.entries.values() if e.tuned.is_at_range_end]
        if labels:
            parts.append(f"{result.setup.label}: {', '.join(labels)}")
    if not parts:
        return ""
    return f"The selected α is at an end of the range tried, and a better one may lie outside. {'; '.join(parts)}."


def _describe_setup(result: SetupResult) -> str:
    setup = result.setup
    batch = "one transition" if setup.is_stream else f"{setup.batch} transitions"
    return f"{setup.label} ({batch} per step, {_samples(setup, result.reference):,} samples)"


def _describe_entry(entry: Entry) -> str:
    tuned = entry.tuned
    return f"“{entry.contestant.label}” (α {format_number(tuned.alpha)}, β {format_number(tuned.beta)})"


def _describe_error(entry: Entry) -> str:
    low, high = mean_interval(entry.tuned.final)
    diverged = f", {entry.tuned.diverged} of {len(entry.tuned.final)} diverged" if entry.tuned.diverged else ""
    return f"{format_number(entry.mean_error)} (95 % CI {format_number(low)} to {format_number(high)}{diverged})"


def _describe_ratio(compared: Ratio) -> str:
    low, high = compared.interval
    return f"{format_number(compared.value)} (95 % CI {format_number(low)} to {format_number(high)})"
