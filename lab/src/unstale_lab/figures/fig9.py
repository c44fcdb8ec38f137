"""Figure 9: the values of a MsPacman player, learned with Adam's denominator under every numerator."""

from __future__ import annotations

from collections.abc import Sequence

from ..experiment import Run, Scale
from ..records import Record
from .base import Figure, Panel, Verdict
from .grids import FOR_WANT_OF_TIME
from .judging import told
from .layout import select
from .pacman import (
    AGAINST,
    BY_WINDOW,
    IN_FULL,
    MEASURED,
    RETURNS,
    RETURNS_VARY,
    THE_PAPERS,
    TRUTH,
    beats_adam,
    error_panels,
    in_full,
    measured_panels,
    paired,
    resolved,
)
from .words import name, number

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
QUICK = ("adam", "adam_diagonal_literal", "adam_window")
NOT_ALONE = (
    f"As in the paper Adam has α {number(ADAMS['alpha'])} and β {ADAMS['beta']}, the others α "
    f"{number(OURS['alpha'])} and β {OURS['beta']}: not the correction alone differs."
)


def in_the_papers_setting(scale: Scale, methods: Sequence[str]) -> list[Run]:
    return [run for method in methods for run in MEASURED.varied({"method": method, **SETTINGS[method]})(scale)]


def runs(scale: Scale) -> list[Run]:
    return in_the_papers_setting(scale, QUICK if scale == "quick" else tuple(SETTINGS))


def panels(records: Sequence[Record]) -> list[Panel]:
    own = resolved(records)
    return [*error_panels(own), *measured_panels(own)]


def judge(records: Sequence[Record]) -> list[Verdict]:
    """The paper's pair against what the paper measured and against the truth; then the correction that the paper could
    not afford."""
    own = resolved(records)
    return [
        beats_adam(own, RETURNS, THE_PAPERS, AGAINST[RETURNS], f"{NOT_ALONE} {RETURNS_VARY}"),
        beats_adam(own, TRUTH, THE_PAPERS, AGAINST[TRUTH], f"{NOT_ALONE} {_beside(own)}"),
        beats_adam(own, TRUTH, IN_FULL, BY_WINDOW, in_full(own)),
    ]


def _beside(records: Sequence[Record]) -> str:
    """The other methods against Adam."""
    others = [method for method in SETTINGS if method not in THE_PAPERS and select(records, method=method)]
    each_told = [told(evidence) for method in others for evidence in paired(records, TRUTH, [(method, "adam")])]
    return f"Beside it, uncorrected for being several: {'; '.join(each_told)}."


FIGURE = Figure(
    name="fig9",
    title="MsPacman, policy evaluation: Adam corrected",
    claims=(11,),
    settings="Sarsa on 100,000 recorded transitions of a MsPacman expert, rewards clipped to their signs, γ 0.99; "
    "DQN's network, n = 4,801,705; batches of 32; Adam with α 0.00005 and β 0.99, corrections with α 0.0001 and β 0.9; "
    "20 seeds; 500,000 steps. Errors against single sampled returns, and against means of 16 continuations from the "
    "same 1,000 states.",
    runs=runs,
    panels=panels,
    judge=judge,
    cut=f"5 seeds and 50,000 steps, and of the methods {', '.join(map(name, QUICK))}: {FOR_WANT_OF_TIME}",
)
