"""How errors depend on a hyper-parameter, and whether methods differ in that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from ..records import Record
from ..statistics import Array, iqm
from .base import Panel, Verdict
from .curves import against_panel, divergence_panels, mean
from .judging import SIGNIFICANT, Part, conclude, decided, interval_of, name, number, probability
from .layout import lay_out
from .trends import along, levels, rank_correlations, ratio


def panels(records: Sequence[Record], field: str) -> list[Panel]:
    return [against_panel(records, field, mean), against_panel(records, field), *divergence_panels(records, field)]


def verdict(claim: int, records: Sequence[Record], field: str, symbol: str) -> Verdict:
    """That methods depend on the field in different ways is taken to hold if the ratio of the errors of μ and μ̂ is
    not the same at all its values: Friedman's test over seeds, p < 0.05. How μ* and μ̂ diag do
    is told beside it."""
    layout = lay_out(records)
    errors = layout.final()
    x = levels(layout, field)

    def change(method: str) -> Part:
        gap = along(layout, ratio(errors["momentum"], errors[method]), field)
        rho, p = rank_correlations(x, gap), _friedman(gap)
        effect, (low, high) = float(rho.mean()), interval_of(mean, rho)
        says = (
            f"the ratio of errors of μ and {name(method)} changes with {symbol}: Friedman {probability(p)}, mean rank "
            f"correlation {number(effect)} [{number(low)}, {number(high)}]"
        )
        return Part(says, decided(p < SIGNIFICANT, rho.shape[1]), effect, (low, high), p)

    described = [_described(method, along(layout, own, field), x.ravel(), symbol) for method, own in errors.items()]
    beside = [change(method).says for method in ("oracle", "diagonal")]
    return conclude(claim, [change("full")], records, f"Beside it: {'; '.join(beside)}. {' '.join(described)}")


def _friedman(gap: Array) -> float:
    """The p of no difference between the levels of ratios ``[levels, settings, seeds]``, each seed being one case."""
    rows = np.log(gap).mean(1)
    return float(stats.friedmanchisquare(*rows).pvalue) if (rows != rows[0]).any() else 1.0


def _described(method: str, errors: Array, values: Array, symbol: str) -> str:
    """Where the method is best, and how far from there it does not matter much."""
    typical = iqm(errors)
    best = int(np.argmin(typical))
    near = values[typical <= 2 * typical[best]]
    ends = f"{number(typical[0])} at {values[0]:g} to {number(typical[-1])} at {values[-1]:g}"
    return (
        f"{name(method)}: {ends}, best {number(typical[best])} at {symbol} = {values[best]:g}, within twice that from "
        f"{near.min():g} to {near.max():g}."
    )
