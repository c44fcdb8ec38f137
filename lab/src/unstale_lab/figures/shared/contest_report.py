"""Panels, tables and sentences of a study of tuned optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...analysis.curves import AXIS_LABELS, MSE, mean, series_with_band
from ...analysis.formatting import MISSING, format_interval, format_number, format_p, format_p_value, format_ratio
from ...analysis.panels import Panel, Series, Table
from ...analysis.statistics import clip_errors, holm, iqm
from ...claims.contrast import SIGNIFICANCE_LEVEL
from ...claims.judging import MIN_SEEDS
from .contest import Contestant, Entry, Setup, SetupResult, Study, holm_p
from .tuned import Cell, Ratio, mean_interval

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
    "IQM",
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
        _samples_table(study, found),
        *(Table(_describe_setup(result), HEADING, _rows(result, ps)) for result in found),
        *_cells_tables(found),
    ]


def _overview_table(study: Study, found: Sequence[SetupResult]) -> Table:
    rows = [
        [contestant.label, *(_format_errors(result.entries.get(contestant.name)) for result in found)]
        for contestant in study.contestants
        if any(contestant.name in result.entries for result in found)
    ]
    return Table(
        "Final MSE, mean (median) over test seeds", ["optimizer", *(result.setup.label for result in found)], rows
    )


def _samples_table(study: Study, found: Sequence[SetupResult]) -> Table:
    rows = [
        [contestant.label, *(_format_samples_needed(result, contestant.name) for result in found)]
        for contestant in study.contestants
        if any(contestant.name in result.entries for result in found)
    ]
    return Table(
        "Samples until the mean error over test seeds reaches the best reference's final error",
        ["optimizer", *(f"{result.setup.label} ({result.reference.contestant.label})" for result in found)],
        rows,
    )


def _format_samples_needed(result: SetupResult, name: str) -> str:
    entry = result.entries.get(name)
    needed = samples_needed(result, entry) if entry is not None else None
    return MISSING if needed is None else f"{needed:,}"


def samples_needed(result: SetupResult, entry: Entry) -> int | None:
    """Return after how many samples the mean error is first at most the best reference's final error."""
    reached = np.flatnonzero(entry.tuned.curves.mean(axis=1) <= result.reference.mean_error)
    if not len(reached):
        return None
    return int(entry.tuned.at[reached[0]]) * result.setup.batch * entry.contestant.batch_factor


def _format_errors(entry: Entry | None) -> str:
    if entry is None:
        return MISSING
    return f"{format_number(entry.mean_error)} ({format_number(entry.median_error)})"


def _format_beta(entry: Entry) -> str:
    return "grows" if entry.contestant.beta_grows else format_number(entry.tuned.beta)


def _rows(result: SetupResult, ps: PValues) -> list[list[str]]:
    return [_row(result, entry, ps.get((result.setup.label, name))) for name, entry in result.entries.items()]


def _row(result: SetupResult, entry: Entry, p_holm: float | None) -> list[str]:
    tuned, compared = entry.tuned, result.ratio(entry)
    is_reference = entry is result.reference
    return [
        entry.contestant.label,
        format_number(tuned.alpha),
        _format_beta(entry),
        f"{_samples(result.setup, entry):,}",
        f"{format_number(entry.mean_error)} {format_interval(mean_interval(tuned.final))}",
        format_number(entry.median_error),
        format_number(float(iqm(tuned.final[None, :]))),
        "1 (reference)" if is_reference else f"{format_number(compared.value)} {format_interval(compared.interval)}",
        MISSING if is_reference else format_p(compared.p),
        format_p(p_holm),
        format_number(float(tuned.area.mean())),
        f"{tuned.diverged} of {len(tuned.final)}",
        f"{tuned.grid_diverged} of {tuned.grid_runs}",
    ]


def _samples(setup: Setup, entry: Entry) -> int:
    return int(entry.tuned.at[-1]) * setup.batch * entry.contestant.batch_factor


