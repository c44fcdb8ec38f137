"""Figure 1: regression, where targets stand still and correcting momentum should gain little."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import Record
from . import damping
from .base import Figure, Verdict
from .grids import REPLAY
from .judging import compared, conclude, differs, same, small
from .layout import lay_out, select
from .words import final_errors

LITTLE = 0.25

GRID = REPLAY.varied(
    paper={
        "problem": "regression",
        "method": ["momentum", "oracle", "full", "default"],
        "alpha": [0.005, 0.01],
        "damped": [True, False],
    },
)


def _verdict(records: Sequence[Record], reading: str) -> Verdict:
    own = select(records, method=["momentum", "oracle", "full"])
    layout = lay_out(own)
    oracle, full = compared(layout.final(), [("oracle", "momentum"), ("full", "momentum")], layout.worst())
    # The paper has p ≈ 0.001 for the oracle.
    parts = [differs(oracle, threshold=0.01), small(oracle, LITTLE), same(full)]
    return conclude(1, parts, own, final_errors(records), reading)


FIGURE = Figure(
    name="fig1",
    title="Regression: momentum corrected where targets stand still",
    claims=(1,),
    settings="Regression to a sum of sines; MLP of 4 layers, width 8, 16 and 32; β 0.9 and 0.99; α 0.005 and 0.01; "
    "batches of 4, 16 and 64; damped and undamped momentum; 10 seeds; 5,000 steps.",
    runs=GRID,
    panels=damping.panels,
    judge=damping.judged(_verdict),
)
