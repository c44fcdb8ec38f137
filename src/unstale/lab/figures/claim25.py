"""Claim 25: what the correction costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..records import Record
from .base import Figure, Panel, Series, Verdict
from .grids import REPLAY
from .judging import Part, conclude, decided, name, number
from .layout import select

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

# Numbers kept besides n parameters, the momentum's own n among them.
KEPT: dict[str, tuple[str, Callable[[int], int]]] = {
    "momentum": ("n", lambda n: n),
    "diagonal": ("3n", lambda n: 3 * n),
    "full": ("2n + n²", lambda n: 2 * n + n * n),
}
BUFFER = 0.2  # what may come on top for the sake of speed
PASSES = 3  # the paper's: one, and two more


def panels(records: Sequence[Record]) -> list[Panel]:
    measures: dict[str, Callable[[Record], float]] = {
        "numbers kept": lambda record: float(record.numbers_kept),
        "seconds a run": lambda record: record.seconds,
    }
    return [
        Panel(what, "parameters n", what, [_line(records, method, measure) for method in KEPT], log_x=True, log_y=True)
        for what, measure in measures.items()
    ]


def _line(records: Sequence[Record], method: str, measure: Callable[[Record], float]) -> Series:
    own = sorted(select(records, method=method), key=lambda record: record.parameters)
    points = [float(record.parameters) for record in own], [measure(record) for record in own]
    return Series(method, *points, method=method, runs=len(own))


def judge(records: Sequence[Record]) -> list[Verdict]:
    parts = [part for method in KEPT for part in (_kept(method, records), _passes(method, records))]
    return [conclude(25, parts, records, _times(records))]


def _kept(method: str, records: Sequence[Record]) -> Part:
    formula, of = KEPT[method]
    own = select(records, method=method)
    counts = ", ".join(f"{record.numbers_kept:,} for n = {record.parameters:,}" for record in own)
    more = max(record.numbers_kept / of(record.parameters) - 1 for record in own)
    why = f" (up to {100 * more:.0f} % more, for samples that wait to be added to a large matrix)" if more > 0 else ""
    return Part(f"{name(method)} keeps {formula} numbers: {counts}{why}", decided(0 <= more <= BUFFER))


def _passes(method: str, records: Sequence[Record]) -> Part:
    passes = max(record.backward_passes for record in select(records, method=method))
    allowed = 1 if method == "momentum" else PASSES
    fewer = " (the gradients of samples give the batch's, too)" if passes < allowed else ""
    says = f"{name(method)} makes {passes} backward passes a step, the paper's {allowed}{fewer}"
    return Part(says, decided(passes <= allowed))


def _times(records: Sequence[Record]) -> str:
    """Seconds relative to momentum's, by the number of parameters; they depend on the machine."""
    base = {record.run.width: record.seconds for record in select(records, method="momentum")}
    told = {
        name(method): [_relative(record, base[record.run.width]) for record in select(records, method=method)]
        for method in ("diagonal", "full")
    }
    each = "; ".join(f"{who} {', '.join(multiples)}" for who, multiples in told.items())
    return f"Time, as a multiple of momentum's: {each}."


def _relative(record: Record, base: float) -> str:
    return f"{number(record.seconds / base)} (n = {record.parameters:,})" if base > 0 else "unknown"


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
