"""Whether training converged, and how much to believe the estimate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .interval import Estimates, Interval
from .training import History, Settings
from .transitions import Transitions

Level = Literal["high", "medium", "low"]
MAX_MOVE = 0.02  # of the estimate over the last three quarters of training, relative to the size of values
# A flat curve is no evidence with fewer updates, or with learning rates of a smaller sum: Adam changes a weight by
# about the learning rate per update, and weights and normalized values have a size of about 1.
MIN_UPDATES, MIN_SUM_OF_RATES = 200, 1.0
MAX_BIAS = 0.02  # of the networks alone, relative to the size of values
FEW_EPISODES, VERY_FEW_EPISODES = 30, 10
LARGE_SHARE = 0.3  # of one episode in the variance
LARGE_TAIL = 0.2  # weight of the values where episodes were cut off
FEW_EFFECTIVE, VERY_FEW_EFFECTIVE = 0.1, 0.01  # effective sample size, relative to the number of transitions
SMALL_OVERLAP, VERY_SMALL_OVERLAP = 0.2, 0.01
LARGE_BIAS = 0.1  # that TD errors allow off-policy, relative to the size of values
POOR_FIT = 0.3  # share of the variance of returns that the values explain


@dataclass(frozen=True)
class Verdict:
    """What to say about an estimate.

    Attributes:
        converged: whether the networks' own estimate has stopped moving, after enough updates to tell.
        evidence: why, or why not, in a few words.
        moved: the range of its means over the last three quarters of training, relative to the size of values; NaN
            after fewer than four readings.
        belief: how much to believe the interval.
        reasons: why not more.
        explained: share of the variance of held-out returns that values explain; NaN if returns are not known.
        bias: mean prediction minus Monte Carlo; NaN if it is not known.
    """

    converged: bool
    evidence: str
    moved: float
    belief: Level
    reasons: list[str]
    explained: float
    bias: float


def judge(
    data: Transitions,
    found: Estimates,
    monte_carlo: Interval,
    history: History,
    settings: Settings,
    gamma: float,
    off_policy: bool,
) -> Verdict:
    """Apply the rules of this module, in order.

    Args:
        monte_carlo: from episodes of the policy, if it was run.
    """
    size = _size_of_values(found)
    moved = _moved(history, size)
    converged, evidence, advice = _convergence(moved, history.steps[-1], settings)
    explained = _explained(found)
    bias = float(np.mean(found.networks)) - monte_carlo.value
    low, medium = [], []
    if data.episodes < VERY_FEW_EPISODES:
        low.append(f"only {data.episodes} episodes: the interval is a guess below {VERY_FEW_EPISODES}")
    elif data.episodes < FEW_EPISODES:
        medium.append(f"only {data.episodes} episodes: the interval is rough below {FEW_EPISODES}")
    if found.largest_share > LARGE_SHARE:
        medium.append(f"one episode makes up {found.largest_share:.0%} of the variance: rare events decide the value")
    elif found.estimate.high - found.estimate.low <= 1e-3 * abs(found.estimate.value) and not off_policy:
        medium.append(
            f"all {data.episodes} episodes are alike: events rarer than {3 / data.episodes:.1%} may be missed"
        )
    tail = float(data.tail_weights(gamma).mean())
    if tail > LARGE_TAIL and not off_policy:
        medium.append(f"{tail:.0%} of the weight lies after the end of the data, where the value is bootstrapped")
    if off_policy:
        share = found.effective_samples / len(data)
        if share < VERY_FEW_EFFECTIVE:
            low.append(f"the effective sample size is {share:.1%} of the transitions: they hardly cover the policy")
        elif share < FEW_EFFECTIVE:
            medium.append(
                f"the effective sample size is {share:.0%} of the transitions: they cover little of the policy"
            )
        if found.bellman_bias > LARGE_BIAS * size:
            low.append(
                f"TD errors of held-out episodes allow a bias of {found.bellman_bias:.3g}: raise --steps or --width or "
                "log more data"
            )
        if found.overlap < SMALL_OVERLAP:
            (low if found.overlap < VERY_SMALL_OVERLAP else medium).append(
                f"the policy takes the logged action with a probability of {found.overlap:.0%} only"
            )
        if monte_carlo.low > found.estimate.high or monte_carlo.high < found.estimate.low:
            low.append(f"Monte Carlo gives {monte_carlo}, which is outside the interval")
        if not converged:
            low.append(f"the networks have not converged ({evidence}): {advice}")
        if not low and math.isnan(monte_carlo.value):
            medium.append("no returns of this policy are known: the interval relies on the networks")
        elif not low:
            medium.append("the interval relies on the networks; that of Monte Carlo does not")
    level: Level = "low" if low else "medium" if medium else "high"
    reasons = low + medium
    if not off_policy and not converged:
        reasons.append(
            f"the networks have not converged ({evidence}); the interval corrects for it, the saved values do not: "
            f"{advice}"
        )
    if not off_policy and abs(bias) > MAX_BIAS * size and float(np.mean(found.networks)) not in monte_carlo:
        reasons.append(
            f"the networks alone are off by {bias:.3g}; the interval corrects for it, the saved values do not"
        )
    if not off_policy and explained < POOR_FIT:
        reasons.append(
            f"the values explain {max(0.0, explained):.0%} of the variance of returns: they are rough, or returns noisy"
        )
    return Verdict(converged, evidence, moved, level, reasons, explained, bias)


def _convergence(moved: float, updates: int, settings: Settings) -> tuple[bool, str, str]:
    """Whether the networks converged, the evidence, and what to do if they did not."""
    more = "raise --steps" if settings.mode == "replay" else "raise --episodes, lower --batch or use --mode replay"
    rates = settings.lr * updates / 2  # annealed to zero
    if updates < MIN_UPDATES:
        return False, f"{updates} updates, fewer than {MIN_UPDATES}", more
    if rates < MIN_SUM_OF_RATES:
        return False, f"learning rates sum to {rates:.2g}, less than {MIN_SUM_OF_RATES:g}", f"raise --lr, or {more}"
    return moved < MAX_MOVE, f"moved by {moved:.1%} in the last three quarters of training", more


def _size_of_values(found: Estimates) -> float:
    spread = float(found.realised.std()) if len(found.realised) > 1 else 0.0
    return max(abs(found.estimate.value), spread, 1e-12)


def _moved(history: History, size: float) -> float:
    """The range of the means of the second, third and last quarter.

    The learning rate is annealed, so that the last quarters alone are flat even if training was too short.
    """
    means = np.array(history.estimates).mean(1)
    quarter = len(means) // 4
    return float(np.ptp(means[-3 * quarter :].reshape(3, quarter).mean(1))) / size if quarter else math.nan


def _explained(found: Estimates) -> float:
    if len(found.realised) < 2:
        return math.nan
    variance = float(found.realised.var())
    error = float(((found.realised - found.predicted) ** 2).mean())
    if variance < 1e-12 * max(1.0, float(np.square(found.realised).mean())):
        return 1.0 if error <= 1e-6 * float(np.square(found.realised).mean()) else 0.0
    return 1 - error / variance
