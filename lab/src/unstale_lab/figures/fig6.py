"""Figure 6: wider RBF kernels, with which more values change in every step."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.curves import divergence_panels, mean, sensitivity_panel
from ..analysis.formatting import describe_iqm
from ..analysis.panels import Panel
from ..analysis.run_table import select, tabulate
from ..analysis.trends import by_level, levels, p_no_correlation, rank_correlations, ratio
from ..claims.judging import better, compare_pairs, holm_corrected, make_verdict, trend
from ..claims.verdict import Verdict
from ..figures.figure import Figure
from ..records import Record
from .shared.grids import RBF_GRID, RBF_WIDTH_NOTE

SETTINGS = (
    "Mountain Car from replay; linear in RBF features on a grid of 10 by 10 and of 20 by 20, σ² from 0.5 to 4; "
    f"α 0.1 and 0.01; β 0.99; batches of 16; 10 seeds; 5,000 steps. {RBF_WIDTH_NOTE}"
)


def panels(records: Sequence[Record]) -> list[Panel]:
    return [
        sensitivity_panel(records, "rbf_width", mean),
        sensitivity_panel(records, "rbf_width"),
        *divergence_panels(records, "rbf_width"),
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    selected = select(records, method=["momentum", "full"])
    table = tabulate(selected)
    errors, worst, widths = table.final(), table.worst_error(), table.values("rbf_width")
    gap = by_level(table, ratio(errors["momentum"], errors["full"], worst), "rbf_width")
    rho = rank_correlations(levels(table, "rbf_width"), gap)
    widest = tabulate(select(selected, rbf_width=max(widths))).final()
    [at_widest], [p] = holm_corrected(compare_pairs(widest, [("full", "momentum")], worst), p_no_correlation(rho))
    rising = trend("Error ratio of μ to μ̂ over σ²", rho, p)
    note = " ".join(
        describe_iqm(tabulate(select(records, rbf_width=width)).final(), f"Final errors (IQM) at σ² = {width:g}")
        for width in (min(widths), max(widths))
    )
    return [make_verdict(7, [rising, better(at_widest)], selected, note)]


FIGURE = Figure(
    name="fig6",
    title="Error over RBF width",
    claims=(7,),
    settings=SETTINGS,
    runs=RBF_GRID,
    panels=panels,
    judge=judge,
)
