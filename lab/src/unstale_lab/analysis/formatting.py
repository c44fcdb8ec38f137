"""Formats methods, numbers and errors as text, the same in verdicts, plots and reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ..methods import METHODS
from ..records import Record
from .run_table import Fields, tabulate
from .statistics import Array, best_setting, iqm

MISSING = "–"


ACTIVATION_LABELS = {"leaky_relu": "Leaky ReLU", "relu": "ReLU", "elu": "ELU", "selu": "SELU"}


def label(line: str) -> str:
    """Return the label of a method or an activation; anything else that is compared is its own label.

    >>> label("diagonal"), label("leaky_relu"), label("tanh")
    ('μ̂ diag', 'Leaky ReLU', 'tanh')
    """
    return METHODS[line].label if line in METHODS else ACTIVATION_LABELS.get(line, line)


def in_words(method: str) -> str:
    """Return the name of a method in words instead of symbols, if it has one.

    >>> in_words("adam_window"), in_words("adam")
    ('Adam with the full correction', 'Adam')
    """
    return METHODS[method].words or METHODS[method].label


def capitalized(text: str) -> str:
    """Return the text with its first letter in upper case, unless that is a symbol such as μ."""
    return text[:1].upper() + text[1:] if text[:1].isascii() else text


def listed(texts: Iterable[str]) -> str:
    """Join the items of a list.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    *others, last = texts
    return f"{', '.join(others)} and {last}" if others else last


def listed_clauses(texts: Iterable[str]) -> str:
    """Join items that may contain "and" themselves.

    >>> listed_clauses(["a"]), listed_clauses(["a", "b"]), listed_clauses(["a", "b", "c"])
    ('a', 'a, and b', 'a, b, and c')
    """
    *others, last = texts
    return f"{', '.join(others)}, and {last}" if others else last


def format_number(value: float | None) -> str:
    """Format with three significant digits.

    >>> format_number(-0.38149), format_number(1234567.0), format_number(0.00001), format_number(math.inf)
    ('−0.381', '1,234,567', '1e−05', '∞')
    >>> format_number(None)
    '–'
    """
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        text = "∞" if value > 0 else "-∞"
    else:
        is_large = 999.5 <= abs(value) < 1e9
        text = f"{value:,.0f}" if is_large else f"{value:.3g}" if value else "0"
    return text.replace("-", "−")


def format_interval(ends: Sequence[float] | None) -> str:
    """Format an interval for a table.

    >>> format_interval((-0.5, 0.25))
    '[−0.5, 0.25]'
    """
    return f"[{format_number(ends[0])}, {format_number(ends[1])}]" if ends else ""


def format_estimate(value: float, ends: Sequence[float]) -> str:
    """Format a number with its interval for a sentence.

    >>> format_estimate(0.1, (-0.5, 0.25))
    '0.1 (95 % CI −0.5 to 0.25)'
    """
    return f"{format_number(value)} (95 % CI {format_number(ends[0])} to {format_number(ends[1])})"


def format_ratio(ratio: float, ends: Sequence[float]) -> str:
    """Format a ratio with its interval for a sentence.

    >>> format_ratio(0.5412, (0.49, 0.601))
    '0.54x (95 % CI 0.49x to 0.60x)'
    """
    value, low, high = map(format_times, (ratio, *ends))
    return f"{value} (95 % CI {low} to {high})"


def format_briefly(value: float, ends: Sequence[float], is_ratio: bool = False) -> str:
    """Format a number with its interval for a table.

    >>> format_briefly(0.5412, (0.49, 0.601), is_ratio=True), format_briefly(-0.2, (-0.5, 0.1))
    ('0.54x [0.49x, 0.60x]', '−0.2 [−0.5, 0.1]')
    """
    number, low, high = map(format_times if is_ratio else format_number, (value, *ends))
    return f"{number} [{low}, {high}]"


def format_times(ratio: float) -> str:
    """Format a ratio with two digits, and with three from 0.985 on, so that ratios close to 1 are told apart.

    >>> [format_times(ratio) for ratio in (0.0191, 0.8274, 0.9967, 0.99989, 1.5, 13.29, 2500.0, math.inf)]
    ['0.019x', '0.83x', '0.997x', '1.00x', '1.50x', '13.3x', '2,500x', '∞x']
    """
    if not 0.001 <= ratio < 999.5:
        return f"{format_number(ratio)}x"
    return f"{ratio:#.{2 if ratio < 0.985 else 3}g}".rstrip(".") + "x"


def format_p(p: float | None) -> str:
    """Format a p-value for a table.

    >>> format_p(0.0004), format_p(0.0312), format_p(None)
    ('< 0.001', '0.031', '–')
    """
    if p is None or math.isnan(p):
        return MISSING
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def format_p_value(p: float) -> str:
    """Format a p-value for a sentence.

    >>> format_p_value(0.0002), format_p_value(0.04)
    ('p < 0.001', 'p = 0.040')
    """
    text = format_p(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def format_duration(seconds: float) -> str:
    """Format a duration.

    >>> format_duration(0.5), format_duration(61), format_duration(3 * 3600 + 120), format_duration(3570.4)
    ('less than a second', '1 min 1 s', '3 h 2 min', '59 min 30 s')
    """
    whole = round(seconds)
    minutes, hours = whole // 60, whole // 3600
    if whole < 1:
        return "less than a second"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def describe_iqm(errors: Mapping[str, Array], title: str = "Final errors (IQM)") -> str:
    """List the interquartile mean of each line, and its diverged runs."""
    each = [f"{label(line)} {format_number(float(iqm(values)))}{_diverged(values)}" for line, values in errors.items()]
    return f"{title}: {', '.join(each)}."


def _diverged(errors: Array) -> str:
    count = int(np.isinf(errors).sum())
    return f" ({count} of {errors.size} diverged)" if count else ""


def describe_final_errors(
    records: Sequence[Record], by: Fields = ("method",), title: str = "Final errors (IQM)"
) -> str:
    """List final errors on the evaluation set and on the training distribution."""
    table = tabulate(records, by)
    on_training = describe_iqm(table.final("training"), "On the training distribution")
    return f"{describe_iqm(table.final(), title)} {on_training}"


def describe_best_settings(errors: Mapping[str, Array]) -> str:
    """List the errors of each method at its best setting, which other seeds select."""
    chosen = {method: best_setting(values)[1][None, :] for method, values in errors.items()}
    return describe_iqm(chosen, "Best setting, selected on other seeds")
