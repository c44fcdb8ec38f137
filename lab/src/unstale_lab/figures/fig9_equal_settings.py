"""Figure 9 at equal α and β: whether the paper's diagonal correction differs from Adam at all.

In figure 9 the corrected methods have another α and β than Adam. The paper's recursion ignores Adam's denominator, so
that its correction is tiny next to the momentum.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.formatting import describe_iqm, label
from ..analysis.panels import Panel
from ..analysis.run_table import select
from ..claims.judging import describe_contrast, equivalent, make_verdict
from ..claims.verdict import Verdict
from ..experiment import Run, Scale
from ..records import Record
from .fig9 import CORRECTED_SETTINGS
from .figure import Figure
from .shared.grids import GPU_TIME_NOTE
from .shared.pacman import (
    MEASURED_GRID,
    REFERENCE_NAMES,
    RETURNS,
    TRUTH,
    clip_to_resolution,
    compare_by_seed,
    describe_comparison,
    describe_staleness,
    error_panels,
    final_errors_by_method,
)

# The scale "quick" takes 40 minutes on two cores. The other measurements take much memory on a CPU.
GRID = MEASURED_GRID.vary(CORRECTED_SETTINGS, quick={"steps": 2_000, "measure": ("trust",)})
PAIR = ("adam_diagonal_literal", "adam_matched")
METHODS = ("adam_matched", "adam_diagonal_literal", "adam_diagonal", "adam_window")


def runs(scale: Scale) -> list[Run]:
    methods = PAIR if scale == "quick" else METHODS
    return GRID.vary({"method": list(methods)})(scale)


def panels(records: Sequence[Record]) -> list[Panel]:
    return error_panels(clip_to_resolution(records))


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge whether both have about the same error, which the paper does not say."""
    clipped = clip_to_resolution(records)
    truth, returns = (compare_by_seed(clipped, curve, [PAIR])[0] for curve in (TRUTH, RETURNS))
    others = [
        describe_contrast(contrast)
        for method in METHODS
        if method not in PAIR and select(clipped, method=method)
        for contrast in compare_by_seed(clipped, TRUTH, [(method, "adam_matched")])
    ]
    notes = [
        f"{REFERENCE_NAMES[RETURNS].capitalize()}: {describe_contrast(returns)}.",
        *(
            describe_iqm(final_errors_by_method(clipped, curve), f"Final MSE {reference} (IQM)")
            for curve, reference in REFERENCE_NAMES.items()
        ),
        describe_staleness(clipped),
        *([f"Further comparisons, without Holm's correction: {'; '.join(others)}."] if others else []),
    ]
    selected = select(clipped, method=list(PAIR))
    why = describe_comparison(truth, selected)
    parts = [equivalent(truth)]
    scope = "the same error at equal α and β"
    return [make_verdict(11, why, parts, selected, " ".join(notes), scope=scope, is_extra=True)]


FIGURE = Figure(
    name="fig9_equal_settings",
    title="MsPacman, policy evaluation: equal settings for Adam and its corrections",
    claims=(11,),
    settings="As figure 9, with α 0.0001 and β 0.9 for every method.",
    runs=runs,
    panels=panels,
    judge=judge,
    cut=f"5 seeds and 2,000 steps, and only {' and '.join(map(label, PAIR))}, to save time. The published runs have "
    "true values from 4 rollouts per state, not 16.",
    large_cut=f"5 seeds and 100,000 steps, {GPU_TIME_NOTE}",
)
