"""Figure 1: regression, the supervised case: targets do not move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..analysis.formatting import describe_final_errors, label
from ..analysis.run_table import select, tabulate
from ..analysis.statistics import Array
from ..claims.contrast import compare_methods, compare_pairs, holm_corrected, learning_rates
from ..claims.judging import better, differs, equivalent, make_verdict
from ..claims.sentences import describe_errors, sentence
from ..claims.verdict import Reading, Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import REPLAY_GRID, union
from .shared.readings import ERROR_CURVES, as_authors_ran, each_reading, overview_panels

METHODS = ["momentum", "oracle", "full"]
MAX_DISTANCE = 10.0  # of log errors; what a diverged run counts as
SMALL_DIFFERENCE = 1.25  # a factor; the paper calls the oracle's difference "fairly small"

TEXT_GRID = REPLAY_GRID.vary(paper={"problem": "regression", "method": [*METHODS, "default"], "alpha": [0.005, 0.01]})
CODE_GRID = as_authors_ran(TEXT_GRID, method=METHODS, damped=False)


def _verdict(records: Sequence[Record], reading: Reading) -> Verdict:
    """Judge the sizes of two differences. That one is smaller is not in the text; it follows from its p-values."""
    selected = select(records, method=METHODS)
    table, curve = tabulate(selected), ERROR_CURVES[reading]
    full, oracle = compare_methods(table, [("full", "momentum"), ("oracle", "momentum")], curve)
    errors = table.final(curve)
    distances = {f"distance of {label(m)} from μ": _distance(errors[m], errors["momentum"]) for m in ("full", "oracle")}
    pair = ("distance of μ̂ from μ", "distance of μ* from μ")
    [closer] = compare_pairs(distances, [pair], MAX_DISTANCE, *learning_rates(table))
    (full, oracle, closer), _ = holm_corrected([full, oracle, closer])
    parts = [
        equivalent(full),
        differs(oracle),
        replace(equivalent(oracle, SMALL_DIFFERENCE), is_main=False),
        replace(better(closer, statement="μ̂ is closer to μ than μ* is"), is_main=False),
    ]
    why = sentence(describe_errors([oracle, full]))
    return make_verdict(1, why, parts, selected, describe_final_errors(records), reading)


def _distance(a: Array, b: Array) -> Array:
    """Return the absolute log ratio of errors; infinite if one of the two runs diverged."""
    tiny = np.finfo(float).tiny
    with np.errstate(invalid="ignore"):
        distance: Array = np.abs(np.log(np.maximum(a, tiny)) - np.log(np.maximum(b, tiny)))
    return np.nan_to_num(distance, nan=np.inf, posinf=np.inf)


FIGURE = Figure(
    name="fig1",
    title="Regression: corrected momentum with fixed targets",
    claims=(1,),
    settings="Regression to a sum of sines; MLP of 4 layers, width 8, 16 and 32; β 0.9 and 0.99; α 0.005 and 0.01; "
    "batches of 4, 16 and 64; 10 seeds; 5,000 steps. The authors' code: undamped momentum, gradients of δ² with a "
    "Taylor term of half strength, made of the batch's mean gradient.",
    runs=union(TEXT_GRID, CODE_GRID),
    panels=lambda records: overview_panels(records, "Figure 1", methods=METHODS),
    judge=each_reading(_verdict),
)
