"""Figure 9: the values of a MsPacman player, learned with Adam's denominator under every numerator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..experiment import Run, Scale, unique
from ..records import Record
from ..statistics import iqm
from .agreement import cosines
from .base import Figure, Panel, Verdict
from .curves import AXES, ERROR, against
from .grids import FOR_WANT_OF_TIME, Grid, seeds
from .judging import better, conclude, corrected, told
from .layout import lay_out, select
from .pacman import AGAINST, PLAY, RETURNS, STEPS, TRUTH, each, ends, error_panels, late, paired, resolved
from .words import name, number, typical

SURE = 0.01  # the paper's threshold
MEASURED = PLAY.varied(paper={"measure": ("drift", "batch agreement", "trust")})

# The paper's settings, one for Adam and one for what it compares with it.
ADAMS = {"alpha": 5e-5, "beta": 0.99}
OURS = {"alpha": 1e-4, "beta": 0.9}
SETTINGS = {
    "adam": ADAMS,
    "adam_frozen": ADAMS,
    "adam_diagonal_literal": OURS,
    "adam_diagonal": OURS,
    "adam_window": OURS,
    "adam_oracle": OURS,
}
# The same search for all, on seeds of its own: these learning rates at one β. An oracle would cost as much as the rest.
BETA = 0.9
RATES = [2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4]
TUNING_SEEDS = [100, 101]
# What the search chose. The note of the verdict says whether it still does.
TUNED = {
    "adam": 1e-4,
    "adam_diagonal_literal": 1e-4,
    "adam_diagonal": 1e-4,
    "adam_window": 1e-4,
    "adam_frozen": 1e-4,
}
TUNING = PLAY.varied(
    paper={"method": list(TUNED), "beta": BETA, "alpha": RATES, "seed": TUNING_SEEDS, "steps": 20_000},
    quick={"steps": 5_000},
    smoke={"alpha": RATES[:2], "steps": 10},
)


def in_the_papers_setting(scale: Scale, methods: Sequence[str] = tuple(SETTINGS)) -> list[Run]:
    runs = []
    for method in methods:
        # An oracle looks at as many batches a step as momentum remembers, and costs five times as much.
        fewer = {"seed": seeds(3)} if method == "adam_oracle" else {}
        runs += MEASURED.varied(paper={"method": method, **SETTINGS[method]}, quick=fewer)(scale)
    return runs


def runs(scale: Scale) -> list[Run]:
    best = [run for method, rate in TUNED.items() for run in at_its_best(method, rate)(scale)]
    return unique([*in_the_papers_setting(scale), *TUNING(scale), *best])


def at_its_best(method: str, rate: float) -> Grid:
    return MEASURED.varied(paper={"method": method, "alpha": rate, "beta": BETA}, quick={"steps": 10_000})


def as_in_the_paper(records: Sequence[Record]) -> list[Record]:
    return _with(records, SETTINGS, longest=True)


def tuned(records: Sequence[Record]) -> list[Record]:
    return _with(records, {method: {"alpha": rate, "beta": BETA} for method, rate in TUNED.items()}, longest=False)


def tuning(records: Sequence[Record]) -> list[Record]:
    return select(resolved(records), seed=TUNING_SEEDS)


def _with(records: Sequence[Record], settings: dict[str, dict[str, float]], longest: bool) -> list[Record]:
    """Some have the paper's setting and the best in one. They are told apart by their steps, where those differ."""
    reported = [record for record in resolved(records) if record.run.seed not in TUNING_SEEDS]
    steps = {record.run.steps for record in reported}
    reported = select(reported, steps=max(steps) if longest else min(steps))
    return [record for method, own in settings.items() for record in select(reported, method=method, **own)]


def best_rates(records: Sequence[Record]) -> dict[str, float]:
    """The learning rate at which each method ends nearest to the truth in the search."""
    layout = lay_out(tuning(records))
    rates = layout.values("alpha")
    return {method: rates[int(np.argmin(own.mean(axis=1)))] for method, own in layout.final(TRUTH).items()}


