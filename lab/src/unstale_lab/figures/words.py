"""Methods, numbers and errors as people read them, the same in notes, drawings and reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..records import Record
from ..statistics import Array, best_setting, iqm
from .base import METHODS
from .layout import Fields, lay_out

NOTHING = "–"


def name(method: str) -> str:
    """A method as the paper writes it, or whatever else is compared.

    >>> name("diagonal"), name("tanh")
    ('μ̂ diag', 'tanh')
    """
    return METHODS.get(method, method)


def number(value: float | None) -> str:
    """Three digits.

    >>> number(-0.38149), number(1234567.0), number(0.00001), number(math.inf), number(None)
    ('−0.381', '1,234,567', '1e−05', '∞', '–')
    """
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        text = "∞" if value > 0 else "-∞"
    else:
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return text.replace("-", "−")


def interval(ends: Sequence[float] | None) -> str:
    """
    >>> interval((-0.5, 0.25))
    '[−0.5, 0.25]'
    """
    return f"[{number(ends[0])}, {number(ends[1])}]" if ends else ""


def percent(ratio: float) -> str:
    """A relative difference, or, from tenfold on, how many times as large.

    >>> percent(-0.372), percent(0.004), percent(99.0)
    ('−37.2 %', '+0.4 %', '100 times')
    """
    return f"{number(1 + ratio)} times" if ratio >= 9 else f"{100 * ratio:+.1f} %".replace("-", "−")


def probability(p: float | None) -> str:
    """
    >>> probability(0.0004), probability(0.0312), probability(None)
    ('< 0.001', '0.031', '–')
    """
    if p is None or math.isnan(p):
        return NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def p_is(p: float) -> str:
    """
    >>> p_is(0.0002), p_is(0.04)
    ('p < 0.001', 'p = 0.040')
    """
    text = probability(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def typical(errors: Mapping[str, Array], what: str = "Interquartile means") -> str:
    """The interquartile mean of each line, and its divergences."""
    each = [f"{name(line)} {number(float(iqm(own)))}{_diverged(own)}" for line, own in errors.items()]
    return f"{what}: {', '.join(each)}."


def _diverged(errors: Array) -> str:
    count = int(np.isinf(errors).sum())
    return f" ({count} of {errors.size} diverged)" if count else ""


def final_errors(records: Sequence[Record], by: Fields = ("method",), what: str = "Interquartile means") -> str:
    """Typical errors at the end, on the evaluation set and on the training distribution."""
    layout = lay_out(records, by)
    return f"{typical(layout.final(), what)} {typical(layout.final('training'), 'On states as in training')}"


def at_best(errors: Mapping[str, Array]) -> str:
    """Each method at its best setting, which other seeds have chosen."""
    chosen = {method: best_setting(own)[1][None, :] for method, own in errors.items()}
    return typical(chosen, "At the best setting, chosen on other seeds")
