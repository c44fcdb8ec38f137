"""Deterministic synthetic summaries for tests of plots and reports."""

from __future__ import annotations

import math

import numpy as np

from unstale_lab.analysis.panels import Panel, Series, Table
from unstale_lab.analysis.statistics import Comparison
from unstale_lab.claims.verdict import Effect, Part, Verdict
from unstale_lab.summary import Summary

STEPS = np.linspace(0, 5000, 51)
FLOORS = {"momentum": 0.06, "oracle": 0.034, "full": 0.038, "diagonal": 0.05, "default": 0.036}


def curve(method: str, floor: float, rate: float = 1.0, ends_at: int | None = None, **more) -> Series:
    """Return a noisy error curve that falls to its floor; infinite from point ``ends_at`` on."""
    noise = np.random.default_rng(len(method)).normal(0, 0.03, len(STEPS))
    y = (floor + 0.6 * np.exp(-rate * STEPS / 700)) * np.exp(noise)
    low, high = 0.88 * y, 1.15 * y
    if ends_at is not None:
        y[ends_at:] = low[ends_at:] = math.inf
        high[ends_at - 5 :] = math.inf
    return Series(method, STEPS, y, low, high, method=method, **more)


def comparison(a: str, b: str, ratio: float, **more) -> Comparison:
    own = dict(
        ratio=ratio,
        interval=(0.9 * ratio, 1.1 * ratio),
        p_welch=0.0004,
        p_paired=0.00001,
        p_holm=0.00006,
        improvement=0.91,
        iqm_a=FLOORS[a],
        iqm_b=FLOORS[b],
        pairs=540,
        diverged_a=0,
        diverged_b=0,
    )
    return Comparison(a, b, **own | more)


def part(statement: str, answer: str, a: str, b: str, ratio: float, **more) -> Part:
    """Return a part of a claim that compares two methods."""
    compared = comparison(a, b, ratio, **more)
    effect = Effect(f"{a} / {b}", ratio, compared.interval)
    return Part(statement, answer, f"{ratio}x", "paired p < 0.001 (Holm), Welch p = 0.012", effect, compared)


def summary(name: str, title: str, claims: tuple[int, ...], panels, verdicts, **more) -> Summary:
    own = dict(
        settings="Mountain Car, optimal policy; MLP, 4 layers of 8, 16 and 32; β 0.9 and 0.99; 10 seeds; 5,000 steps",
        scale="paper",
        command=f"unstale-lab reproduce {name} --scale {more.get('scale', 'paper')}",
        runs=2160,
        diverged=72,
        seconds=2531.4,
        machines=("2 cores of a Xeon at 2.7 GHz",),
        versions={"torch": "2.11.0", "numpy": "2.4.6"},
        commit="0123abc",
        date="2026-01-02",
    )
    return Summary(name, title, claims, panels=panels, verdicts=verdicts, **own | more)


def replay() -> Summary:
    """Return two panels of curves; one method diverges in one of them."""
    gentle = [curve(method, floor, 1 + i / 4, runs=180) for i, (method, floor) in enumerate(FLOORS.items())]
    harsh = [
        curve("momentum", 0.11, runs=180),
        curve("oracle", 0.05, 1.2, runs=180),
        curve("full", 0.09, 1.5, ends_at=31, runs=180, diverged=72),
        curve("diagonal", 0.07, 1.7, runs=180),
        curve("default", 0.055, 2, runs=180),
    ]
    verdict = Verdict(
        3,
        "holds in part",
        "μ̂ has 0.63x the error of μ at α ≤ 0.1; at α = 0.5 it diverges in 72 of 180 runs.",
        (
            part("μ̂ differs from μ", "holds", "full", "momentum", 0.63, diverged_a=72),
            part("μ* differs from μ̂", "undecided", "oracle", "full", 0.88, p_holm=0.3, diverged_b=72),
            part("μ̂ diag differs from μ̂", "does not hold", "diagonal", "full", math.inf, iqm_b=math.inf),
        ),
        notes="At α = 0.5, 72 of 180 runs of μ̂ diverged.",
        runs=2160,
        diverged=72,
    )
    panels = (
        Panel("α = 0.1", "steps", "mean squared error", gentle, log_y=True),
        Panel("α = 0.5", "steps", "mean squared error", harsh, log_y=True),
    )
    return summary("fig3", "Mountain Car from replay: all methods", (3,), panels, (verdict,))


def online() -> Summary:
    """Return a claim with two readings."""
    methods = [(method, FLOORS[method]) for method in ("momentum", "oracle", "full", "diagonal")]
    panels = (
        Panel("damped", "steps", "mean squared error", [curve(m, 0.22 + f / 9, 0.4, runs=300) for m, f in methods]),
        Panel("undamped", "steps", "mean squared error", [curve(m, 4 * f, runs=300) for m, f in methods], log_y=True),
    )
    verdicts = (
        Verdict(
            4,
            "does not hold",
            "The methods do not separate within 20,000 steps.",
            (part("μ* has a lower error than μ", "does not hold", "oracle", "momentum", 0.996),),
            runs=1200,
        ),
        Verdict(
            4,
            "holds",
            "μ* has 0.39x the error of μ.",
            (part("μ* has a lower error than μ", "holds", "oracle", "momentum", 0.39),),
            reading="code",
            runs=1200,
            diverged=31,
        ),
    )
    return summary("fig4", "Mountain Car, one transition after another", (4,), panels, verdicts)


def learning_rate() -> Summary:
    """Return few points on logarithmic axes, a dashed line, a line without a method, and special characters."""
    rates = np.array([0.001, 0.005, 0.01, 0.05, 0.1, 0.5])
    bowl = 0.05 + 0.1 * np.log10(rates / 0.1) ** 2
    series = [
        Series("μ, width 16", rates, bowl, 0.9 * bowl, 1.1 * bowl, method="momentum", runs=60, diverged=3),
        Series("μ, width 32", rates, 0.8 * bowl, method="momentum", dashed=True),
        Series("<b>SELU</b> & tanh", rates, np.append(0.6 * bowl[:-1], math.nan)),
    ]
    verdict = Verdict(19, "shown", "Intervals <overlap> & cross | everywhere_here_.", runs=60, diverged=3)
    panel = Panel("all widths", "learning rate α", "mean squared error", series, log_x=True, log_y=True)
    return summary(
        "fig19",
        "Error against the learning rate",
        (19,),
        (panel,),
        (verdict,),
        scale="quick",
        diverged=3,
        cut="Half the seeds.",
    )


def cost() -> Summary:
    """Return a claim without panels."""
    parts = (Part("μ̂ stores 2n + n² elements", "holds", "93,635 for n = 305"),)
    verdict = Verdict(25, "holds", "2n + n² numbers for n = 305, and 3n.", parts, runs=4)
    return summary("claim25", "What the correction costs", (25,), (), (verdict,), runs=4, diverged=0, seconds=0.2)


def study() -> Summary:
    """Return a study that judges no claim: findings and a table, with special characters."""
    table = Table("Final MSE <mean>", ["optimizer", "MSE"], [["Adam", "0.012 [0.01, 0.02]"], ["a | b & <c>", "–"]])
    panel = Panel("stream", "samples", "mean squared error", [curve("momentum", 0.05), curve("full", 0.02)], log_y=True)
    findings = ("The error is lower on 2 of 2 problems & p < 0.001.", "Second_sentence_.")
    return summary("long_memory", "Long memory", (), (panel,), (), findings=findings, tables=(table,))


def summaries() -> list[Summary]:
    """Return all summaries of figures and claims, unordered."""
    return [cost(), learning_rate(), replay(), online()]
