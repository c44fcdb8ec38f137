"""Figure 10: batch size, and whether batches of one explain the poor online result of the diagonal correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..analysis.curves import divergence_panels, mean, sensitivity_curves, sensitivity_panel
from ..analysis.formatting import describe_iqm, label
from ..analysis.panels import Panel
from ..analysis.run_table import select, tabulate
from ..claims.judging import better, compare_pairs, make_verdict
from ..claims.verdict import Reading, Verdict
from ..experiment import Run, Scale
from ..records import Record
from .figure import Figure
from .shared.grids import PAPER_METHODS, REPLAY_GRID, seeds
from .shared.readings import ERROR_CURVES, as_authors_ran, by_reading, titled

TEXT_GRID = REPLAY_GRID.vary(
    paper={"method": PAPER_METHODS, "batch": [1, 4, 16, 64], "seed": seeds(20)},
    quick={"alpha": 0.1, "seed": seeds(10)},
    smoke={"batch": [1, 16], "seed": seeds(2)},
)
CODE_GRID = as_authors_ran(TEXT_GRID, alpha=[0.005, 0.01, 0.1], width=16, beta=0.99, smoke={"width": 4, "alpha": 0.1})
ONLINE = {"problem": "mountain_car_online", "batch": 1}  # the same data in temporal order
GRIDS = (
    TEXT_GRID,
    TEXT_GRID.vary(paper={**ONLINE, "method": ["oracle", "full", "diagonal"]}),
    CODE_GRID,
    CODE_GRID.vary(paper={**ONLINE, "method": ["oracle", "full", "diagonal"]}),
)


def runs(scale: Scale) -> list[Run]:
    return [run for grid in GRIDS for run in grid(scale)]


def _split(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Return the runs from replay and those online."""
    return select(records, problem="mountain_car"), select(records, problem="mountain_car_online")


def panels(records: Sequence[Record]) -> list[Panel]:
    groups = by_reading(records)
    return [
        *(_paper_panel(group, reading) for reading, group in groups.items()),
        *(_with_online(group, reading) for reading, group in groups.items()),
        *(panel for group in groups.values() for panel in divergence_panels(_split(group)[0], "batch")),
    ]


def _paper_panel(records: Sequence[Record], reading: Reading) -> Panel:
    replay = select(_split(records)[0], method=PAPER_METHODS)
    panel = sensitivity_panel(replay, "batch", mean, curve=ERROR_CURVES[reading])
    return replace(panel, title=titled("Figure 10", reading))


def _with_online(records: Sequence[Record], reading: Reading) -> Panel:
    """Return interquartile means over batch size, and those online beside batches of 1."""
    replay, online = _split(records)
    panel = sensitivity_panel(replay, "batch", curve=ERROR_CURVES[reading])
    lines = [
        replace(line, label=f"{label(line.method)}, online", dashed=True)
        for line in sensitivity_curves(online, "batch", curve=ERROR_CURVES[reading])
    ]
    return replace(panel, title=titled(panel.title, reading), series=[*panel.series, *lines])


def judge(records: Sequence[Record]) -> list[Verdict]:
    return [_verdict(group, reading) for reading, group in by_reading(records).items()]


def _verdict(records: Sequence[Record], reading: Reading) -> Verdict:
    """Judge two statements about the diagonal correction.

    Batches of 1 hurt if the error is lower with batches of 16. They do not explain everything if the error with batches
    of 1 is lower from replay than online.
    """
    replay, online = (select(some, method="diagonal") for some in _split(records))
    curve = ERROR_CURVES[reading]
    by_batch = tabulate(select(replay, batch=[1, 16]), by=("batch",))
    both = tabulate([*select(replay, batch=1), *online], by=("problem",))
    worst = max(table.worst_error(curve) for table in (by_batch, both))
    errors = {f"μ̂ diag, batches of {batch}": values for batch, values in by_batch.final(curve).items()}
    errors["μ̂ diag online"] = both.final(curve)["mountain_car_online"]
    pairs = [("μ̂ diag, batches of 16", "μ̂ diag, batches of 1"), ("μ̂ diag, batches of 1", "μ̂ diag online")]
    contrasts = compare_pairs(errors, pairs, worst, by_batch.values("alpha"))
    notes = " ".join(
        describe_iqm(tabulate(select(group, batch=1)).final(curve), f"Batches of 1, {where} (IQM)")
        for where, group in zip(("replay", "online"), _split(records), strict=True)
    )
    statements = ("batches of 1 make μ̂ diag worse than batches of 16", "with batches of 1 it is worse still online")
    parts = [better(each, statement=text) for each, text in zip(contrasts, statements, strict=True)]
    return make_verdict(14, parts, [*replay, *online], notes, reading)


FIGURE = Figure(
    name="fig10",
    title="Error over batch size",
    claims=(14,),
    settings="Mountain Car from replay; batches of 1, 4, 16 and 64; MLP of 4 layers, width 8, 16 and 32; β 0.9 and "
    "0.99; α 0.5, 0.1 and 0.05; 20 seeds; 5,000 steps. In addition μ*, μ̂ and μ̂ diag online with batches of 1, in the "
    "same settings. The authors' code: width 16, β 0.99, α 0.005, 0.01 and 0.1, gradients of δ² with a Taylor term of "
    "half strength.",
    runs=runs,
    panels=panels,
    judge=judge,
)
