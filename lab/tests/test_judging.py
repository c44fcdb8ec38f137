"""The rules by which claims are judged, on made-up data where the right answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from unstale_lab.analysis.statistics import Comparison, holm
from unstale_lab.claims import judging
from unstale_lab.claims.judging import (
    Contrast,
    Instability,
    at_reduced_scale,
    better,
    combine_answers,
    compare_pairs,
    differs,
    equivalent,
    explain,
    holm_corrected,
    make_verdict,
    no_better,
    undecided,
    within,
)
from unstale_lab.claims.verdict import Part, Verdict

inf = math.inf


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(judging, "RESAMPLES", 200)


def contrast(ratio=0.7, holm=0.001, width=1.03, welch=0.5, seeds=10, a_diverges=False, b_diverges=False) -> Contrast:
    interval = (ratio / width, ratio * width)
    comparison = Comparison("full", "momentum", ratio, interval, welch, holm, holm, 0.9, 0.04, 0.06, 60, 0, 0)
    unstable = [line for line, is_so in (("full", a_diverges), ("momentum", b_diverges)) if is_so]
    instabilities = tuple(Instability(line, "α = 0.5", 25, 0, 30) for line in unstable)
    return Contrast("full", "momentum", comparison, seeds, "α ≤ 0.1" if unstable else "", instabilities)


def unstable(*lines: str) -> Contrast:
    """Return a contrast without a learning rate at which both are stable."""
    return Contrast("full", "momentum", None, 10, "", tuple(Instability(line, "every α", 60, 0, 60) for line in lines))


@pytest.mark.parametrize(
    "rule, case, answer",
    [
        (differs, contrast(), "holds"),
        (differs, contrast(ratio=1.3), "holds"),
        (differs, contrast(welch=1.0), "holds"),  # Welch's test decides nothing
        (differs, contrast(holm=0.2), "undecided"),
        (differs, contrast(ratio=1.02, holm=0.2), "does not hold"),
        (differs, contrast(ratio=1.02, holm=0.2, a_diverges=True), "holds in part"),
        (differs, contrast(seeds=4), "undecided"),
        (differs, unstable("full"), "holds"),
        (better, contrast(), "holds"),
        (better, contrast(ratio=1.3), "does not hold"),
        (better, contrast(holm=0.2), "undecided"),
        (better, contrast(ratio=1.02, holm=0.2), "does not hold"),  # a tie
        (better, contrast(ratio=0.97, holm=0.001), "holds"),  # small, but there
        (better, contrast(a_diverges=True), "holds in part"),
        (better, contrast(b_diverges=True), "holds"),
        (better, contrast(ratio=1.3, a_diverges=True), "does not hold"),
        (better, unstable("full"), "does not hold"),
        (better, unstable("momentum"), "holds"),
        (better, unstable("full", "momentum"), "does not hold"),
        (lambda c: better(c, max_ratio=0.5), contrast(), "does not hold"),
        (lambda c: better(c, max_ratio=0.5), contrast(ratio=0.52, width=1.1), "undecided"),
        (lambda c: better(c, max_ratio=0.5), contrast(ratio=0.4), "holds"),
        (equivalent, contrast(ratio=1.01, holm=0.5), "holds"),
        (equivalent, contrast(ratio=1.06, holm=0.0001), "holds"),  # a small difference may be significant
        (equivalent, contrast(ratio=0.7), "does not hold"),
        (equivalent, contrast(ratio=1.4), "does not hold"),
        (equivalent, contrast(ratio=1.01, width=1.5), "undecided"),
        (equivalent, contrast(ratio=1.01, a_diverges=True), "holds in part"),
        (equivalent, contrast(ratio=1.01, b_diverges=True), "holds in part"),
        (equivalent, unstable("full"), "does not hold"),
        (lambda c: equivalent(c, margin=1.5), contrast(ratio=0.75), "holds"),
        (no_better, contrast(), "does not hold"),
        (no_better, contrast(ratio=1.3), "holds"),
        (no_better, contrast(ratio=0.95), "holds"),
        (no_better, contrast(ratio=0.87, width=1.1), "undecided"),
        (no_better, unstable("full"), "holds"),
        (no_better, unstable("momentum"), "does not hold"),
    ],
)
def test_rules(rule, case, answer):
    assert rule(case).answer == answer


def test_part_states_effect_divergences_and_tests():
    part = better(contrast(a_diverges=True))
    assert part.statement == "μ̂ has a lower error than μ"
    assert part.found == (
        "0.7x (95 % CI 0.68x to 0.721x) at α ≤ 0.1; μ̂ diverges in 25 of 30 runs at α = 0.5, the other in 0"
    )
    assert part.brief == "0.7x at α ≤ 0.1; μ̂ diverges at α = 0.5"
    assert part.test == "paired p = 0.001 (Holm), Welch p = 0.50"
    assert part.effect.is_ratio and (part.effect.quantity, part.effect.value) == ("μ̂ / μ", 0.7)
    assert unstable("full").comparison is None and better(unstable("full")).effect is None


# Contrasts.


def runs(ratio: float, seeds: int = 10, levels: int = 3) -> dict[str, np.ndarray]:
    """Return paired errors of two settings per level, with noise that both methods share."""
    rng = np.random.default_rng(0)
    shared = np.exp(rng.normal(size=(2 * levels, seeds)))
    own = np.exp(0.02 * rng.normal(size=shared.shape))
    return {"full": ratio * shared * own, "momentum": shared}


LEVELS = [0.05, 0.05, 0.1, 0.1, 0.5, 0.5]


def test_stable_methods_are_compared_at_every_learning_rate():
    [found] = compare_pairs(runs(0.6), [("full", "momentum")], 10.0, LEVELS)
    assert found.comparison.pairs == 60 and found.ratio == pytest.approx(0.6, abs=0.02)
    assert (found.where, found.instabilities) == ("", ())
    assert better(found).answer == "holds"


def test_learning_rates_with_divergences_are_judged_apart():
    errors = runs(0.6)
    errors["full"][4:, :7] = inf
    [found] = compare_pairs(errors, [("full", "momentum")], 10.0, LEVELS)
    assert found.where == "α ≤ 0.1" and found.comparison.pairs == 40
    assert found.ratio == pytest.approx(0.6, abs=0.02)
    assert found.instabilities == (Instability("full", "α = 0.5", 14, 0, 20),)
    assert better(found).answer == "holds in part"


def test_the_other_method_may_diverge():
    errors = runs(0.6)
    errors["momentum"][:2] = inf
    [found] = compare_pairs(errors, [("full", "momentum")], 10.0, LEVELS)
    assert found.instabilities == (Instability("momentum", "α = 0.05", 20, 0, 20),)
    assert better(found).answer == "holds" and found.where == "α ≥ 0.1"


def test_few_divergences_count_as_the_worst_error():
    errors = runs(0.6)
    errors["full"][0, 0] = inf  # 1 of 20
    [found] = compare_pairs(errors, [("full", "momentum")], 10.0, LEVELS)
    assert found.instabilities == () and found.comparison.diverged_a == 1


def test_methods_that_diverge_equally_often_are_compared():
    errors = {line: values.copy() for line, values in runs(0.6).items()}
    for values in errors.values():
        values[4:] = inf
    [found] = compare_pairs(errors, [("full", "momentum")], 10.0, LEVELS)
    assert found.instabilities == () and found.comparison.pairs == 60


def test_divergence_at_every_learning_rate_leaves_nothing_to_compare():
    errors = runs(0.6)
    errors["full"][:] = inf
    [found] = compare_pairs(errors, [("full", "momentum")], 10.0, LEVELS)
    assert found.comparison is None and found.instabilities[0].where == "every α"
    assert better(found).answer == "does not hold"
    assert better(found).found == "μ̂ diverges in 60 of 60 runs at every α, the other in 0"


def test_without_levels_all_settings_are_one():
    errors = runs(0.6)
    errors["full"][:, :4] = inf
    [found] = compare_pairs(errors, [("full", "momentum")], 10.0)
    assert found.comparison is None and found.instabilities[0].where == ""


def test_ties_are_equivalent_and_not_better():
    errors = runs(1.0)
    errors["full"] = errors["momentum"].copy()
    [found] = compare_pairs(errors, [("full", "momentum")], 10.0, LEVELS)
    assert (found.ratio, found.comparison.p_holm) == (1, 1)
    assert (equivalent(found).answer, better(found).answer, differs(found).answer) == (
        "holds",
        "does not hold",
        "does not hold",
    )


def test_holm_covers_all_tests_of_a_verdict():
    a, b = np.random.default_rng(0).exponential(size=(2, 1, 20))
    errors = {"a": a, "b": b, "c": 0.9 * a}
    [first], [second] = (compare_pairs(errors, [pair], inf) for pair in (("a", "b"), ("c", "b")))
    both, [other] = holm_corrected([first, unstable("full"), second], 0.02)
    expected = holm([first.comparison.p_paired, second.comparison.p_paired, 0.02])
    assert [both[0].comparison.p_holm, both[2].comparison.p_holm, other] == expected
    assert both[1].comparison is None


# Claims of several parts.


@pytest.mark.parametrize(
    "answers, combined",
    [
        (["holds", "holds"], "holds"),
        (["holds"] * 7 + ["does not hold"], "holds in part"),
        (["holds", "undecided"], "holds in part"),
        (["holds in part"], "holds in part"),
        (["does not hold", "does not hold"], "does not hold"),
        (["does not hold", "undecided"], "does not hold"),
        (["undecided", "undecided"], "undecided"),
        (["shown"], "shown"),
        (["shown", "holds"], "holds"),
        ([], "shown"),
    ],
)
def test_answer_of_several_parts(answers, combined):
    assert combine_answers(answers) == combined


def part(statement: str, answer: str) -> Part:
    return Part(statement, answer, f"{statement} was measured")


def test_verdict_says_which_parts_hold():
    parts = [part("first", "holds"), part("second", "does not hold"), part("third", "undecided")]
    verdict = make_verdict(3, parts, [], "And more.")
    assert (verdict.answer, verdict.notes) == ("holds in part", "And more.")
    assert verdict.why == (
        "Holds: first. Not found: second (second was measured). Undecided: third (third was measured)."
    )


def test_explanation_of_one_answer():
    assert explain([part("it is so", "holds")]) == "Holds: it is so (it is so was measured)."
    many = explain([part(x, "holds") for x in "abcde"] + [part("f", "undecided")])
    assert many == "Holds: a; b; 3 more. Undecided: f (f was measured)."
    assert explain([Part("a", "does not hold", "1.03x (95 % CI 1x to 1.1x)", brief="1.03x")]) == "Not found: a (1.03x)."


def test_a_reduced_scale_refutes_nothing_and_confirms_in_part():
    refuted = at_reduced_scale(make_verdict(3, [part("a", "does not hold")], []))
    assert (refuted.answer, refuted.parts[0].answer) == ("undecided", "undecided")
    confirmed = at_reduced_scale(make_verdict(3, [part("a", "holds")], []))
    assert confirmed.answer == "holds in part" and confirmed.why.startswith("At a reduced scale: ")
    mixed = at_reduced_scale(make_verdict(3, [part("a", "holds"), part("b", "does not hold")], []))
    assert mixed.answer == "holds in part" and "Undecided: b" in mixed.why and "Not found" not in mixed.why
    shown = Verdict(15, "shown", "Shown.")
    assert at_reduced_scale(shown) == shown


def test_undecided_names_the_reason():
    found = undecided(part("a", "holds"), "too few steps")
    assert (found.answer, found.found) == ("undecided", "a was measured (too few steps)")
    assert found.brief == "a was measured; too few steps"


@pytest.mark.parametrize(
    "low, high, seeds, answer",
    [(0.5, 2, 10, "holds"), (2, 3, 10, "does not hold"), (1.0, 2, 10, "undecided"), (0.5, 2, 4, "undecided")],
)
def test_within_bounds(low, high, seeds, answer):
    values = 1 + 0.1 * np.random.default_rng(0).normal(size=(1, seeds))
    assert within("the cosine", values, low, high, "it is about 1").answer == answer
