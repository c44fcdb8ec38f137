"""Figure 17: figure 9 with frozen targets beside, a copy of the network made every 2,500 steps."""

from __future__ import annotations

from collections.abc import Sequence

from ..experiment import Run, Scale
from ..records import Record
from .base import Figure, Panel, Verdict
from .fig9 import ADAMS, in_the_papers_setting
from .fig16 import MUCH
from .grids import FOR_WANT_OF_TIME
from .judging import Part, better, compared, conclude, corrected, too_soon
from .layout import lay_out, select
from .pacman import AGAINST, PLAY, TRUTH, ends, error_panels, resolved
from .words import name, typical

METHODS = ("adam", "adam_frozen", "adam_diagonal_literal")
IN_THE_END = "is more precise in the very end than"
IN_THE_END_UNKNOWN = Part(f"{name('adam_frozen')} {IN_THE_END} {name('adam')}", "inconclusive")
# On a CPU, and of no more than the claim is about.
SMALL = PLAY.varied(
    paper={"network": "small_atari", "width": 16, "method": ["adam", "adam_frozen"], **ADAMS}, quick={"steps": 5_000}
)
LONG = 200_000  # steps: the paper sees frozen targets ahead only "after a very long time"


def runs(scale: Scale) -> list[Run]:
    return SMALL(scale) if scale == "quick" else in_the_papers_setting(scale, METHODS)


def panels(records: Sequence[Record]) -> list[Panel]:
    return error_panels(resolved(records))


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Slower is a higher mean error along training; more precise, a lower one in the end of a long training."""
    own = select(resolved(records), method=["adam", "adam_frozen"])
    layout = lay_out(own)
    along = layout.along(TRUTH)
    evidence = compared(along, [("adam", "adam_frozen")], layout.worst(TRUTH, along))
    steps = own[0].run.steps
    if steps >= LONG:
        evidence += compared(layout.final(TRUTH), [("adam_frozen", "adam")], layout.worst(TRUTH))
    [slower, *later], _ = corrected(evidence)
    parts = [better(slower, least=MUCH, relation="is, along training, better than")]
    parts += [better(each, relation=IN_THE_END) for each in later] or [too_soon(IN_THE_END_UNKNOWN, steps)]
    note = " ".join(
        [
            f"Errors are {AGAINST[TRUTH]}.",
            typical(along, "Along training"),
            *(typical(ends(resolved(records), curve), f"In the end, {about}") for curve, about in AGAINST.items()),
        ]
    )
    return [conclude(12, parts, own, note, reading="MsPacman")]


FIGURE = Figure(
    name="fig17",
    title="MsPacman, policy evaluation, with frozen targets beside",
    claims=(12,),
    settings="As figure 9, in the paper's settings; frozen targets, copied every 2,500 steps, have Adam's.",
    runs=runs,
    panels=panels,
    judge=judge,
    cut="The paper's small network, n = 12,745, instead of DQN's, without μ̂ diag/√; 5 seeds and 5,000 steps: "
    f"{FOR_WANT_OF_TIME}",
)
