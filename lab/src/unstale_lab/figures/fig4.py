"""Figure 4: Mountain Car online: transitions in temporal order, each used once.

At the paper's learning rates, damped momentum (as in its text) learns almost nothing in 20,000 steps. Undamped
momentum, with an effective rate of α / (1-β), does learn, and the paper's figure was probably made with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..analysis.formatting import describe_best_settings, describe_final_errors
from ..analysis.run_table import select, tabulate
from ..claims.contrast import compare_methods
from ..claims.judging import better, differs, equivalent, make_verdict
from ..claims.sentences import describe_errors, relative_to, sentence
from ..claims.verdict import Reading, Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import METHODS_WITH_DEFAULT, PAPER_METHODS, Grid, seeds, union
from .shared.readings import ERROR_CURVES, as_authors_ran, each_reading, overview_panels

TEXT_GRID = Grid(
    paper={
        "problem": "mountain_car_online",
        "method": METHODS_WITH_DEFAULT,
        "width": 16,
        "batch": 1,
        "alpha": [0.005, 0.001, 0.0005],
        "beta": [0.9, 0.99],
        "seed": seeds(50),
        "steps": 20_000,
    },
    quick={"seed": seeds(10), "steps": 10_000},
    smoke={"width": 4, "beta": 0.9, "seed": seeds(2), "steps": 50},
)
CODE_GRID = as_authors_ran(TEXT_GRID, damped=False)
LOWER = [("full", "momentum"), ("oracle", "momentum"), ("full", "diagonal"), ("oracle", "diagonal")]


def _verdict(records: Sequence[Record], reading: Reading) -> Verdict:
    selected = select(records, method=PAPER_METHODS)
    curve = ERROR_CURVES[reading]
    pairs = [*LOWER, ("diagonal", "momentum"), ("full", "oracle")]
    contrasts = compare_methods(tabulate(selected), pairs, curve)
    *lower, different, equal = contrasts
    parts = [*map(better, lower), differs(different), replace(equivalent(equal), is_main=False)]
    notes = " ".join(
        [
            describe_final_errors(records),
            describe_best_settings(tabulate(records).final(curve)),
            "The paper's text has “significantly different”; that μ* and μ̂ are better is read off its figure.",
        ]
    )
    why = sentence(describe_errors(relative_to("momentum", contrasts)))
    return make_verdict(4, why, parts, selected, notes, reading)


FIGURE = Figure(
    name="fig4",
    title="Mountain Car online",
    claims=(4,),
    settings="Mountain Car, transitions in temporal order, batches of 1; MLP of 4 layers of width 16; β 0.9 and 0.99; "
    "α 0.005, 0.001 and 0.0005; 50 seeds; 20,000 steps. The authors' code: undamped momentum (which the figure was "
    "probably made with), gradients of δ² with a Taylor term of half strength.",
    runs=union(TEXT_GRID, CODE_GRID),
    panels=lambda records: overview_panels(records, "Figure 4"),
    judge=each_reading(_verdict),
)
