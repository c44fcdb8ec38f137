"""Figure 3: Mountain Car from replay, the paper's main comparison."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from ..analysis.curves import overview_panels
from ..analysis.formatting import describe_best_settings, describe_final_errors, format_number, label
from ..analysis.run_table import RunTable, select, tabulate, without
from ..analysis.statistics import Array, iqm
from ..claims.judging import better, combine_outcomes, compare_pairs, differs, make_verdict
from ..claims.verdict import Verdict
from ..figures.figure import Figure
from ..records import Record
from .shared.grids import PAPER_METHODS, PAPER_ORDER, REPLAY_GRID, seeds

LARGEST_ALPHA = 0.5  # at which the unbounded correction tends to diverge
WITHOUT_LARGEST_ALPHA = f"without α = {LARGEST_ALPHA}"
IN_ORDER = "in the paper's order"
PAPER_P_THRESHOLD = 0.001
# The pair that the paper is about comes first.
PAIRS = sorted(
    combinations(["full", "momentum", "oracle", "diagonal"], 2), key=lambda pair: pair != ("full", "momentum")
)


def judge(records: Sequence[Record]) -> list[Verdict]:
    """Judge that the four methods differ; that they are in the paper's order; and the latter without α = 0.5."""
    return [
        _different(records),
        _ordered(records, IN_ORDER),
        _ordered(without(records, alpha=LARGEST_ALPHA), f"{IN_ORDER}, {WITHOUT_LARGEST_ALPHA}"),
    ]


def _different(records: Sequence[Record]) -> Verdict:
    selected = select(records, method=PAPER_METHODS)
    table = tabulate(selected)
    findings = [
        differs(evidence, PAPER_P_THRESHOLD) for evidence in compare_pairs(table.final(), PAIRS, table.worst_error())
    ]
    differ = combine_outcomes(finding.outcome for finding in findings) == "holds"
    return make_verdict(3, findings, selected, _note(records), lead=_describe_order(table, differ))


def _ordered(records: Sequence[Record], reading: str) -> Verdict:
    selected = select(records, method=PAPER_METHODS)
    table = tabulate(selected)
    findings = [
        better(evidence, PAPER_P_THRESHOLD)
        for evidence in compare_pairs(table.final(), PAPER_ORDER, table.worst_error())
    ]
    return make_verdict(3, findings, selected, _note(records), reading)


def _note(records: Sequence[Record]) -> str:
    texts = [
        describe_final_errors(records),
        describe_divergences_at_largest(records),
        describe_best_settings(tabulate(records).final()),
    ]
    return " ".join(filter(None, texts))


def _describe_order(table: RunTable, differ: bool) -> str:
    """Describe the order of the methods, and which one is worst."""
    rank = {method: (float(iqm(values)), int(np.isinf(values).sum())) for method, values in table.final().items()}
    *_, worst = ranked = sorted(rank, key=rank.__getitem__)
    difference = "All methods differ." if differ else "Not all methods are found to differ."
    order = "in" if all(rank[a] < rank[b] for a, b in PAPER_ORDER) else "not in"
    diverged = np.isinf(table.final()[worst])
    at_largest = int(diverged[np.array(table.values("alpha")) == LARGEST_ALPHA].sum())
    counts = f" ({diverged.sum()} of {diverged.size} runs diverged, {at_largest} of them at α = {LARGEST_ALPHA})"
    each = ", ".join(f"{label(method)} {format_number(rank[method][0])}" for method in ranked)
    worst_text = f"{label(worst)} is the worst{counts if diverged.any() else ''}."
    return f"{difference} They are {order} the paper's order: {worst_text} From best to worst: {each}."


def describe_divergences_at_largest(records: Sequence[Record]) -> str:
    """Count the diverged runs of each method at the largest learning rate; empty if it is not among the runs."""
    largest = select(records, alpha=LARGEST_ALPHA)
    if not largest:
        return ""
    counts = {label(method): np.isinf(values) for method, values in tabulate(largest).final().items()}
    texts = ", ".join(
        f"{values.sum()} of {values.size} runs of {method}" for method, values in counts.items() if values.any()
    )
    return f"At α = {LARGEST_ALPHA}, {texts} diverged." if texts else f"At α = {LARGEST_ALPHA} no run diverged."


def measured(records: Sequence[Record]) -> list[str]:
    """Say how bounded correction, momentum and the paper's own correction ended."""
    table = tabulate(records)
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
    "α 0.5, 0.1 and 0.05; batches of 4, 16 and 64; 10 seeds; 5,000 steps.",
    runs=REPLAY_GRID.vary(paper={}, quick={"alpha": [0.5, 0.1], "seed": seeds(5), "steps": 1500}),
    panels=overview_panels,
    judge=judge,
    measured=measured,
    cut="Width 16, batches of 16, α 0.5 and 0.1, 5 seeds and 1,500 steps.",
)
