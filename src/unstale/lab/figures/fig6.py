"""Figure 6: kernels made wider, so that more values move with every step."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Record
from .base import Figure, Panel, Verdict
from .curves import against_panel, divergence_panels, mean
from .grids import KERNELS
from .judging import better, compared, conclude, typical
from .layout import lay_out, select
from .trends import along, levels, rank_correlations, ratio, trends

SETTINGS = (
    "Mountain Car from replay; linear in RBF features on a grid of 10 by 10 and of 20 by 20, σ² from 0.5 to 4; "
    "α 0.1 and 0.01; β 0.99; batches of 16; 10 seeds; 5,000 steps."
)


def panels(records: Sequence[Record]) -> list[Panel]:
    return [
        against_panel(records, "rbf_width", mean),
        against_panel(records, "rbf_width"),
        *divergence_panels(records, "rbf_width"),
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    layout = lay_out(records)
    errors = layout.final()
    gap = along(layout, ratio(errors["momentum"], errors["full"]), "rbf_width")
    [rising] = trends({"the gap between μ and μ̂ against σ²": rank_correlations(levels(layout, "rbf_width"), gap)})
    widths = layout.values("rbf_width")
    widest, narrowest = (lay_out(select(records, rbf_width=end(widths))).final() for end in (max, min))
    [ahead] = compared(widest, [("full", "momentum")])
    note = " ".join(
        typical(ends, f"Interquartile means at σ² = {end(widths):g}") for ends, end in ((narrowest, min), (widest, max))
    )
    return [conclude(7, [rising, better(ahead)], records, note)]


FIGURE = Figure(
    name="fig6",
    title="Error against the width of the kernels",
    claims=(7,),
    settings=SETTINGS,
    runs=KERNELS,
    panels=panels,
    judge=judge,
)
