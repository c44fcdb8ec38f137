"""Figure 8: cosine of Taylor-corrected gradients with the true ones.

The authors' code does not measure it. Their reading is the same measurement with the Taylor term of their code.
Comparisons use ``1 - cosine``, which behaves like an error: 0 is perfect, 2 the opposite, ``inf`` a diverged run.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.agreement import COSINE_CURVES, MAX_DISAGREEMENT, cosine_curves, mean_disagreement
from ..analysis.curves import MSE, learning_curves, with_prefix
from ..analysis.formatting import describe_final_errors, format_number
from ..analysis.panels import Panel
from ..analysis.run_table import select
from ..analysis.statistics import iqm
from ..claims.contrast import MAX_DIVERGENCE_RATE, compare_pairs
from ..claims.judging import below, make_verdict, undecided, worse
from ..claims.verdict import Part, Reading, Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import REPLAY_GRID, seeds, union
from .shared.readings import ERROR_CURVES, as_authors_ran, by_reading, each_reading, reading_prefix, titled

TEXT_GRID = REPLAY_GRID.vary(
    paper={
        "method": ["momentum", "full", "default"],
        "width": 16,
        "batch": 16,
        "alpha": 0.1,
        "beta": 0.95,
        "seed": seeds(40),
        "measure": ("agreement",),
    },
    quick={"seed": seeds(10)},
    smoke={"width": 4, "batch": 4, "seed": seeds(2)},
)
CODE_GRID = as_authors_ran(TEXT_GRID, method=["momentum", "full"])
MAX_DISAGREEMENT_IF_CLOSE = 0.1  # "close to 1": a cosine of 0.9 or more


def panels(records: Sequence[Record]) -> list[Panel]:
    groups = by_reading(records)
    first = [_cosine_panel(select(group, method="full"), titled("Figure 8", each)) for each, group in groups.items()]
    return [*first, *(panel for reading, group in groups.items() for panel in _further_panels(group, reading))]


def _further_panels(records: Sequence[Record], reading: Reading) -> list[Panel]:
    prefix = reading_prefix(reading)
    cosines = [_cosine_panel(records, with_prefix(prefix, f"cosine ({kind})"), kind) for kind in COSINE_CURVES]
    errors = learning_curves(records, iqm, ERROR_CURVES[reading])
    return [*cosines, Panel(with_prefix(prefix, "error"), "steps", MSE, errors, log_y=True)]


def _cosine_panel(records: Sequence[Record], title: str, kind: str = "samples") -> Panel:
    return Panel(title, "steps", "cosine with the true gradient", cosine_curves(records, kind))


def _verdict(records: Sequence[Record], reading: Reading) -> Verdict:
    """Judge the cosines of runs of μ̂ that did not diverge; others have none."""
    selected = select(records, method="full")
    converged = [record for record in selected if record.diverged_at is None]
    if not converged:
        part = Part("the cosine is close to 1", "undecided", "all runs diverged")
        return make_verdict(9, "All runs diverged.", [part], selected, reading=reading)
    whole = mean_disagreement(converged)["full"]
    close = below(
        "1 - cosine of μ̂ (samples)",
        whole,
        MAX_DISAGREEMENT_IF_CLOSE,
        "the cosine is close to 1, at least 0.9 on average",
    )
    quarters = {
        "1 - cosine in the last quarter": mean_disagreement(converged, 0.75)["full"],
        "1 - cosine in the first quarter": mean_disagreement(converged, end=0.25)["full"],
    }
    [falling] = compare_pairs(quarters, [tuple(quarters)], MAX_DISAGREEMENT)  # type: ignore[list-item]
    falls = worse(falling, statement="1 - cosine grows from the first to the last quarter")
    parts = [close, falls]
    if len(converged) < (1 - MAX_DIVERGENCE_RATE) * len(selected):
        parts = [undecided(part, f"only {len(converged)} of {len(selected)} runs did not diverge") for part in parts]
    means = ", ".join(
        f"{kind} {format_number(1 - float(iqm(mean_disagreement(converged, kind=kind)['full'])))}"
        for kind in COSINE_CURVES
    )
    diverged = len(selected) - len(converged)
    left_out = f"{diverged} of {len(selected)} runs diverged and are left out. " if diverged else ""
    notes = f"{left_out}Mean cosines of μ̂ over the training: {means}. {describe_final_errors(records)}"
    average, late, early = (format_number(1 - float(iqm(values))) for values in (whole, *quarters.values()))
    among = f", in the {len(converged)} of {len(selected)} runs that did not diverge" if diverged else ""
    why = (
        f"The cosine is {average} on average, {early} in the first quarter and {late} in the last quarter of the "
        f"training{among}."
    )
    return make_verdict(9, why, parts, selected, notes, reading)


FIGURE = Figure(
    name="fig8",
    title="Agreement of corrected gradients with true gradients",
    claims=(9,),
    settings="Mountain Car from replay; MLP of 4 layers of width 16; α 0.1; β 0.95; batches of 16; 40 seeds; 5,000 "
    "steps. Cosines over the last 2/(1-β) batches, per sample and per batch. The authors' code: gradients of δ² with a "
    "Taylor term of half strength.",
    runs=union(TEXT_GRID, CODE_GRID),
    panels=panels,
    judge=each_reading(_verdict),
)
