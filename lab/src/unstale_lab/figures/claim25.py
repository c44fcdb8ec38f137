"""Claim 25: what the correction costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..records import Record
from .base import Figure, Panel, Series, Verdict
from .grids import REPLAY
from .judging import Part, conclude, decided
from .layout import select
from .words import name

GRID = REPLAY.varied(
    paper={
        "method": ["momentum", "diagonal", "full"],
        "batch": 16,
        "alpha": 0.1,
        "beta": 0.99,
        "seed": 0,
        "steps": 200,
    },
    quick={"width": [8, 16]},
    smoke={"width": 4, "steps": 50},
)

# Numbers that the paper counts besides n parameters, the momentum's own n among them.
KEPT: dict[str, tuple[str, Callable[[int], int]]] = {
    "momentum": ("n", lambda n: n),
    "diagonal": ("3n", lambda n: 3 * n),
    "full": ("2n + n²", lambda n: 2 * n + n * n),
}
BUFFER = 0.2  # what may come on top for the sake of speed
PASSES = 3  # the paper's: one, and two more
NOTE = (
    "The n numbers more are the last displacement, which is remembered because it may come from any optimizer. Under "
    "plain SGD it is −αμ̂ and need not be kept: the paper's counts hold for its recursion. Times are measured where "
    "they mean something, by the benchmark: benchmarks/results/engine.md."
)


def panels(records: Sequence[Record]) -> list[Panel]:
    lines = [line for method in KEPT for line in _lines(select(records, method=method), method)]
    return [Panel("numbers kept", "parameters n", "numbers", lines, log_x=True, log_y=True)]


def _lines(records: Sequence[Record], method: str) -> list[Series]:
    """What the method keeps, and what the paper counts."""
    kept = sorted((record.parameters, record.numbers_kept) for record in records)
    n = [float(parameters) for parameters, _ in kept]
    counted = [float(KEPT[method][1](parameters)) for parameters, _ in kept]
    return [
        Series(method, n, [float(numbers) for _, numbers in kept], method=method, runs=len(kept)),
        Series(f"{name(method)}, as the paper counts", n, counted, method=method, dashed=True),
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    parts = [part for method in KEPT for part in (_kept(method, records), _passes(method, records))]
    return [conclude(25, parts, records, NOTE)]


def _kept(method: str, records: Sequence[Record]) -> Part:
    formula, of = KEPT[method]
    own = select(records, method=method)
    displacement = 0 if method == "momentum" else 1
    counts = ", ".join(f"{record.numbers_kept:,} for n = {record.parameters:,}" for record in own)
    more = [record.numbers_kept / (of(record.parameters) + displacement * record.parameters) - 1 for record in own]
    beside = " and n more" if displacement else ""
    why = f" (up to {100 * max(more):.0f} % on top, for samples that wait to be added to a large matrix)"
    says = f"{name(method)} keeps {formula} numbers{beside}: {counts}{why if max(more) > 0 else ''}"
    return Part(says, decided(min(more) >= 0 and max(more) <= BUFFER))


def _passes(method: str, records: Sequence[Record]) -> Part:
    passes = max(record.backward_passes for record in select(records, method=method))
    allowed = 1 if method == "momentum" else PASSES
    fewer = " (the gradients of samples give the batch's, too)" if passes < allowed else ""
    says = f"{name(method)} makes {passes} backward passes a step, the paper's {allowed}{fewer}"
    return Part(says, decided(passes <= allowed))


FIGURE = Figure(
    name="claim25",
    title="What the correction costs",
    claims=(25,),
    settings="Mountain Car from replay; MLP of 4 layers, width 8, 16 and 32; α 0.1; β 0.99; batches of 16; 1 seed; "
    "200 steps.",
    runs=GRID,
    panels=panels,
    judge=judge,
)
