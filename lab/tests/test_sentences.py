"""Clauses of sentences that say what was measured, on made-up comparisons."""

from __future__ import annotations

import math

import pytest

from unstale_lab.analysis.statistics import Comparison
from unstale_lab.claims.contrast import Contrast, Exceptions, Instability
from unstale_lab.claims.sentences import (
    describe_divergences,
    describe_errors,
    describe_ratio,
    describe_ratios,
    describe_spread,
    relative_to,
)


def contrast(a: str, ratio: float | None, b: str = "momentum", settings: int = 0, **diverging: str) -> Contrast:
    """Return a comparison; ``diverging`` names the learning rates at which methods diverge."""
    comparison = None
    if ratio is not None:
        comparison = Comparison(a, b, ratio, (ratio, ratio), 0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 60, 0, 0)
    instabilities = tuple(Instability(line, where, 5, 10, (0.5,)) for line, where in diverging.items())
    direction = 0.0 if ratio is None else math.log(ratio)
    where = "α ≤ 0.1" if diverging and ratio is not None else ""
    return Contrast(a, b, comparison, direction, 10, where, instabilities, Exceptions(higher=settings, of=8))


def test_errors_without_divergences():
    assert describe_errors([contrast("full", 0.827)]) == "μ̂ has 0.83x the error of μ"
    assert describe_errors([contrast("oracle", 0.978), contrast("full", 0.997)]) == (
        "μ* has 0.98x the error of μ, and μ̂ 0.997x"
    )
    three = [contrast("full", 1.0), contrast("oracle", 0.49), contrast("diagonal", 0.7)]
    assert describe_errors(three) == "μ̂ has 1.00x the error of μ, μ* 0.49x, and μ̂ diag 0.70x"


def test_errors_with_divergences():
    full = contrast("full", 0.827, full="α = 0.5")
    assert describe_errors([full]) == "μ̂ has 0.83x the error of μ at α ≤ 0.1 and diverges at α = 0.5"
    assert describe_errors([full, contrast("oracle", 0.49)]) == (
        "μ̂ has 0.83x the error of μ at α ≤ 0.1 and diverges at α = 0.5; over all learning rates, μ* has 0.49x"
    )
    assert describe_errors([full, contrast("oracle", 0.49), contrast("diagonal", 0.7)]).endswith(
        "diverges at α = 0.5; over all learning rates, μ* has 0.49x, and μ̂ diag 0.70x"
    )
    reference = contrast("full", 0.967, momentum="α = 0.5")
    assert describe_errors([reference]) == "μ̂ has 0.97x the error of μ at α ≤ 0.1; μ diverges at α = 0.5"


def test_methods_that_always_diverge_come_last():
    nothing, everything = contrast("full", None, full="every α"), contrast("oracle", 0.49)
    assert describe_errors([nothing]) == "μ̂ diverges at every α"
    assert describe_errors([nothing, everything]) == "μ* has 0.49x the error of μ; μ̂ diverges at every α"
    assert describe_ratio("it has {} the error", nothing) == "μ̂ diverges at every α"
    assert describe_ratios("values drift {} as far", {"μ̂": nothing, "μ*": everything}) == (
        "values drift 0.49x (μ*) as far; μ̂ diverges at every α"
    )


def test_divergences_at_the_same_learning_rates_are_grouped():
    some = [
        Instability(line, where, 1, 1, levels)
        for line, where, levels in (
            ("full", "α = 0.5", (0.5,)),
            ("full", "α ≥ 0.1", (0.1, 0.5)),
            ("diagonal", "α ≥ 0.1", (0.1, 0.5)),
            ("oracle", "", (0.0,)),
        )
    ]
    assert describe_divergences(some) == "μ̂ and μ̂ diag diverge at α ≥ 0.1, μ* diverges"
    assert describe_divergences(some[:3:2]) == "μ̂ diverges at α = 0.5, μ̂ diag at α ≥ 0.1"


def test_ratio_is_filled_in():
    assert describe_ratio("it has {} the error", contrast("full", 2.0)) == "it has 2.00x the error"
    assert describe_ratios("{} of it", {"a": contrast("full", 2.0), "b": contrast("full", 0.1)}) == (
        "2.00x (a) and 0.10x (b) of it"
    )


def test_ratios_say_at_which_learning_rates_they_are():
    restricted = contrast("full", 2.0, full="α = 0.5")
    assert describe_ratios("{} of it", {"a": restricted, "b": contrast("oracle", 0.1)}) == (
        "2.00x (a at α ≤ 0.1) and 0.10x (b) of it; μ̂ diverges at α = 0.5"
    )


@pytest.mark.parametrize(
    ("settings", "more"),
    [(0, ""), (2, "; in up to 2 of 8 settings a method diverges or has more than 1.5x the error of another")],
)
def test_spread_is_the_largest_ratio_in_either_direction(settings, more):
    contrasts = [contrast("full", 0.8), contrast("oracle", 1.1, settings=settings)]
    assert describe_spread(contrasts) == f"the typical errors of any two methods are within 1.25x of each other{more}"


def test_spread_is_where_neither_method_diverges():
    spread = describe_spread([contrast("full", 1.25, full="α = 0.5"), contrast("oracle", 1.1)])
    assert spread.startswith("where neither diverges, the typical errors") and "μ̂ diverges at α = 0.5" in spread


def test_bound_of_the_spread_is_rounded_up():
    assert describe_spread([contrast("full", 1.031)]).endswith("within 1.04x of each other")


def test_reference_is_the_second_of_each_pair():
    pairs = [contrast("full", 0.5), contrast("momentum", 4.0, "oracle"), contrast("full", 0.9, "oracle")]
    found = relative_to("momentum", pairs)
    assert [(c.a, c.b, c.ratio) for c in found] == [("full", "momentum", 0.5), ("oracle", "momentum", 0.25)]
