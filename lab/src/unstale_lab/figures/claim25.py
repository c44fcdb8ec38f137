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

# Elements stored besides the n parameters, as the paper counts them, momentum included.
PAPER_MEMORY: dict[str, tuple[str, Callable[[int], int]]] = {
    "momentum": ("n", lambda n: n),
    "diagonal": ("3n", lambda n: 3 * n),
    "full": ("2n + n²", lambda n: 2 * n + n * n),
}
MAX_EXTRA_MEMORY = 0.2  # relative; buffers that make steps faster
PAPER_EXTRA_PASSES = 2  # backward passes per batch, besides the one of momentum
NOTE = (
    "n is the number of parameters, which are not counted. The additional n elements are the last displacement, which "
    "is stored because it may come from any optimizer. For plain SGD it is −αμ̂ and need not be stored, as in the "
    "paper's recursion. Step times are in the benchmark, benchmarks/results/engine.md."
)


def panels(records: Sequence[Record]) -> list[Panel]:
    lines = [line for method in PAPER_MEMORY for line in _lines(select(records, method=method), method)]
    return [Panel("optimizer state", "parameters n", "stored elements", lines, log_x=True, log_y=True)]


def _lines(records: Sequence[Record], method: str) -> list[Series]:
    """Return the stored elements as measured and as the paper counts them."""
    kept = sorted((record.parameters, record.numbers_kept) for record in records)
    n = [float(parameters) for parameters, _ in kept]
    paper_count = [float(PAPER_MEMORY[method][1](parameters)) for parameters, _ in kept]
    return [
        Series(method, n, [float(numbers) for _, numbers in kept], method=method, runs=len(kept)),
        Series(f"{label(method)}, paper's count", n, paper_count, method=method, dashed=True),
    ]


def judge(records: Sequence[Record]) -> list[Verdict]:
    parts = [f(method, records) for f in (_memory, _backward_passes) for method in ("full", "diagonal")]
    memory = {method: format_times(max(_relative_memory(method, records))) for method in ("full", "diagonal")}
    passes = {str(_extra_passes(method, records)) for method in memory}
    why = (
        f"μ̂ stores up to {memory['full']} the {PAPER_MEMORY['full'][0]} elements that the paper counts, mostly because "
        f"it buffers samples; μ̂ diag stores up to {memory['diagonal']} the {PAPER_MEMORY['diagonal'][0]}, because it "
        f"keeps the last displacement. Backward passes added per batch: {listed(sorted(passes))}; in the paper, "
        f"{PAPER_EXTRA_PASSES}."
    )
    return [make_verdict(25, why, parts, records, NOTE)]


def _relative_memory(method: str, records: Sequence[Record]) -> list[float]:
    """Return the ratios of the stored elements to the paper's count."""
    of = PAPER_MEMORY[method][1]
    return [record.numbers_kept / of(record.parameters) for record in select(records, method=method)]


def _memory(method: str, records: Sequence[Record]) -> Part:
    """Judge the number of stored elements, besides the n of the last displacement (see ``NOTE``)."""
    formula, of = PAPER_MEMORY[method]
    selected = select(records, method=method)
    counts = ", ".join(f"{record.numbers_kept:,} for n = {record.parameters:,}" for record in selected)
    more = [record.numbers_kept / (of(record.parameters) + record.parameters) - 1 for record in selected]
    buffer = f" (up to {100 * max(more):.0f} % extra, for a buffer of samples to merge into a large matrix)"
    answer = decide(min(more) >= 0 and max(more) <= MAX_EXTRA_MEMORY)
    found = f"stored elements, n of them for the last displacement: {counts}{buffer if max(more) > 0 else ''}"
    statement = f"{label(method)} stores {formula} elements, besides n for the last displacement"
    return Part(
        statement, answer, found, brief=f"{format_times(max(_relative_memory(method, records)))} the paper's count"
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
