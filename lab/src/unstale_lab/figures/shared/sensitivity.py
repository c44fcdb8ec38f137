"""Sensitivity of errors to a hyper-parameter, and whether methods differ in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from ...analysis.curves import divergence_panels, mean, sensitivity_panel
from ...analysis.formatting import format_estimate, format_number, format_p_value, label
from ...analysis.panels import Panel
from ...analysis.run_table import RunTable, select, tabulate
from ...analysis.statistics import Array, divergence_rate, iqm
from ...analysis.trends import MIN_LEVELS, by_level, levels, rank_correlations, ratio
from ...claims.judging import SIGNIFICANCE_LEVEL, Finding, confidence_interval, decide, make_verdict
from ...claims.verdict import Verdict
from ...records import Record

MAX_DIVERGENCE_RATE = 0.25  # values of the field at which a method diverges more often are left out of the test


def sensitivity_panels(records: Sequence[Record], field: str) -> list[Panel]:
    """Return errors and divergence rates over the field."""
    return [
        sensitivity_panel(records, field, mean),
        sensitivity_panel(records, field),
        *divergence_panels(records, field),
    ]


def judge_sensitivity(claim: int, records: Sequence[Record], field: str, symbol: str, reading: str = "") -> Verdict:
    """Judge whether methods depend on the field in different ways.

    This holds if the ratio of the errors of μ and μ̂ differs between the values of the field: Friedman's test over
    seeds, p < 0.05. Values at which one of them diverged in more than a quarter of its runs are left out, because the
    test would only find that it diverges there. With fewer than three values left it is inconclusive. The note has the
    same for μ* and μ̂ diag.

    Args:
        claim: number of the claim.
        records: runs of all methods.
        field: name of the hyper-parameter in ``Run``.
        symbol: its symbol in texts.
        reading: which reading of the claim this is.
    """
    table = tabulate(records)
    values = levels(table, field).ravel()
    errors = {method: by_level(table, final, field) for method, final in table.final().items()}
    others = [_ratio_change(table, errors, method, values, symbol).text for method in ("oracle", "diagonal")]
    described = [_describe_range(method, by_value, values, symbol) for method, by_value in errors.items()]
    return make_verdict(
        claim,
        [_ratio_change(table, errors, "full", values, symbol)],
        select(records, method=["momentum", "full"]),
        f"For comparison: {' '.join(others)} {' '.join(described)}",
        reading,
    )


def _ratio_change(table: RunTable, errors: dict[str, Array], method: str, values: Array, symbol: str) -> Finding:
    """Judge whether the ratio of the errors of μ and the method changes with the field.

    Args:
        table: the runs.
        errors: ``[levels, settings, seeds]`` per method.
        method: compared with μ.
        values: of the field, one per level.
        symbol: of the field.
    """
    a, b = errors["momentum"], errors[method]
    kept = np.array(
        [max(divergence_rate(runs)[0] for runs in level) <= MAX_DIVERGENCE_RATE for level in zip(a, b, strict=True)]
    )
    quantity = f"Error ratio of μ to {label(method)} over {symbol}"
    statement = f"the ratio changes with {symbol}"
    if kept.sum() < MIN_LEVELS:
        few = f"only {kept.sum()} of {len(kept)} values have at most a quarter of diverged runs for both methods"
        return Finding(f"{quantity}: not tested, because {few}", statement, "inconclusive")
    left_out = ", ".join(f"{value:g}" for value in values[~kept])
    excluded = f" (without {symbol} = {left_out}, where more than a quarter of the runs diverged)" if left_out else ""
    gap = ratio(a[kept], b[kept], table.worst_error())
    rho, p = rank_correlations(values[kept, None, None], gap), _friedman(gap)
    effect, ends = float(rho.mean()), confidence_interval(mean, rho)
    correlation = f"mean rank correlation {format_estimate(effect, ends)}"
    measured = f"{quantity}{excluded}: {correlation}, Friedman {format_p_value(p)}"
    return Finding(measured, statement, decide(p < SIGNIFICANCE_LEVEL, rho.shape[1]), effect, ends, p)


def _friedman(gap: Array) -> float:
    """Return the p-value of Friedman's test that ratios ``[levels, settings, seeds]`` do not differ between levels."""
    rows = iqm(np.log(np.moveaxis(gap, 1, 2))[..., None, :])  # per seed, over its settings
    return float(stats.friedmanchisquare(*rows).pvalue) if (rows != rows[0]).any() else 1.0


def _describe_range(method: str, errors: Array, values: Array, symbol: str) -> str:
    """Describe the best value of the field, and the range within twice its error."""
    typical = iqm(errors)
    if np.isinf(typical).all():
        return f"{label(method)}: more than a quarter of the runs diverged at every value."
    best = int(np.argmin(typical))
    near = values[typical <= 2 * typical[best]]
    ends = f"{format_number(typical[0])} at {values[0]:g} to {format_number(typical[-1])} at {values[-1]:g}"
    return (
        f"{label(method)}: {ends}; best {format_number(typical[best])} at {symbol} = {values[best]:g}; within twice "
        f"that error from {near.min():g} to {near.max():g}."
    )
