"""Figure 18: figure 3 with ten times as many steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..analysis.curves import overview_panels
from ..analysis.formatting import describe_final_errors, label
from ..analysis.run_table import select, tabulate
from ..claims.judging import below, better, compare_pairs, make_verdict
from ..claims.verdict import Verdict
from ..figures.figure import Figure
from ..records import Record
from .shared.grids import METHODS_WITH_DEFAULT, PAPER_METHODS, REPLAY_GRID, seeds

GRID = REPLAY_GRID.vary(
    paper={"method": METHODS_WITH_DEFAULT, "steps": 50_000},
    quick={"steps": 20_000, "alpha": 0.1, "seed": seeds(5)},
    smoke={"steps": 50},
)
MAX_REMAINING_ERROR = 0.01  # relative to the error before the first step


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge convergence: the error falls after a tenth of the steps, and ends at 1 % of the initial error or less."""
    selected = select(records, method=PAPER_METHODS)
    table = tabulate(selected)
    curves = {str(line): of for line, of in table.curves().items()}
    tenth = int(np.searchsorted(table.at, table.at[-1] / 10))
    moments = {
        f"{label(method)} {when}": curves[method][place]
        for method in PAPER_METHODS
        for when, place in (("at the end", -1), ("after a tenth of the steps", tenth))
    }
    pairs = [(f"{label(method)} at the end", f"{label(method)} after a tenth of the steps") for method in PAPER_METHODS]
    falling = [better(evidence) for evidence in compare_pairs(moments, pairs, table.worst_error())]
    remaining = [
        below(f"Final / initial error of {label(method)}", curves[method][-1] / curves[method][0], MAX_REMAINING_ERROR)
        for method in PAPER_METHODS
    ]
    return [make_verdict(18, [*falling, *remaining], selected, describe_final_errors(records))]


FIGURE = Figure(
    name="fig18",
    title="Mountain Car from replay, 50,000 steps",
    claims=(18,),
    settings="As figure 3, with 50,000 steps.",
    runs=GRID,
    panels=overview_panels,
    judge=judge,
)
