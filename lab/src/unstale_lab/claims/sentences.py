"""Clauses of the sentence that says what was measured for a claim. They are neutral: true whatever the answer is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..analysis.formatting import capitalized, format_times, label, listed, listed_clauses
from .contrast import MUCH, Contrast, Instability, at

Name = Callable[[str], str]


def two_decimals(value: float) -> str:
    """Format a correlation or a cosine.

    >>> two_decimals(-0.8651), two_decimals(1.0)
    ('−0.87', '1.00')
    """
    return f"{value:.2f}".replace("-", "−")


def joined(*clauses: str) -> str:
    """Join those of the clauses that are not empty."""
    return "; ".join(filter(None, clauses))


def sentence(*clauses: str) -> str:
    """Return a sentence of those of the clauses that are not empty.

    >>> sentence("it has 2.00x the error", "", "it diverges")
    'It has 2.00x the error; it diverges.'
    """
    return f"{capitalized(joined(*clauses))}."


def after_steps(steps: int, of: int) -> str:
    """Say how long runs are, and how long they are in the paper.

    >>> after_steps(100_000, 500_000), after_steps(500_000, 500_000)
    ('after 100,000 of 500,000 steps', 'after 500,000 steps')
    """
    return f"after {steps:,} steps" if steps == of else f"after {steps:,} of {of:,} steps"


def relative_to(reference: str, contrasts: Iterable[Contrast]) -> list[Contrast]:
    """Return the comparisons of other methods with a reference, the reference being ``b``."""
    return [c if c.b == reference else c.inverted() for c in contrasts if reference in (c.a, c.b)]


def describe_errors(contrasts: Sequence[Contrast], name: Name = label) -> str:
    """Say how large the errors of several methods are, relative to the same ``b``, and where methods diverge.

    “μ̂ has 0.83x the error of μ at α ≤ 0.1 and diverges at α = 0.5; over all learning rates, μ* has 0.49x”, or, if
    nothing diverges, “μ* has 0.98x the error of μ, and μ̂ 0.997x”.
    """
    compared = [contrast for contrast in contrasts if contrast.comparison is not None]
    restricted, unrestricted = ([c for c in compared if bool(c.where) is found] for found in (True, False))
    texts: list[str] = []
    described: set[Instability] = set()
    for contrast in restricted:
        of = "" if texts else f" the error of {name(contrast.b)}"
        text = f"{name(contrast.a)} has {format_times(contrast.ratio)}{of}{at(contrast.where)}"
        for each in contrast.instabilities:
            if each.line == contrast.a:
                text += f" and diverges{at(each.where)}"
                described.add(each)
        texts.append(text)
    if unrestricted:
        first, *others = unrestricted
        of = "" if texts else f" the error of {name(first.b)}"
        clauses = [f"{name(first.a)} has {format_times(first.ratio)}{of}"]
        clauses += [f"{name(each.a)} {format_times(each.ratio)}" for each in others]
        texts.append(f"{'over all learning rates, ' if restricted else ''}{listed_clauses(clauses)}")
    rest = (each for contrast in contrasts for each in contrast.instabilities if each not in described)
    return joined(*texts, describe_divergences(rest, name))


def describe_ratio(text: str, contrast: Contrast, name: Name = label) -> str:
    """Fill a ratio into a text with one pair of braces, and say what diverges."""
    filled = [] if contrast.comparison is None else [text.format(format_times(contrast.ratio)) + at(contrast.where)]
    return joined(*filled, describe_divergences(contrast.instabilities, name))


def describe_ratios(text: str, contrasts: Mapping[str, Contrast], name: Name = label) -> str:
    """Fill the ratios of several comparisons into a text with one pair of braces, and say what diverges.

    “values drift 0.019x (μ) and 0.16x (μ* at α ≤ 0.1) as far as with MLPs; μ̂ with RBF features diverges”
    """
    ratios = [
        f"{format_times(c.ratio)} ({key}{at(c.where)})" for key, c in contrasts.items() if c.comparison is not None
    ]
    diverging = describe_divergences((each for c in contrasts.values() for each in c.instabilities), name)
    return joined(text.format(listed(ratios)) if ratios else "", diverging)


def describe_spread(contrasts: Sequence[Contrast]) -> str:
    """Say how much methods differ that are all compared with one another, and in how many settings much more.

    The bound is rounded up.
    """
    ratios = [max(c.ratio, 1 / c.ratio) for c in contrasts if c.comparison is not None]
    texts = []
    if ratios:
        bound = math.ceil(100 * max(ratios)) / 100
        where = "where neither diverges, " if any(c.instabilities for c in contrasts) else ""
        texts.append(f"{where}the typical errors of any two methods are within {bound:.2f}x of each other")
    most = max((c.exceptions for c in contrasts), key=lambda found: found.lower + found.higher)
    if exceptions := most.lower + most.higher:
        texts.append(
            f"in up to {exceptions} of {most.of} settings a method diverges or has more than {MUCH:g}x the error of "
            "another"
        )
    return joined(*texts, describe_divergences(each for c in contrasts for each in c.instabilities))


def describe_divergences(instabilities: Iterable[Instability], name: Name = label) -> str:
    """Say at which learning rates methods diverge: “μ̂ and μ̂ diag diverge at α = 0.5, μ at α ≥ 0.1”."""
    widest: dict[str, Instability] = {}
    for each in instabilities:
        if each.line not in widest or len(each.levels) > len(widest[each.line].levels):
            widest[each.line] = each
    names: dict[str, list[str]] = {}
    for line, each in widest.items():
        names.setdefault(each.where, []).append(name(line))
    texts: list[str] = []
    for where, group in names.items():
        verb = "" if texts and where else " diverges" if len(group) == 1 else " diverge"
        texts.append(f"{listed(group)}{verb}{at(where)}")
    return ", ".join(texts)


def without_divergences(contrast: Contrast, line: str) -> Contrast:
    """Return the comparison without what diverges of one of the two, to be described elsewhere."""
    return replace(contrast, instabilities=tuple(each for each in contrast.instabilities if each.line != line))
