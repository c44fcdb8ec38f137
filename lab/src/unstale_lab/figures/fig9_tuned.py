"""Figure 9 with a learning rate tuned for each method by the same search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..analysis.curves import AXIS_LABELS, MSE, sensitivity_curves
from ..analysis.formatting import describe_iqm, format_number, label
from ..analysis.panels import Panel
from ..analysis.run_table import select, tabulate, without
from ..analysis.statistics import iqm
from ..claims.verdict import Verdict
from ..experiment import Run, Scale
from ..records import Record
from .figure import Figure
from .shared.grids import GPU_TIME_NOTE
from .shared.pacman import (
    JUDGED_METHODS,
    MEASURED_GRID,
    MS_PACMAN_GRID,
    PAPER_PAIR,
    REFERENCE_NAMES,
    RETURNS,
    RETURNS_NOISE_NOTE,
    TRUTH,
    WINDOW_PAIR,
    WINDOW_SCOPE,
    clip_to_resolution,
    describe_window_correction,
    error_panels,
    final_errors_by_method,
    judge_against_adam,
    measurement_panels,
)

# The search: these learning rates at one β, on separate seeds. The oracle is left out, because it costs as much as all
# other methods together.
BETA = 0.9
RATES = [1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3]
TUNING_SEEDS = [100, 101]
# What the search chose at the scale "large" (the last two earlier, on other data). Notes say whether it still does.
TUNED = {
    "adam": 2e-4,
    "adam_diagonal_literal": 4e-4,
    "adam_window": 4e-4,
    "adam_diagonal": 2e-4,
    "adam_frozen": 2e-4,
}
SEARCH_GRID = MS_PACMAN_GRID.vary(
    paper={"method": list(TUNED), "beta": BETA, "alpha": RATES, "seed": TUNING_SEEDS, "steps": 20_000},
    large={"method": list(JUDGED_METHODS), "steps": 5_000},
    smoke={"alpha": RATES[:2], "steps": 10},
)
TUNED_SUFFIX = "learning rates tuned"
SEARCH_ALONE_NOTE = (
    " The compared runs are those of the search (2 seeds): selection bias favors every method, and nothing is decided."
)


def runs(scale: Scale) -> list[Run]:
    """Return the runs of the search and, unless the scale is reduced, runs at the chosen learning rates."""
    is_reduced = scale in ("quick", "large")
    return [*SEARCH_GRID(scale), *(run for method in TUNED if not is_reduced for run in tuned_runs(method, scale))]


def tuned_runs(method: str, scale: Scale) -> list[Run]:
    """Return the runs of a method at its chosen learning rate."""
    return MEASURED_GRID.vary({"method": method, "alpha": TUNED[method], "beta": BETA})(scale)


def tuned_records(records: Sequence[Record]) -> list[Record]:
    """Return the runs at the chosen learning rates with other seeds; if there are none, the best of the search."""
    best = best_rates(records)
    return without(clip_to_resolution(records), seed=TUNING_SEEDS) or [
        record for record in search_records(records) if record.run.alpha == best[record.run.method]
    ]


def search_records(records: Sequence[Record]) -> list[Record]:
    """Return the runs of the search."""
    return select(clip_to_resolution(records), seed=TUNING_SEEDS)


def best_rates(records: Sequence[Record]) -> dict[str, float]:
    """Return the learning rate with the lowest final error against true values in the search, per method."""
    table = tabulate(search_records(records))
    rates = table.values("alpha")
    return {method: rates[int(np.argmin(errors.mean(axis=1)))] for method, errors in table.final(TRUTH).items()}


def panels(records: Sequence[Record]) -> list[Panel]:
    selected = tuned_records(records)
    searched = sensitivity_curves(search_records(records), "alpha", iqm, curve=TRUTH)
    return [
        *error_panels(selected),
        Panel("learning-rate search, final error", AXIS_LABELS["alpha"], MSE, searched, log_x=True, log_y=True),
        *(measurement_panels(selected) if _is_measured(selected) else []),
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge as in figure 9."""
    selected, chosen = tuned_records(records), _describe_choice(records)
    window_notes = describe_window_correction(selected) if _is_measured(selected) else chosen
    return [
        judge_against_adam(selected, curve, pair, notes, f"{scope}, {TUNED_SUFFIX}")
        for curve, pair, notes, scope in (
            (RETURNS, PAPER_PAIR, f"{chosen} {RETURNS_NOISE_NOTE}", REFERENCE_NAMES[RETURNS]),
            (TRUTH, PAPER_PAIR, f"{chosen} {_describe_search(records)}", REFERENCE_NAMES[TRUTH]),
            (TRUTH, WINDOW_PAIR, window_notes, WINDOW_SCOPE),
        )
    ]


def _is_measured(records: Sequence[Record]) -> bool:
    return all("drift" in record.curves for record in records)


def _describe_search(records: Sequence[Record]) -> str:
    """Describe errors at each learning rate of the search, where methods differ in nothing but the correction."""
    searched = search_records(records)
    rates = sorted({record.run.alpha for record in searched})
    texts = [
        describe_iqm(final_errors_by_method(select(searched, alpha=rate), TRUTH), f"α {format_number(rate)}")
        for rate in rates
    ]
    return f"Errors in the search, at equal α and β {BETA} (IQM): {' '.join(texts)}"


def _describe_choice(records: Sequence[Record]) -> str:
    """Say whether ``TUNED`` is what the search chose, and whether the best rate may lie outside the range tried."""
    found, is_search_alone = best_rates(records), not without(records, seed=TUNING_SEEDS)
    if is_search_alone or found == TUNED:
        chosen = f"Each method has the learning rate that the search chose at β {BETA}: {_rates(found)}."
    else:
        chosen = (
            f"The methods are compared at the learning rates {_rates(TUNED)}, but the search chose {_rates(found)}."
        )
    tried = {record.run.alpha for record in search_records(records)}
    at_range_end = [label(method) for method, rate in found.items() if rate in (min(tried), max(tried))]
    beyond = f" The best rate of {' and '.join(at_range_end)} is at an end of the range tried and may lie outside."
    return chosen + (beyond if at_range_end else "") + (SEARCH_ALONE_NOTE if is_search_alone else "")


def _rates(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{label(method)} {format_number(rate)}" for method, rate in rates.items())


FIGURE = Figure(
    name="fig9_tuned",
    title="MsPacman, policy evaluation: tuned learning rates",
    claims=(11,),
    settings="As figure 9, at β 0.9; each method with the best of five α from 0.0001 to 0.0016, selected by the error "
    "against true values of 2 other seeds after 20,000 steps. Then 20 seeds; 500,000 steps.",
    runs=runs,
    panels=panels,
    judge=judge,
    cut="Only the search, 2 seeds and 5,000 steps, to save time.",
    large_cut=f"Only the search of {', '.join(map(label, JUDGED_METHODS))}, 2 seeds and 5,000 steps, {GPU_TIME_NOTE}",
)