def _cells_tables(found: Sequence[SetupResult]) -> list[Table]:
    counts = [row for result in found for row in _cell_counts(result)]
    worse = [
        [
            result.setup.label,
            contestant.label,
            format_number(cell.alpha),
            _format_cell_beta(contestant, cell),
            _describe_difference(cell),
            format_p(cell.ratio.p),
        ]
        for result in found
        for contestant, cell in result.cells
        if cell.is_worse
    ]
    tests = f"(p < {SIGNIFICANCE_LEVEL} in single tests)"
    counted = Table(
        f"Corrected and uncorrected optimizer at equal α and β {tests}; β 0.9 if that of the corrected one grows",
        ["setup", "corrected optimizer", "cells", "lower error", "higher error", "largest ratio"],
        counts,
    )
    listed = Table(
        f"Cells in which the corrected optimizer has a higher error {tests}",
        ["setup", "corrected optimizer", "α", "β", "difference", "p, paired"],
        worse,
    )
    return [table for table in (counted, listed) if table.rows]


def _cell_counts(result: SetupResult) -> list[list[str]]:
    by_contestant: dict[str, list[tuple[Contestant, Cell]]] = {}
    for contestant, cell in result.cells:
        by_contestant.setdefault(contestant.label, []).append((contestant, cell))
    return [
        [
            result.setup.label,
            label,
            str(len(cells)),
            str(sum(cell.is_better for _, cell in cells)),
            str(sum(cell.is_worse for _, cell in cells)),
            _describe_cell(*max(cells, key=lambda pair: pair[1].ratio.value)),
        ]
        for label, cells in by_contestant.items()
    ]


def _describe_cell(contestant: Contestant, cell: Cell) -> str:
    setting = f"α {format_number(cell.alpha)}"
    setting += "" if contestant.beta_grows else f", β {format_number(cell.beta)}"
    return f"{format_number(cell.ratio.value)}x at {setting} ({format_p_value(cell.ratio.p)})"


def _format_cell_beta(contestant: Contestant, cell: Cell) -> str:
    return "grows" if contestant.beta_grows else format_number(cell.beta)


def _describe_difference(cell: Cell) -> str:
    """Return the difference from the uncorrected optimizer: in percent, or as a ratio if it is large."""
    return format_ratio(cell.ratio.value, cell.ratio.interval)


# Sentences.


def findings(study: Study, found: Sequence[SetupResult]) -> list[str]:
    """Return the answer, then a sentence per setup, then the comparison at equal α and β, and notes."""
    judged = [result for result in found if study.headline in result.entries]
    ps = holm_p(found)
    sentences = [
        _answer(judged, study.headline, ps) if judged else "",
        *(_setup_sentence(result, study.headline, ps) for result in judged),
        _headline_cells_sentence(found, study.headline),
        _cells_sentence(found),
        _divergence_sentence(found, study.headline),
        _range_sentence(found),
    ]
    return [sentence for sentence in sentences if sentence]


def measured(study: Study, found: Sequence[SetupResult]) -> list[str]:
    """Return a sentence per setup without tests: the final errors of the headline and of the drawn references."""
    return [_measured_sentence(result, study.headline) for result in found if study.headline in result.entries]


def _measured_sentence(result: SetupResult, headline: str) -> str:
    ours, best = result.entries[headline], result.reference
    others = [entry for entry in _drawn(result) if entry.contestant.role == "reference"]
    errors = ", ".join(f"“{entry.contestant.label}” at {format_number(entry.mean_error)}" for entry in others)
    wins = int((ours.tuned.final < best.tuned.final).sum())
    return (
        f"{_describe_setup(result)}: “{ours.contestant.label}” ended at an error of {format_number(ours.mean_error)}, "
        f"{errors}; lower than “{best.contestant.label}” in {wins} of {len(ours.tuned.final)} seeds."
    )


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
        _describe_kinds(result, ours),
        _describe_best_peer(result, ours),
    ]
    return " ".join(filter(None, texts))


