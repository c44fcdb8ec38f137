"""Figure 9 again, every method with a learning rate of its own, found for all by the same search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..experiment import Run, Scale
from ..records import Record
from ..statistics import iqm
from .base import Figure, Panel, Verdict
from .curves import AXES, ERROR, against
from .grids import FOR_WANT_OF_TIME
from .layout import lay_out, select, without
from .pacman import (
    AGAINST,
    BY_WINDOW,
    IN_FULL,
    MEASURED,
    PLAY,
    RETURNS,
    RETURNS_VARY,
    THE_PAPERS,
    TRUTH,
    beats_adam,
    ends,
    error_panels,
    in_full,
    measured_panels,
    resolved,
)
from .words import name, number, typical

# The search: these learning rates at one β, on seeds of its own. An oracle would cost as much as the rest.
BETA = 0.9
RATES = [1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3]
TUNING_SEEDS = [100, 101]
# What it chose; of the last two, on the play of another expert. The notes of the verdicts say whether it still does.
TUNED = {
    "adam": 4e-4,
    "adam_diagonal_literal": 2e-4,
    "adam_window": 2e-4,
    "adam_diagonal": 2e-4,
    "adam_frozen": 2e-4,
}
COMPARED = ["adam", "adam_diagonal_literal", "adam_window"]  # by the verdicts
TUNING = PLAY.varied(
    paper={"method": list(TUNED), "beta": BETA, "alpha": RATES, "seed": TUNING_SEEDS, "steps": 20_000},
    quick={"method": COMPARED, "steps": 5_000},
    smoke={"alpha": RATES[:2], "steps": 10},
)
ALIKE = "tuned alike"


def runs(scale: Scale) -> list[Run]:
    """The search; and what it chose, but not at the scale "quick"."""
    return [*TUNING(scale), *(run for method in TUNED if scale != "quick" for run in at_its_best(method, scale))]


def at_its_best(method: str, scale: Scale) -> list[Run]:
    return MEASURED.varied({"method": method, "alpha": TUNED[method], "beta": BETA})(scale)


def tuned(records: Sequence[Record]) -> list[Record]:
    """What was run with other seeds at what the search chose. If nothing was, the best of the search itself."""
    best = best_rates(records)
    return without(resolved(records), seed=TUNING_SEEDS) or [
        record for record in search(records) if record.run.alpha == best[record.run.method]
    ]


def search(records: Sequence[Record]) -> list[Record]:
    return select(resolved(records), seed=TUNING_SEEDS)


def best_rates(records: Sequence[Record]) -> dict[str, float]:
    """The learning rate at which each method ends nearest to the truth in the search."""
    layout = lay_out(search(records))
    rates = layout.values("alpha")
    return {method: rates[int(np.argmin(own.mean(axis=1)))] for method, own in layout.final(TRUTH).items()}


def panels(records: Sequence[Record]) -> list[Panel]:
    own = tuned(records)
    searched = against(search(records), "alpha", iqm, curve=TRUTH)
    return [
        *error_panels(own),
        Panel("the search, final error", AXES["alpha"], ERROR, searched, log_x=True, log_y=True),
        *(measured_panels(own) if _is_measured(own) else []),
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """As figure 9 is judged."""
    own, chosen = tuned(records), _chosen(records)
    more = in_full(own) if _is_measured(own) else _at_large_rates(records)
    return [
        beats_adam(own, RETURNS, THE_PAPERS, f"{AGAINST[RETURNS]}, {ALIKE}", f"{chosen} {RETURNS_VARY}"),
        beats_adam(own, TRUTH, THE_PAPERS, f"{AGAINST[TRUTH]}, {ALIKE}", chosen),
        beats_adam(own, TRUTH, IN_FULL, f"{BY_WINDOW}, {ALIKE}", more),
    ]


def _is_measured(records: Sequence[Record]) -> bool:
    return all("drift" in record.curves for record in records)


def _at_large_rates(records: Sequence[Record]) -> str:
    """Where methods differ most."""
    searched = search(records)
    rate = max(record.run.alpha for record in searched)
    return typical(ends(select(searched, alpha=rate), TRUTH), f"In the search, at α {number(rate)}") + _itself(records)


def _chosen(records: Sequence[Record]) -> str:
    """Whether the constants are what the search chose, and whether it might have chosen what it did not try."""
    found = best_rates(records)
    if found.items() <= TUNED.items():
        chosen = f"Each at the learning rate that the search chose, at β {BETA}: {_rates(found)}."
    else:
        chosen = (
            f"Compared at the learning rates {_rates(TUNED)}, which are not what the search chose: {_rates(found)}."
        )
    tried = {record.run.alpha for record in search(records)}
    at_the_end = [name(method) for method, rate in found.items() if rate in (min(tried), max(tried))]
    beyond = f" The best of {' and '.join(at_the_end)} is at an end of what was tried, and may lie beyond."
    return chosen + (beyond if at_the_end else "") + _itself(records)


def _itself(records: Sequence[Record]) -> str:
    if without(records, seed=TUNING_SEEDS):
        return ""
    return " Compared are the runs by which the rates were chosen, and 2 seeds: that flatters all, and decides nothing."


def _rates(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{name(method)} {number(rate)}" for method, rate in rates.items())


FIGURE = Figure(
    name="fig9_tuned",
    title="MsPacman, policy evaluation: each method tuned alike",
    claims=(11,),
    settings="As figure 9, at β 0.9, each method at the best of five α from 0.0001 to 0.0016: that at which 2 other "
    "seeds end nearest to the truth after 20,000 steps. Then 20 seeds; 500,000 steps.",
    runs=runs,
    panels=panels,
    judge=judge,
    cut=f"Of {', '.join(map(name, COMPARED))} the search alone, 2 seeds and 5,000 steps: {FOR_WANT_OF_TIME}",
)