def panels(records: Sequence[Record]) -> list[Panel]:
    own = as_in_the_paper(records)
    searched = against(tuning(records), "alpha", iqm, curve=TRUTH)
    agreement = [line for method in SETTINGS for line in cosines(select(own, method=method), "batches")]
    return [
        *error_panels(own),
        Panel(f"{AGAINST[TRUTH]}, tuned alike", STEPS, ERROR, each(tuned(records), TRUTH), log_y=True),
        Panel("the search, final error", AXES["alpha"], ERROR, searched, log_x=True, log_y=True),
        # Nothing has drifted before the first step, and 0 has no place on a logarithmic axis.
        Panel("drift", STEPS, "drift of target values", each(own, "drift", first=1), log_y=True),
        Panel("cosine, batches", STEPS, "cosine with the true gradient", agreement),
        Panel("the bound acted", STEPS, "share of steps", each(own, "bounded", first=1)),
        Panel("staleness", STEPS, "correction / momentum, norms", each(own, "staleness", first=1)),
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """The paper's pair in the paper's settings, against what the paper measured and against the truth; then each tuned
    alike; then the correction that the paper could not afford."""
    own, best = as_in_the_paper(records), tuned(records)
    return [
        _verdict(own, RETURNS, AGAINST[RETURNS], f"{_paper_settings()} {_floor()}"),
        _verdict(own, TRUTH, AGAINST[TRUTH], f"{_paper_settings()} {_beside(own)}"),
        _verdict(best, TRUTH, f"{AGAINST[TRUTH]}, tuned alike", _search(records)),
        _beyond(own, best),
    ]


def _verdict(records: Sequence[Record], curve: str, reading: str, note: str) -> Verdict:
    pair = ("adam_diagonal_literal", "adam")
    parts = [better(evidence, SURE) for evidence in paired(records, curve, [pair])]
    typically = typical(ends(records, curve), f"Interquartile means {AGAINST[curve]}")
    return conclude(11, parts, select(records, method=list(pair)), f"{typically} {note}", reading)


def _beyond(own: Sequence[Record], best: Sequence[Record]) -> Verdict:
    pair = ("adam_window", "adam")
    [given], [alike] = (paired(records, TRUTH, [pair]) for records in (own, best))
    [given, alike], _ = corrected([given, alike])
    parts = [better(given, SURE), better(alike, SURE, relation="is, both tuned, better than")]
    compared_runs = _each_once(select([*own, *best], method=list(pair)))
    sizes = {record.parameters for record in compared_runs}
    note = (
        f"The full correction of {' and '.join(f'{size:,}' for size in sorted(sizes))} parameters; errors are "
        f"{AGAINST[TRUTH]}. {_measured(own)}"
    )
    return conclude(11, parts, compared_runs, note, "beyond the paper: the full correction, by window")


def _each_once(records: Sequence[Record]) -> list[Record]:
    """Each run's once: the setting that was tuned may be the paper's."""
    return list({record.run: record for record in records}.values())


def _paper_settings() -> str:
    return (
        f"As in the paper Adam has α {number(ADAMS['alpha'])} and β {ADAMS['beta']}, the others α "
        f"{number(OURS['alpha'])} and β {OURS['beta']}: not the correction alone differs."
    )


def _floor() -> str:
    return (
        "Sampled returns vary of themselves, and no network can get below their variance: of differences between "
        "methods little can be seen in this error."
    )


def _beside(records: Sequence[Record]) -> str:
    """The other methods against Adam, each on the seeds that it has."""
    others = [method for method in SETTINGS if method not in ("adam", "adam_diagonal_literal")]
    each_told = [told(evidence) for method in others for evidence in paired(records, TRUTH, [(method, "adam")])]
    return f"Beside it, uncorrected for being several: {'; '.join(each_told)}."


def _search(records: Sequence[Record]) -> str:
    """Whether the constants are what the search chose."""
    found = best_rates(records)
    rates = ", ".join(f"{name(method)} {number(rate)}" for method, rate in found.items())
    if found == TUNED:
        return f"Each at the learning rate that seeds of its own chose, at β {BETA}: {rates}."
    used = ", ".join(f"{name(method)} {number(rate)}" for method, rate in TUNED.items())
    return f"Compared at the learning rates {used}, which are not what the search chose: {rates}."


def _measured(records: Sequence[Record]) -> str:
    """Drift, agreement and what the bound did, over the second half of the training."""
    curves = {
        "drift": "Drift",
        "agreement of batches": "cosine of corrected batches",
        "agreement if uncorrected": "uncorrected",
        "bounded": "share of steps in which the bound acted",
    }
    said = [typical(late(records, curve), what).rstrip(".") for curve, what in curves.items()]
    return f"In the second half, in the paper's settings: {'; '.join(said)}."


FIGURE = Figure(
    name="fig9",
    title="MsPacman, policy evaluation: Adam corrected",
    claims=(11,),
    settings="Sarsa on 100,000 recorded transitions of a MsPacman expert, rewards clipped to their signs, γ 0.99; "
    "DQN's network, n = 4,801,705; batches of 32; Adam with α 0.00005 and β 0.99, corrections with α 0.0001 and β 0.9; "
    "20 seeds; 500,000 steps. Then each method at the best of five α, chosen by other seeds, at β 0.9. Errors against "
    "single sampled returns, and against means of 16 continuations from the same 1,000 states.",
    runs=runs,
    panels=panels,
    judge=judge,
    cut="5 seeds, of the oracle 3, and 20,000 steps; 5,000 for the search and 10,000 for what it chose; and no full "
    f"correction at β 0.99, a window of 200 batches: {FOR_WANT_OF_TIME}",
)
