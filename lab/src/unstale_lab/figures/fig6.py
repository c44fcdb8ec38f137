"""Figure 6: wider RBF kernels, with which more values change in every step."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.curves import divergence_panels, mean, sensitivity_panel
from ..analysis.formatting import describe_iqm
from ..analysis.panels import Panel
from ..analysis.run_table import select, tabulate
from ..analysis.trends import by_level, levels, p_no_correlation, rank_correlations, ratio
from ..claims.contrast import compare_methods, holm_corrected
from ..claims.judging import better, make_verdict, trend
from ..claims.sentences import describe_errors, sentence, two_decimals
from ..claims.verdict import Reading, Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import RBF_GRID, RBF_WIDTH_NOTE, union
from .shared.readings import ERROR_CURVES, as_authors_ran, by_reading, each_reading, reading_prefix, titled

METHODS = ["momentum", "full", "diagonal"]
CODE_GRID = as_authors_ran(RBF_GRID, method=METHODS, problem="mountain_car", rbf_amplitude=2.0)
SETTINGS = (
    "Mountain Car from replay; linear in RBF features on a grid of 10 by 10 and of 20 by 20, σ² from 0.5 to 4; "
    f"α 0.1 and 0.01; β 0.99; batches of 16; 10 seeds; 5,000 steps. {RBF_WIDTH_NOTE}"
)


def panels(records: Sequence[Record]) -> list[Panel]:
    groups = by_reading(records)
    return [
        *(_panel(select(group, method=METHODS), reading) for reading, group in groups.items()),
        *(
            sensitivity_panel(group, "rbf_width", prefix=reading_prefix(reading), curve=ERROR_CURVES[reading])
            for reading, group in groups.items()
        ),
        *(
            panel
            for reading, group in groups.items()
            for panel in divergence_panels(group, "rbf_width", reading_prefix(reading))
        ),
    ]


def _panel(records: Sequence[Record], reading: Reading) -> Panel:
    panel = sensitivity_panel(records, "rbf_width", mean, curve=ERROR_CURVES[reading])
    return Panel(titled("Figure 6", reading), panel.x_label, panel.y_label, panel.series, log_y=True)


def _verdict(records: Sequence[Record], reading: Reading) -> Verdict:
    selected = select(records, method=["momentum", "full"])
    table, curve = tabulate(selected), ERROR_CURVES[reading]
    errors, widths = table.final(curve), table.values("rbf_width")
    gap, drift = (
        rank_correlations(levels(table, "rbf_width"), by_level(table, values, "rbf_width"))
        for values in (ratio(errors["momentum"], errors["full"]), table.mean_over("drift")["momentum"])
    )
    widest = tabulate(select(selected, rbf_width=max(widths)))
    contrasts = compare_methods(widest, [("full", "momentum")], curve)
    [at_widest], ps = holm_corrected(contrasts, p_no_correlation(gap), p_no_correlation(drift))
    parts = [
        better(at_widest, statement="with the widest kernels μ̂ has a lower error than μ"),
        trend("error ratio of μ to μ̂ over σ²", gap, ps[0], "the gap between μ̂ and μ grows with the kernels"),
        trend("drift of μ over σ²", drift, ps[1], "the drift of μ grows with the kernels"),
    ]
    notes = " ".join(
        describe_iqm(tabulate(select(records, rbf_width=width)).final(curve), f"Final errors (IQM) at σ² = {width:g}")
        for width in (min(widths), max(widths))
    )
    why = sentence(
        f"with the widest kernels {describe_errors([at_widest])}",
        f"the rank correlation with the width is {two_decimals(gap.mean())} (gap in error) and "
        f"{two_decimals(drift.mean())} (drift of μ)",
    )
    return make_verdict(7, why, parts, selected, notes, reading)


FIGURE = Figure(
    name="fig6",
    title="Error over RBF width",
    claims=(7,),
    settings=SETTINGS,
    runs=union(RBF_GRID, CODE_GRID),
    panels=panels,
    judge=each_reading(_verdict),
)
