"""How errors depend on a hyper-parameter, and whether methods differ in that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from ..records import Record
from ..statistics import Array, divergence_rate, iqm
from .base import Panel, Verdict
from .curves import against_panel, divergence_panels, mean
from .judging import SIGNIFICANT, Part, conclude, decided, interval_of
from .layout import Layout, lay_out, select
from .trends import FEWEST_LEVELS, along, levels, rank_correlations, ratio
from .words import interval, name, number, p_is


def panels(records: Sequence[Record], field: str) -> list[Panel]:
    return [against_panel(records, field, mean), against_panel(records, field), *divergence_panels(records, field)]


OFTEN = 0.25  # of its runs: a method that diverged more often at some level is not compared there


def verdict(claim: int, records: Sequence[Record], field: str, symbol: str, reading: str = "") -> Verdict:
    """That methods depend on the field in different ways is taken to hold if the ratio of the errors of μ and μ̂ is
    not the same at all its values: Friedman's test over seeds, p < 0.05. Values at which one of them diverged in more
    than a quarter of its runs are left out, or else the test would only find that it diverges somewhere; with fewer
    than three left it is inconclusive. How μ* and μ̂ diag do is told beside it."""
    layout = lay_out(records)
    values = levels(layout, field).ravel()
    errors = {method: along(layout, own, field) for method, own in layout.final().items()}
    beside = [_change(layout, errors, method, values, symbol).says for method in ("oracle", "diagonal")]
    described = [_described(method, own, values, symbol) for method, own in errors.items()]
    return conclude(
        claim,
        [_change(layout, errors, "full", values, symbol)],
        select(records, method=["momentum", "full"]),
        f"Beside it: {'; '.join(beside)}. {' '.join(described)}",
        reading,
    )


def _change(layout: Layout, errors: dict[str, Array], method: str, values: Array, symbol: str) -> Part:
    """Whether the ratio of the errors of μ and the method changes with the field, whose ``values`` are those of the
    errors ``[levels, settings, seeds]``."""
    a, b = errors["momentum"], errors[method]
    kept = np.array([max(divergence_rate(own)[0] for own in level) <= OFTEN for level in zip(a, b, strict=True)])
    what = f"the ratio of errors of μ and {name(method)} changes with {symbol}"
    if kept.sum() < FEWEST_LEVELS:
        few = f"at {kept.sum()} of {len(kept)} values no more than a quarter of the runs of each diverged"
        return Part(f"{what}: not to be told, for only {few}", "inconclusive")
    left_out = ", ".join(f"{value:g}" for value in values[~kept])
    where = f" (without {symbol} = {left_out}, where more than a quarter diverged)" if left_out else ""
    gap = ratio(a[kept], b[kept], layout.worst())
    rho, p = rank_correlations(values[kept, None, None], gap), _friedman(gap)
    effect, ends = float(rho.mean()), interval_of(mean, rho)
    says = f"{what}{where}: Friedman {p_is(p)}, mean rank correlation {number(effect)} {interval(ends)}"
    return Part(says, decided(p < SIGNIFICANT, rho.shape[1]), effect, ends, p)


def _friedman(gap: Array) -> float:
    """The p of no difference between the levels of ratios ``[levels, settings, seeds]``, each seed being one case."""
    rows = iqm(np.log(np.moveaxis(gap, 1, 2))[..., None, :])  # each seed's, over its settings
    return float(stats.friedmanchisquare(*rows).pvalue) if (rows != rows[0]).any() else 1.0


def _described(method: str, errors: Array, values: Array, symbol: str) -> str:
    """Where the method is best, and how far from there it does not matter much."""
    typical = iqm(errors)
    if np.isinf(typical).all():
        return f"{name(method)}: more than a quarter diverged everywhere."
    best = int(np.argmin(typical))
    near = values[typical <= 2 * typical[best]]
    ends = f"{number(typical[0])} at {values[0]:g} to {number(typical[-1])} at {values[-1]:g}"
    return (
        f"{name(method)}: {ends}, best {number(typical[best])} at {symbol} = {values[best]:g}, within twice that from "
        f"{near.min():g} to {near.max():g}."
    )
