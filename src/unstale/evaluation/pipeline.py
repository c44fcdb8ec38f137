"""Evaluates a policy: runs or reads episodes, trains value networks, estimates, judges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import files, interval
from .belief import judge
from .environment import Environment, Progress
from .errors import EvaluationError
from .interval import UNKNOWN, Estimates, Interval
from .policies import Policy, load_policy
from .result import Evaluation
from .spaces import Array, Discrete, features
from .training import History, Settings, make_networks, train
from .transitions import Transitions
from .values import (
    Samples,
    Start,
    ValueNetwork,
    action_samples,
    fit_scales,
    start_actions,
    start_states,
    state_samples,
)

START_STATES = 1000  # further ones, of resets alone
PICTURED_STATES = 2000


def run(
    source: Any,
    policy: Any,
    *,
    env: Any,
    gamma: float,
    episodes: int,
    level: float,
    stochastic: bool,
    trust_pickle: bool,
    time_limit: int | None,
    max_episode_steps: int,
    settings: Settings,
    progress: Progress | None,
) -> Evaluation:
    """See :func:`unstale.evaluate`."""
    _check(gamma, episodes, level, time_limit, max_episode_steps, settings)
    notify = progress or _silent
    is_data = files.is_data(source)
    if env is not None and not is_data:
        raise EvaluationError(f"--env is for logged transitions, but {_name(source)} is an environment; leave it out.")
    place = env if is_data else source
    environment = None if place is None else Environment(place, gamma, time_limit, max_episode_steps)
    try:
        actor = None if policy == "logged" else load_policy(policy, stochastic, trust_pickle, settings.seed)
        if is_data:
            found = _logged(source, actor, environment, gamma, episodes, level, settings, notify)
        elif environment is None or actor is None:
            raise EvaluationError(
                "the policy 'logged' needs logged transitions; give a data file instead of an environment."
            )
        else:
            found = _live(environment, actor, gamma, episodes, level, settings, notify)
    finally:
        if environment is not None:
            environment.close()
    data, networks, history, estimates, monte_carlo = found
    off_policy = is_data and actor is not None
    return Evaluation(
        source=_name(source),
        policy=policy if isinstance(policy, str) else getattr(actor, "name", "policy"),
        kind="Q" if off_policy else "V",
        gamma=gamma,
        level=level,
        episodes=data.episodes,
        transitions=len(data),
        settings=settings,
        estimates=estimates,
        monte_carlo=monte_carlo,
        verdict=judge(data, estimates, monte_carlo, history, settings, gamma, off_policy),
        history=history,
        networks=networks,
        states=_pictured_states(data),
    )


_Found = tuple[Transitions, list[ValueNetwork], History, Estimates, Interval]


def _live(
    environment: Environment,
    policy: Policy,
    gamma: float,
    episodes: int,
    level: float,
    settings: Settings,
    notify: Progress,
) -> _Found:
    data = environment.run(policy, episodes, settings.seed, notify)
    _check_discount(data, gamma)
    observations = environment.start_states(START_STATES, settings.seed)
    starts = start_states(features(observations, data.states))
    samples = state_samples(data, gamma, settings.n_step)
    networks, history = _train(data, samples, starts, gamma, settings, notify)
    estimates = interval.on_policy(data, state_samples(data, gamma, 1), networks, starts, gamma, level)
    return data, networks, history, estimates, estimates.monte_carlo


def _logged(
    source: Any,
    policy: Policy | None,
    environment: Environment | None,
    gamma: float,
    episodes: int,
    level: float,
    settings: Settings,
    notify: Progress,
) -> _Found:
    if environment is None:
        data = files.read(source)
    else:
        data = files.read(source, environment.space, environment.states)
        _check_observations(data, environment)
    _check_discount(data, gamma)
    if data.episodes < settings.networks:
        raise EvaluationError(
            f"the data has {data.episodes} episodes, and {settings.networks} are the least for {settings.networks} "
            "networks; episodes end where terminated or truncated is set."
        )
    first = data.features[torch.as_tensor(data.starts)]
    if policy is None:
        starts = start_states(first)
        samples = state_samples(data, gamma, settings.n_step)
        networks, history = _train(data, samples, starts, gamma, settings, notify)
        estimates = interval.on_policy(data, state_samples(data, gamma, 1), networks, None, gamma, level)
        return data, networks, history, estimates, estimates.monte_carlo
    if settings.n_step != 1:
        raise EvaluationError("n-step targets are for the policy that made the data; leave --n-step at 1.")
    policy.check(None if environment is None else environment.observation_space, data.space)
    samples = action_samples(data, policy, gamma)
    starts = start_actions(first, data.observations[data.starts], policy)
    runs = None
    if environment is not None:  # before training: a policy or environment may fail
        runs = environment.run(policy, episodes, settings.seed, notify)
        _check_discount(runs, gamma)
    networks, history = _train(data, samples, starts, gamma, settings, notify)
    estimates = interval.off_policy(data, samples, networks, starts, gamma, level)
    monte_carlo = UNKNOWN if runs is None else _monte_carlo(runs, policy, networks, gamma, level)
    return data, networks, history, estimates, monte_carlo


def _train(
    data: Transitions, samples: Samples, starts: Start, gamma: float, settings: Settings, notify: Progress
) -> tuple[list[ValueNetwork], History]:
    """Networks, each trained on all episodes but its fold."""
    outputs = data.space.n if samples.weights is not None and isinstance(data.space, Discrete) else 1
    networks = make_networks(samples.inputs.shape[1], outputs, settings)
    fold = interval.folds(data, settings.networks)[data.episode]
    rows = [np.flatnonzero(fold != k) for k in range(settings.networks)]
    for network, of in zip(networks, rows, strict=True):
        fit_scales(network, samples, data, of, gamma)

    def report(step: int, steps: int, estimates: list[float]) -> None:
        notify("training", step, steps, f"value {np.mean(estimates):.4g} ± {np.std(estimates):.2g}")

    history = train(
        networks, samples, rows, settings, lambda: [float(starts.values(x).mean()) for x in networks], report
    )
    return networks, history


def _monte_carlo(
    runs: Transitions, policy: Policy, networks: list[ValueNetwork], gamma: float, level: float
) -> Interval:
    """The mean return of episodes that no network has seen."""
    ends = runs.ends
    last = start_actions(runs.next_features[torch.as_tensor(ends)], runs.next_observations[ends], policy)
    last_values = np.mean([last.values(network) for network in networks], 0)
    return interval.mean_return(runs, last_values, gamma, level)


def _pictured_states(data: Transitions) -> Array:
    """Some states ``[k, 2]`` with two coordinates; none of others."""
    if data.states is not None or data.features.shape[1] != 2:
        return np.empty((0, 2))
    rows = np.linspace(0, len(data) - 1, min(PICTURED_STATES, len(data))).astype(int)
    return data.features[torch.as_tensor(rows)].numpy()  # type: ignore[no-any-return]


def _check(
    gamma: float, episodes: int, level: float, time_limit: int | None, max_episode_steps: int, settings: Settings
) -> None:
    if not 0 <= gamma <= 1:
        raise EvaluationError(f"gamma must be in [0, 1], got {gamma}.")
    if not 0 < level < 1:
        raise EvaluationError(f"level must be between 0 and 1, got {level}.")
    if episodes < 2 * settings.networks:
        raise EvaluationError(
            f"episodes must be at least {2 * settings.networks} for {settings.networks} networks, got {episodes}."
        )
    if time_limit is not None and time_limit < 1:
        raise EvaluationError(f"time_limit must be at least 1, got {time_limit}.")
    if max_episode_steps < 1:
        raise EvaluationError(f"max_episode_steps must be at least 1, got {max_episode_steps}.")


def _check_observations(data: Transitions, environment: Environment) -> None:
    shape = tuple(environment.observation_space.shape)
    if data.observations.shape[1:] != shape or data.states != environment.states:
        theirs = "numbers of states" if environment.states is not None else f"of shape {shape}"
        raise EvaluationError(
            f"observations of {environment.name} are {theirs}, but those of the data are of shape "
            f"{data.observations.shape[1:]} and type {data.observations.dtype}; give --env the environment of the data."
        )


def _check_discount(data: Transitions, gamma: float) -> None:
    if gamma == 1 and not data.terminated[data.ends].all():
        raise EvaluationError(
            "an episode was cut off, so its undiscounted value is not defined; set --gamma below 1, such as 0.99."
        )


def _silent(phase: str, done: int, total: int, note: str) -> None:
    pass


def _name(source: Any) -> str:
    if isinstance(source, Mapping):
        return "logged transitions"
    if isinstance(source, str | Path):
        return str(source)
    return getattr(source, "__name__", "environment") if isinstance(source, Callable) else str(source)  # type: ignore[arg-type]
