"""Claim 25: memory and backward passes of the correction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..analysis.formatting import format_times, label, listed
from ..analysis.panels import Panel, Series
from ..analysis.run_table import select
from ..claims.judging import decide, make_verdict
from ..claims.verdict import Part, Verdict
from ..records import Record
from .figure import Figure
from .shared.grids import REPLAY_GRID

GRID = REPLAY_GRID.vary(
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

# Elements stored besides the n parameters and the n of momentum.
PAPER_MEMORY: dict[str, tuple[str, Callable[[int], int]]] = {
    "diagonal": ("3n", lambda n: 3 * n),
    "full": ("2n + n²", lambda n: 2 * n + n * n),
}
MAX_EXTRA_MEMORY = 0.2  # relative; buffers that make steps faster
PAPER_EXTRA_PASSES = 2  # backward passes per batch, besides the one of momentum
NOTE = (
    "n is the number of parameters. They and the n elements of momentum are not counted. Step times are in the "
    "benchmark, benchmarks/results/engine.md."
)


def panels(records: Sequence[Record]) -> list[Panel]:
    lines = [line for method in PAPER_MEMORY for line in _lines(records, method)]
    return [
        Panel("optimizer state, without momentum", "parameters n", "stored elements", lines, log_x=True, log_y=True)
    ]


def _lines(records: Sequence[Record], method: str) -> list[Series]:
    """Return the stored elements as measured and as the paper counts them."""
    stored = _extra_memory(method, records)
    n = [float(parameters) for parameters in stored]
    paper_count = [float(PAPER_MEMORY[method][1](parameters)) for parameters in stored]
    return [
        Series(method, n, [float(elements) for elements in stored.values()], method=method, runs=len(n)),
        Series(f"{label(method)}, paper's count", n, paper_count, method=method, dashed=True),
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    parts = [f(method, records) for f in (_memory, _backward_passes) for method in ("full", "diagonal")]
    memory = [
        f"{label(method)} stores {_relative_memory(method, records)} the {formula} elements"
        for method, (formula, _) in sorted(PAPER_MEMORY.items(), reverse=True)
    ]
    passes = {str(_extra_passes(method, records)) for method in PAPER_MEMORY}
    why = (
        f"Besides momentum, {listed(memory)} that the paper counts. Backward passes added per batch: "
        f"{listed(sorted(passes))}; in the paper, {PAPER_EXTRA_PASSES}."
    )
    return [make_verdict(25, why, parts, records, NOTE)]


def _extra_memory(method: str, records: Sequence[Record]) -> dict[int, int]:
    """Return the number of stored elements, without those of momentum, by the number of parameters."""
    own, momentum = (
        {record.parameters: record.numbers_kept for record in select(records, method=m)} for m in (method, "momentum")
    )
    return {parameters: own[parameters] - momentum[parameters] for parameters in sorted(own)}


def _memory_ratios(method: str, records: Sequence[Record]) -> list[float]:
    """Return the ratios of the stored elements to the paper's count."""
    of = PAPER_MEMORY[method][1]
    return [elements / of(parameters) for parameters, elements in _extra_memory(method, records).items()]


def _relative_memory(method: str, records: Sequence[Record]) -> str:
    low, high = (format_times(extreme(_memory_ratios(method, records))) for extreme in (min, max))
    return low if low == high else f"{low} to {high}"


def _memory(method: str, records: Sequence[Record]) -> Part:
    formula, _ = PAPER_MEMORY[method]
    counts = ", ".join(f"{elements:,} for n = {n:,}" for n, elements in _extra_memory(method, records).items())
    ratios = _memory_ratios(method, records)
    more = max(ratios) - 1
    buffer = f" (up to {100 * more:.0f} % more, for a buffer of samples to merge into a large matrix)"
    answer = decide(min(ratios) >= 1 and more <= MAX_EXTRA_MEMORY)
    return Part(
        f"{label(method)} stores {formula} elements more than momentum",
        answer,
        f"elements more than momentum: {counts}{buffer if more > 0 else ''}",
        brief=f"{_relative_memory(method, records)} the paper's count",
    )


def _extra_passes(method: str, records: Sequence[Record]) -> int:
    """Return the number of backward passes per batch that momentum does not take."""
    own, plain = (max(each.backward_passes for each in select(records, method=m)) for m in (method, "momentum"))
    return own - plain


def _backward_passes(method: str, records: Sequence[Record]) -> Part:
    extra = _extra_passes(method, records)
    fewer = " (the batch gradient is a sum of the per-sample gradients)" if extra < PAPER_EXTRA_PASSES else ""
    statement = f"{label(method)} takes at most {PAPER_EXTRA_PASSES} more backward passes per batch than momentum"
    return Part(statement, decide(extra <= PAPER_EXTRA_PASSES), f"{extra} more per batch{fewer}", brief=f"{extra} more")


FIGURE = Figure(
    name="claim25",
    title="Cost of the correction",
    claims=(25,),
    settings="Mountain Car from replay; MLP of 4 layers, width 8, 16 and 32; α 0.1; β 0.99; batches of 16; 1 seed; "
    "200 steps.",
    runs=GRID,
    panels=panels,
    judge=judge,
)
