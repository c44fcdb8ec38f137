"""Figure 10: batch size, and whether batches of one explain the poor online result of the diagonal correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..analysis.curves import divergence_panels, mean, sensitivity_curves, sensitivity_panel
from ..analysis.formatting import describe_iqm, label
from ..analysis.panels import Panel
from ..analysis.run_table import select, tabulate
from ..analysis.trends import ratio
from ..claims.contrast import compare_pairs
from ..claims.judging import describe_contrast, make_verdict, worse
from ..claims.sentences import describe_ratio, sentence
from ..claims.verdict import Reading, Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import PAPER_METHODS, REPLAY_GRID, seeds, union
from .shared.readings import ERROR_CURVES, as_authors_ran, by_reading, each_reading, reading_prefix, titled

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


def _split(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Return the runs from replay and those online."""
    return select(records, problem="mountain_car"), select(records, problem="mountain_car_online")


def panels(records: Sequence[Record]) -> list[Panel]:
    groups = by_reading(records)
    return [
        *(_paper_panel(group, reading) for reading, group in groups.items()),
        *(_with_online(group, reading) for reading, group in groups.items()),
        *(
            panel
            for reading, group in groups.items()
            for panel in divergence_panels(_split(group)[0], "batch", reading_prefix(reading))
        ),
    ]


def _paper_panel(records: Sequence[Record], reading: Reading) -> Panel:
    replay = select(_split(records)[0], method=PAPER_METHODS)
    panel = sensitivity_panel(replay, "batch", mean, curve=ERROR_CURVES[reading])
    return replace(panel, title=titled("Figure 10", reading))


def _with_online(records: Sequence[Record], reading: Reading) -> Panel:
    """Return interquartile means over batch size, and those online beside batches of 1: on the evaluation set."""
    replay, online = _split(records)
    panel = sensitivity_panel(replay, "batch")
    lines = [
        replace(line, label=f"{label(line.method)} online", dashed=True) for line in sensitivity_curves(online, "batch")
    ]
    return replace(panel, title=titled(panel.title, reading), series=[*panel.series, *lines])


def _verdict(records: Sequence[Record], reading: Reading) -> Verdict:
    """Judge two statements about the diagonal correction.

    Batches of 1 hurt if the error is lower with batches of 16. They do not explain everything if the error with batches
    of 1 is higher online than from replay. The notes compare this with the oracle, which order may hurt as well. Errors
    are those on the evaluation set in both readings, because the states of the training distribution differ: visited
    ones online, uniform ones from replay.
    """
    selected = select(records, method=["diagonal", "oracle"])
    replay, online = _split(selected)
    by_batch = tabulate(select(replay, method="diagonal", batch=[1, 16]), by=("batch",))
    tables = {"from replay": tabulate(select(replay, batch=1)), "online": tabulate(online)}
    single = {where: table.final() for where, table in tables.items()}
    worst = max(table.worst_error() for table in (by_batch, *tables.values()))
    errors = {f"μ̂ diag, batches of {batch}": values for batch, values in by_batch.final().items()}
    errors |= {f"μ̂ diag {where}": of["diagonal"] for where, of in single.items()}
    relative = {
        f"error of μ̂ diag relative to μ*, {where}": ratio(of["diagonal"], of["oracle"]) for where, of in single.items()
    }
    alphas = by_batch.values("alpha")
    largest = max(float(values[np.isfinite(values)].max(initial=1.0)) for values in relative.values())
    from_replay, online_pair = relative
    [behind_oracle] = compare_pairs(relative, [(online_pair, from_replay)], largest, alphas)
    pairs = {
        "batches of 1 make μ̂ diag worse than batches of 16": ("μ̂ diag, batches of 1", "μ̂ diag, batches of 16"),
        "with batches of 1 it is worse online than from replay": ("μ̂ diag online", "μ̂ diag from replay"),
    }
    of_batches, of_order = contrasts = compare_pairs(errors, pairs.values(), worst, alphas)
    parts = [worse(contrast, statement=text) for text, contrast in zip(pairs, contrasts, strict=True)]
    why = sentence(
        describe_ratio("with batches of 1, μ̂ diag has {} the error of batches of 16", of_batches),
        describe_ratio("online it has {} the error of replay", of_order),
    )
    notes = " ".join(
        [
            *(
                describe_iqm(tabulate(select(group, batch=1)).final(), f"Batches of 1, {where} (IQM)")
                for where, group in zip(single, _split(records), strict=True)
            ),
            f"Beyond the paper: {describe_contrast(behind_oracle)}.",
        ]
    )
    return make_verdict(14, why, parts, selected, notes, reading)


FIGURE = Figure(
    name="fig10",
    title="Error over batch size",
    claims=(14,),
    settings="Mountain Car from replay; batches of 1, 4, 16 and 64; MLP of 4 layers, width 8, 16 and 32; β 0.9 and "
    "0.99; α 0.5, 0.1 and 0.05; 20 seeds; 5,000 steps. In addition μ*, μ̂ and μ̂ diag online with batches of 1, in the "
    "same settings. The authors' code: width 16, β 0.99, α 0.005, 0.01 and 0.1, gradients of δ² with a Taylor term of "
    "half strength. Online and replay are compared on the evaluation set.",
    runs=union(*GRIDS),
    panels=panels,
    judge=each_reading(_verdict),
)
