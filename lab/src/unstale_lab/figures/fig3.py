"""Figure 3: Mountain Car from replay, the paper's main comparison."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..analysis.formatting import describe_best_settings, describe_final_errors, format_number, label
from ..analysis.run_table import RunTable, select, tabulate
from ..analysis.statistics import Array, iqm
from ..claims.contrast import compare_methods
from ..claims.judging import differs, make_verdict
from ..claims.sentences import describe_errors, relative_to, sentence
from ..claims.verdict import Reading, Verdict
from ..experiment import Run, Scale
from ..records import Record
from .figure import Figure
from .shared.grids import PAPER_METHODS, PAPER_PAIRS, REPLAY_GRID, seeds
from .shared.readings import ERROR_CURVES, as_authors_ran, each_reading, overview_panels

TEXT_GRID = REPLAY_GRID.vary(paper={}, quick={"alpha": [0.5, 0.1], "seed": seeds(5), "steps": 1500})
CODE_GRID = as_authors_ran(TEXT_GRID, width=[16, 32], smoke={"width": 4})


def runs(scale: Scale) -> list[Run]:
    """Return both readings; the scale "quick", which is part of ``make run``, has the text's alone."""
    return [*TEXT_GRID(scale), *(CODE_GRID(scale) if scale != "quick" else [])]


def _verdict(records: Sequence[Record], reading: Reading) -> Verdict:
    """Judge that the methods differ. Their order, which the paper only shows, is described."""
    selected = select(records, method=PAPER_METHODS)
    table, curve = tabulate(selected), ERROR_CURVES[reading]
    contrasts = compare_methods(table, PAPER_PAIRS, curve)
    parts = [differs(contrast) for contrast in contrasts]
    why = sentence(describe_errors(relative_to("momentum", contrasts)))
    notes = [
        _describe_order(table, curve),
        describe_final_errors(records),
        describe_best_settings(tabulate(records).final(curve)),
    ]
    return make_verdict(3, why, parts, selected, " ".join(notes), reading)


def _describe_order(table: RunTable, curve: str) -> str:
    """List the methods from the lowest to the highest error, at each learning rate."""
    alphas = np.array(table.values("alpha"))
    texts = []
    for alpha in np.unique(alphas):
        typical = {method: float(iqm(errors[alphas == alpha])) for method, errors in table.final(curve).items()}
        ranked = sorted(typical, key=typical.__getitem__)
        texts.append(f"α = {alpha:g}: " + ", ".join(f"{label(m)} {format_number(typical[m])}" for m in ranked))
    return f"From the lowest to the highest error (IQM): {'; '.join(texts)}."


def measured(records: Sequence[Record]) -> list[str]:
    """Say how bounded correction, momentum and the paper's own correction ended."""
    table = tabulate(select(records, convention="text"))
    errors = table.final()
    ours, plain = errors["default"], errors["momentum"]
    wins = int(sum(iqm(ours[:, [seed]]) < iqm(plain[:, [seed]]) for seed in range(ours.shape[1])))
    unbounded = errors["full"]
    diverged = int(np.isinf(unbounded).sum())
    return [
        f"Mountain Car, figure 3 of the paper: after {table.at[-1]:,.0f} steps corrected momentum (with this "
        f"library's bound) ended at an error of {_format_iqm(ours)}, momentum at {_format_iqm(plain)}; lower in "
        f"{wins} of {ours.shape[1]} seeds. The oracle, which evaluates past batches again, ended at "
        f"{_format_iqm(errors['oracle'])}. The paper's correction, which has no bound, diverged in {diverged} of "
        f"{unbounded.size} runs. (Interquartile means over {len(table.settings)} settings and {ours.shape[1]} seeds.)"
    ]


def _format_iqm(errors: Array) -> str:
    return format_number(float(iqm(errors)))


FIGURE = Figure(
    name="fig3",
    title="Mountain Car from replay: all methods",
    claims=(3,),
    settings="Mountain Car, transitions sampled independently; MLP of 4 layers, width 8, 16 and 32; β 0.9 and 0.99; "
    "α 0.5, 0.1 and 0.05; batches of 4, 16 and 64; 10 seeds; 5,000 steps. The authors' code: width 16 and 32, "
    "gradients of δ² with a Taylor term of half strength.",
    runs=runs,
    panels=lambda records: overview_panels(records, "Figure 3"),
    judge=each_reading(_verdict),
    measured=measured,
    cut="Width 16, batches of 16, α 0.5 and 0.1, 5 seeds and 1,500 steps.",
)
