"""Figure 12: sparse RBF features, for which there should be nothing to correct."""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.formatting import describe_final_errors
from ..analysis.run_table import tabulate
from ..claims.contrast import compare_methods
from ..claims.judging import equivalent, make_verdict
from ..claims.sentences import describe_spread, sentence
from ..claims.verdict import Reading, Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import PAPER_METHODS, PAPER_PAIRS, RBF_GRID, RBF_WIDTH_NOTE, union
from .shared.readings import ERROR_CURVES, as_authors_ran, each_reading, overview_panels

TEXT_GRID = RBF_GRID.vary(
    paper={"method": PAPER_METHODS, "rbf_width": 1.0, "beta": [0.9, 0.99], "measure": ()}, smoke={"beta": 0.9}
)
CODE_GRID = as_authors_ran(TEXT_GRID, problem="mountain_car", rbf_amplitude=2.0)


def _verdict(records: Sequence[Record], reading: Reading) -> Verdict:
    contrasts = compare_methods(tabulate(records), PAPER_PAIRS, ERROR_CURVES[reading])
    parts = [equivalent(contrast) for contrast in contrasts]
    notes = describe_final_errors(records)
    if reading == "code":
        notes += (
            " The oracle's horizon of 2/(1-β) leaves out 12 to 13 % of the weights, so that its steps are smaller. "
            "The runs “as described in the text” rescale them to the sum of momentum's, which the paper does not."
        )
    return make_verdict(6, sentence(describe_spread(contrasts)), parts, records, notes, reading)


FIGURE = Figure(
    name="fig12",
    title="RBF features: all methods",
    claims=(6,),
    settings="Mountain Car from replay; linear in RBF features on a grid of 10 by 10 and of 20 by 20, σ² 1; α 0.1 and "
    f"0.01; β 0.9 and 0.99; batches of 16; 10 seeds; 5,000 steps. {RBF_WIDTH_NOTE}",
    runs=union(TEXT_GRID, CODE_GRID),
    panels=lambda records: overview_panels(records, "Figure 12"),
    judge=each_reading(_verdict),
)
