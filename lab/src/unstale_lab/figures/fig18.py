"""Figure 18: figure 3 with ten times as many steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..analysis.formatting import describe_final_errors, format_number, label
from ..analysis.run_table import select, tabulate
from ..analysis.statistics import Array, iqm
from ..claims.contrast import MAX_DIVERGENCE_RATE, compare_pairs, format_levels
from ..claims.judging import below, better, decide, make_verdict
from ..claims.sentences import describe_ratios, sentence, without_divergences
from ..claims.verdict import Part, Reading, Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import PAPER_METHODS, REPLAY_GRID, seeds, union
from .shared.readings import ERROR_CURVES, as_authors_ran, each_reading, overview_panels

TEXT_GRID = REPLAY_GRID.vary(
    paper={"method": PAPER_METHODS, "steps": 50_000},
    quick={"steps": 20_000, "alpha": 0.1, "seed": seeds(5)},
    smoke={"steps": 500},
)
MAX_REMAINING_ERROR = 0.1  # relative to the error before the first step
CODE_GRID = as_authors_ran(TEXT_GRID, width=32, beta=0.9, batch=16, quick={"width": 16}, smoke={"width": 4, "batch": 4})


def _verdict(records: Sequence[Record], reading: Reading) -> Verdict:
    """Judge convergence: the error of each method keeps falling after a tenth of the steps."""
    selected = select(records, method=PAPER_METHODS)
    table, curve = tabulate(selected), ERROR_CURVES[reading]
    curves = {str(line): of for line, of in table.curves(curve).items()}
    tenth = int(np.searchsorted(table.at, table.at[-1] / 10))
    moments = {
        f"{label(method)} {when}": curves[method][place]
        for method in PAPER_METHODS
        for when, place in (("at the end", -1), ("after a tenth of the steps", tenth))
    }
    pairs = [(f"{label(method)} at the end", f"{label(method)} after a tenth of the steps") for method in PAPER_METHODS]
    contrasts = compare_pairs(moments, pairs, table.worst_error(curve, moments), table.values("alpha"))
    remaining = ", ".join(
        f"{label(method)} {format_number(100 * float(iqm(curves[method][-1] / curves[method][0])))} %"
        for method in PAPER_METHODS
    )
    notes = f"Final error relative to the initial one (IQM): {remaining}. {describe_final_errors(records)}"
    parts = [
        better(contrast, statement=f"the error of {label(method)} keeps falling")
        for method, contrast in zip(PAPER_METHODS, contrasts, strict=True)
    ]
    parts += [_close(method, curves[method], table.values("alpha")) for method in PAPER_METHODS]
    at_the_end = {
        label(method): without_divergences(each, each.b) for method, each in zip(PAPER_METHODS, contrasts, strict=True)
    }
    changes = "the final error is {} that after a tenth of the steps"
    why = sentence(describe_ratios(changes, at_the_end, lambda line: line.removesuffix(" at the end")))
    return make_verdict(18, why, parts, selected, notes, reading)


def _close(method: str, curve: Array, alphas: Sequence[float]) -> Part:
    """Judge whether the error ends at a small share of the initial error, at learning rates without divergences."""
    of = np.array(alphas)
    stable = [alpha for alpha in np.unique(of) if np.isinf(curve[-1][of == alpha]).mean() <= MAX_DIVERGENCE_RATE]
    statement = f"{label(method)} ends below {100 * MAX_REMAINING_ERROR:g} % of its initial error"
    if not stable:
        return Part(statement, decide(False, curve.shape[-1]), "it diverges at every α")
    kept = np.isin(of, stable)
    part = below("final / initial error", curve[-1][kept] / curve[0][kept], MAX_REMAINING_ERROR, statement)
    if kept.all():
        return part
    where = f" at {format_levels('α', stable, np.unique(of).tolist())}"
    answer = "holds in part" if part.answer == "holds" else part.answer
    return replace(part, answer=answer, found=part.found + where, brief=part.brief + where)


FIGURE = Figure(
    name="fig18",
    title="Mountain Car from replay, 50,000 steps",
    claims=(18,),
    settings="As figure 3, with 50,000 steps. The authors' code: width 32, β 0.9, batches of 16.",
    runs=union(TEXT_GRID, CODE_GRID),
    panels=lambda records: overview_panels(records, "Figure 18"),
    judge=each_reading(_verdict),
)
