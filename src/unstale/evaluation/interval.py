"""Values of the start states with confidence intervals.

Networks are cross-fitted: every network is corrected by episodes that it was not trained on. So its errors do not bias
the estimate, whether training converged or not.

**On-policy.** With the return ``G_i`` of episode ``i``, its start state ``s_i``, and a network ``V`` that has not seen
it, the estimate is the mean of::

    y_i = G_i - b (V(s_i) - mean V over many start states)

The bracket has mean zero, so ``E y_i`` is the value of the policy for every ``V`` and ``b``: ``V`` is a control
variate. It narrows the interval as far as start states explain returns. ``b`` in [0, 1] is fitted on other episodes.

**Off-policy.** Returns of the target policy are not known. The estimate is doubly robust, the mean over episodes of::

    ψ_i = Q(s_i, π) + Σ_t w_t (r_t + γ Q(s_{t+1}, π) - Q(s_t, a_t)) / mean length

with ``w`` an estimate of the ratio of discounted state-action visits, linear in the last hidden layer. It is right if
``Q`` or ``w`` is. Both are approximate, so the interval is widened by the variance between the networks, and by a bound
on the bias: the mean held-out TD error of every tenth of the values, all taken with the worst sign (`bellman_bias`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch

from .spaces import Array, Discrete
from .transitions import Transitions
from .values import Samples, Start, ValueNetwork

TAIL_ERROR = 0.1  # relative error that the interval allows for values where episodes were cut off
RIDGE = 1e-3  # of the weights of off-policy samples, relative to the mean of the diagonal
REGIONS = 10  # of values, whose mean TD errors bound the bias off-policy
MAX_CALIBRATION_TAIL = 0.05  # share of a realised return that may be bootstrapped


@dataclass(frozen=True)
class Interval:
    """An estimate with a confidence interval; NaN if it is not known."""

    value: float
    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


UNKNOWN = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True, eq=False)
class Estimates:
    """What the data says about the start states.

    Attributes:
        estimate: the answer.
        monte_carlo: the mean return of the same episodes; unknown off-policy.
        networks: the value that every network predicts, uncorrected.
        variance_ratio: variance of the estimate relative to that of Monte Carlo.
        predicted, realised: values and returns of states in episodes that the network has not seen.
        effective_samples: effective sample size of the data for the target policy; unknown on-policy.
        overlap: mean probability of logged actions under a target policy with discrete actions.
        bellman_bias: bound on the bias that held-out TD errors allow; unknown on-policy, where there is none.
        largest_share: the share of one episode in the variance of the estimate.
    """

    estimate: Interval
    monte_carlo: Interval
    networks: list[float]
    variance_ratio: float
    predicted: Array
    realised: Array
    effective_samples: float
    overlap: float
    bellman_bias: float
    largest_share: float


def folds(data: Transitions, networks: int) -> Array:
    """The network that does not see an episode, ``[episodes]``."""
    return np.arange(data.episodes) % networks


def on_policy(
    data: Transitions,
    samples: Samples,
    networks: Sequence[ValueNetwork],
    starts: Start | None,
    gamma: float,
    level: float,
) -> Estimates:
    """Estimate from episodes of the policy itself.

    Args:
        samples: one-step samples of the data.
        starts: many more start states; None if there are none.
    """
    fold, row_fold = folds(data, len(networks)), folds(data, len(networks))[data.episode]
    values, last_values = np.empty(len(data)), np.empty(data.episodes)
    for k, network in enumerate(networks):
        values[row_fold == k] = samples.values(network).numpy()[row_fold == k]
        last_values[fold == k] = samples.next_values(network).numpy()[data.ends][fold == k]
    returns = data.returns(gamma, last_values)
    first = returns[data.starts]
    tail = TAIL_ERROR * float(np.mean(data.tail_weights(gamma) * np.abs(last_values)))
    monte_carlo = _interval(first, 0.0, tail, level)
    own = [values[data.starts][fold == k] for k in range(len(networks))]
    if starts is None:
        estimate, corrected = monte_carlo, first
        predictions = [float(x.mean()) for x in own]
        ratio = 1.0
    else:
        many = [starts.values(network) for network in networks]
        predictions = [float(x.mean()) for x in many]
        centred = values[data.starts] - np.array(predictions)[fold]
        slopes = np.array([_slope(centred[fold != k], first[fold != k]) for k in range(len(networks))])
        corrected = first - slopes[fold] * centred
        extra = float(np.mean(slopes**2 * [x.var() for x in many])) / len(many[0])
        estimate = _interval(corrected, extra, tail, level)
        plain = float(first.var(ddof=1)) / len(first)
        ratio = (float(corrected.var(ddof=1)) / len(first) + extra) / plain if plain > 0 else 1.0
    known = gamma ** (data.ends[data.episode] - np.arange(len(data)) + 1.0) < MAX_CALIBRATION_TAIL
    known |= data.terminated[data.ends[data.episode]]
    return Estimates(
        estimate,
        monte_carlo,
        predictions,
        ratio,
        values[known],
        returns[known],
        math.nan,
        math.nan,
        math.nan,
        _share(corrected),
    )


def mean_return(data: Transitions, last_values: Array, gamma: float, level: float) -> Interval:
    """The mean return of the episodes, with values where they were cut off: Monte Carlo."""
    tail = TAIL_ERROR * float(np.mean(data.tail_weights(gamma) * np.abs(last_values)))
    return _interval(data.returns(gamma, last_values)[data.starts], 0.0, tail, level)


def off_policy(
    data: Transitions, samples: Samples, networks: Sequence[ValueNetwork], starts: Start, gamma: float, level: float
) -> Estimates:
    """Estimate for another policy than the one that made the data.

    Args:
        starts: the start states of the episodes of ``data``.
    """
    fold, row_fold = folds(data, len(networks)), folds(data, len(networks))[data.episode]
    influence, weights = np.empty(data.episodes), np.empty(len(data))
    values, held_errors = np.empty(len(data)), np.empty(len(data))
    predictions = []
    for k, network in enumerate(networks):
        first = starts.values(network)
        errors = (samples.rewards + samples.discounts * samples.next_values(network) - samples.values(network)).numpy()
        weight = visit_ratios(network, samples, starts, np.flatnonzero(row_fold != k), np.flatnonzero(fold != k))
        held, rows = fold == k, row_fold == k
        weights[rows], held_errors[rows] = weight[rows], errors[rows]
        values[rows] = samples.values(network).numpy()[rows]
        sums = np.bincount(data.episode[rows], (weight * errors)[rows], minlength=data.episodes)[held]
        influence[held] = first[held] + sums / (rows.sum() / held.sum())
        predictions.append(float(first.mean()))
    disagreement = float(np.var(predictions, ddof=1))
    bias = bellman_bias(
        values, held_errors, float(np.clip(weights.mean(), 1.0, 1 / (1 - gamma) if gamma < 1 else None))
    )
    estimate = _interval(influence, disagreement, bias, level)
    positive = np.maximum(weights, 0.0)
    effective = positive.sum() ** 2 / max(float((weights**2).sum()), 1e-300)
    overlap = math.nan
    if samples.weights is not None and isinstance(data.space, Discrete):
        following = ~data.last[:-1]
        chances = samples.weights.numpy()[:-1][following]
        overlap = (
            float(chances[np.arange(len(chances)), data.actions[1:][following]].mean()) if len(chances) else overlap
        )
    empty = np.empty(0)
    return Estimates(
        estimate, UNKNOWN, predictions, math.nan, empty, empty, float(effective), overlap, bias, _share(influence)
    )


def bellman_bias(values: Array, errors: Array, steps: float) -> float:
    """Bound on the error of a value that ``steps`` discounted TD errors add up to.

    Transitions are divided into regions by their predicted value. How often the target policy visits each is not known
    exactly, so the mean errors of all regions count with the same sign.
    """
    regions = np.array_split(np.argsort(values, kind="stable"), REGIONS)
    return steps * float(sum(abs(errors[rows].sum()) for rows in regions)) / len(errors)


def visit_ratios(network: ValueNetwork, samples: Samples, starts: Start, rows: Array, episodes: Array) -> Array:
    """Estimated ratios ``w`` of discounted visits of the target policy to visits in the data, for all transitions.

    ``w = φ · x`` with features ``φ`` of state and action, where ``x`` solves ``mean (φ - discount φ')ᵀ φ x =
    mean φ(start)``, so that ``mean w (f - discount f')`` is ``mean f(start)`` for every ``f`` linear in ``φ``.

    Args:
        rows: transitions to solve for.
        episodes: their start states.
    """
    now = _action_features(network, samples.inputs.unsqueeze(1), _one_hot(samples, network))
    following = _action_features(network, samples.next_inputs, samples.weights)
    first = _action_features(network, starts.inputs, starts.weights)[torch.as_tensor(episodes)].mean(0)
    change = now - samples.discounts.unsqueeze(-1) * following
    chosen = torch.as_tensor(rows)
    matrix = now[chosen].T @ change[chosen] / len(rows)
    ridge = RIDGE * float(now[chosen].square().mean())
    solution = torch.linalg.solve(matrix.T + ridge * torch.eye(len(first), dtype=first.dtype), first)
    return (now @ solution).numpy()  # type: ignore[no-any-return]


def _one_hot(samples: Samples, network: ValueNetwork) -> torch.Tensor | None:
    if samples.chosen is None:
        return None
    return torch.nn.functional.one_hot(samples.chosen, network.head.out_features).float()


def _action_features(network: ValueNetwork, inputs: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Expected features ``[m, p]`` of the last hidden layer and a constant, in a block per discrete action."""
    with torch.no_grad():
        hidden = network.hidden((inputs - network.mean) / network.std).double()
    hidden = torch.cat([hidden, torch.ones_like(hidden[..., :1])], -1).mean(1)
    if weights is None:
        return hidden
    return (weights.double().unsqueeze(-1) * hidden.unsqueeze(1)).flatten(1)


def _interval(values: Array, extra_variance: float, tail: float, level: float) -> Interval:
    """Student's interval of a mean, with a further variance, and a bound on the bias on both sides."""
    mean = float(values.mean())
    if len(values) < 2:
        return Interval(mean, math.nan, math.nan)
    error = math.sqrt(float(values.var(ddof=1)) / len(values) + extra_variance)
    half = student_quantile(0.5 + level / 2, len(values) - 1) * error + tail
    return Interval(mean, mean - half, mean + half)


def student_quantile(p: float, freedom: int) -> float:
    """Quantile of Student's t distribution, to 1 % from 5 degrees of freedom on.

    >>> round(student_quantile(0.975, 9), 2), round(student_quantile(0.975, 99), 3)
    (2.26, 1.984)
    """
    z, n = NormalDist().inv_cdf(p), freedom
    if n < 3:
        return {1: math.tan(math.pi * (p - 0.5)), 2: (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))}[n]
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def _slope(x: Array, y: Array) -> float:
    """The slope of ``y`` on ``x``, in [0, 1]; 0 if ``x`` is constant."""
    deviation = x - x.mean()
    square = float((deviation**2).sum())
    return min(1.0, max(0.0, float((deviation * y).sum()) / square)) if square > 0 else 0.0


def _share(values: Array) -> float:
    squares = (values - values.mean()) ** 2
    return float(squares.max() / squares.sum()) if squares.sum() > 0 else 0.0