def _describe_kinds(result: SetupResult, ours: Entry) -> str:
    """Compare with the best reference of each kind."""
    ratios = [
        f"{kind} {_describe_ratio(compared, f', {format_p_value(compared.p)}')}"
        for kind, best in result.best_by_kind().items()
        for compared in [result.ratio_to(best, ours)]
    ]
    return f"Ratio to the best reference of each kind: {', '.join(ratios)}." if ratios else ""


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


def _headline_cells_sentence(found: Sequence[SetupResult], headline: str) -> str:
    """List the learning rates at which the contestant is worse than the uncorrected optimizer."""
    cells = [(result.setup, *each) for result in found for each in result.cells if each[0].name == headline]
    if not cells:
        return ""
    worse = [
        f"{setup.label}, α {format_number(cell.alpha)}: {_describe_difference(cell)}, {format_p_value(cell.ratio.p)}"
        for setup, _, cell in cells
        if cell.is_worse
    ]
    listed = f" ({'; '.join(worse)})" if worse else ""
    _, contestant, _ = cells[0]
    uncorrected = "uncorrected Adam" + (" (β 0.9)" if contestant.beta_grows else "")
    return (
        f"“{contestant.label}” against {uncorrected} at equal α, where the latter never diverges ({len(cells)} cells): "
        f"the error is significantly lower in {sum(cell.is_better for _, _, cell in cells)} and significantly higher "
        f"in {len(worse)}{listed}."
    )


def _cells_sentence(found: Sequence[SetupResult]) -> str:
    cells = [(contestant, cell) for result in found for contestant, cell in result.cells]
    if not cells:
        return ""
    ps = holm([cell.ratio.p for _, cell in cells])
    worse = sum(cell.is_worse for _, cell in cells)
    after_holm = sum(p < SIGNIFICANCE_LEVEL and cell.is_worse for p, (_, cell) in zip(ps, cells, strict=True))
    return (
        f"All corrected optimizers at equal α and β ({len(cells)} cells): the error is significantly lower in "
        f"{sum(cell.is_better for _, cell in cells)} and significantly higher in {worse} (p < {SIGNIFICANCE_LEVEL} "
        f"each; {after_holm} after Holm's correction). A table lists the latter."
    )


def _divergence_sentence(found: Sequence[SetupResult], headline: str) -> str:
    entries = [entry for result in found for entry in result.entries.values()]
    own = [entry for entry in entries if entry.contestant.name == headline]
    roles = {"ours": "all corrected optimizers", "reference": "references", "peer": "other peers"}
    groups = {f"“{own[0].contestant.label}”": own} if own else {}
    groups |= {name: [entry for entry in entries if entry.contestant.role == role] for role, name in roles.items()}
    counts = [f"{name} {_count_diverged(group)}" for name, group in groups.items() if group]
    return f"Diverged runs, over all settings that were tried: {', '.join(counts)}."


def _count_diverged(entries: Sequence[Entry]) -> str:
    return f"{sum(e.tuned.grid_diverged for e in entries):,} of {sum(e.tuned.grid_runs for e in entries):,}"


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
    beta = "β grows" if entry.contestant.beta_grows else f"β {format_number(tuned.beta)}"
    return f"“{entry.contestant.label}” (α {format_number(tuned.alpha)}, {beta})"


def _describe_error(entry: Entry) -> str:
    low, high = mean_interval(entry.tuned.final)
    diverged = f", {entry.tuned.diverged} of {len(entry.tuned.final)} diverged" if entry.tuned.diverged else ""
    interval = f"95 % CI {format_number(low)} to {format_number(high)}"
    return f"{format_number(entry.mean_error)} ({interval}, median {format_number(entry.median_error)}{diverged})"


def _describe_ratio(compared: Ratio, more: str = "") -> str:
    low, high = compared.interval
    return f"{format_number(compared.value)} (95 % CI {format_number(low)} to {format_number(high)}{more})"
