"""Figure 6: kernels made wider, so that more values move with every step."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Record
from .base import Figure, Panel, Verdict
from .curves import against_panel, divergence_panels, mean
from .grids import CELLS, KERNELS
from .judging import better, compared, conclude, corrected
from .layout import lay_out, select
from .trends import against_none, along, levels, rank_correlations, ratio, trend
from .words import typical

SETTINGS = (
    "Mountain Car from replay; linear in RBF features on a grid of 10 by 10 and of 20 by 20, σ² from 0.5 to 4; "
    f"α 0.1 and 0.01; β 0.99; batches of 16; 10 seeds; 5,000 steps. {CELLS}"
)


def panels(records: Sequence[Record]) -> list[Panel]:
    return [
        against_panel(records, "rbf_width", mean),
        against_panel(records, "rbf_width"),
        *divergence_panels(records, "rbf_width"),
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    own = select(records, method=["momentum", "full"])
    layout = lay_out(own)
    errors, worst, widths = layout.final(), layout.worst(), layout.values("rbf_width")
    gap = along(layout, ratio(errors["momentum"], errors["full"], worst), "rbf_width")
    rho = rank_correlations(levels(layout, "rbf_width"), gap)
    widest = lay_out(select(own, rbf_width=max(widths))).final()
    [ahead], [p] = corrected(compared(widest, [("full", "momentum")], worst), against_none(rho))
    rising = trend("the gap between μ and μ̂ against σ²", rho, p)
    note = " ".join(
        typical(lay_out(select(records, rbf_width=width)).final(), f"Interquartile means at σ² = {width:g}")
        for width in (min(widths), max(widths))
    )
    return [conclude(7, [rising, better(ahead)], own, note)]


FIGURE = Figure(
    name="fig6",
    title="Error against the width of the kernels",
    claims=(7,),
    settings=SETTINGS,
    runs=KERNELS,
    panels=panels,
    judge=judge,
)
