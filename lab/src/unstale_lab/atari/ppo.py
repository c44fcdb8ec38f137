"""Proximal policy optimization (Schulman et al., 2017) on parallel games.

It differs from the standard algorithm only in the critic: if momentum is corrected, the gradient of the critic goes
through ``optimizer.backward``. The gradient of the actor is part of the same momentum, uncorrected.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import unstale

from ..errors import UserError, unknown
from ..problems.n_step_returns import n_step_returns
from .actor import Actor, Expert, load_expert
from .games import action_count, check_game
from .rollout import REWARDS, Collector, Rollout


@dataclass(frozen=True)
class Settings:
    """All settings of a run."""

    game: str = "ms_pacman"
    seed: int = 0
    steps: int = 6_000_000  # of all games together
    minutes: float | None = None  # the run ends at whichever limit is reached first; rates decay accordingly
    games: int = 128
    rollout: int = 32  # steps of each game per iteration
    epochs: int = 4
    minibatch: int = 1024
    lr: float = 5e-4  # 2.5e-4 is usual for minibatches of 256; it is scaled with the root of the batch size
    beta: float = 0.9
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.1
    entropy: float = 0.01
    value_weight: float = 0.25  # half the usual: values of "log" rewards are about twice as large
    max_norm: float = 0.5
    reward: str = "log"
    n_step: int = 0  # 0: fixed λ-returns as targets of the critic; n: n-step targets that follow the critic
    correction: str = "none"  # for the critic; this and the next two: see unstale.CorrectedAdam
    horizon: int | None = None
    trust: float | None = 1.0
    begin_with: str = ""  # the file of an expert to continue from

    def check(self) -> None:
        """Raises ``UserError`` for invalid settings."""
        check_game(self.game)
        if self.reward not in REWARDS:
            raise unknown("reward", self.reward, REWARDS)
        for name in ("steps", "games", "rollout", "epochs", "minibatch"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.minutes is not None and not self.minutes > 0:
            raise UserError(f"minutes must be more than 0, not {self.minutes}")
        if self.games * self.rollout % self.minibatch:
            raise UserError(
                f"{self.games} games × {self.rollout} steps are not divisible by the minibatch size {self.minibatch}"
            )
        if self.correction != "none" and not self.n_step:
            raise UserError("a correction needs n-step targets: set n_step, for example to 5")


class Progress(NamedTuple):
    """The state of a run after an iteration."""

    steps: int
    seconds: float
    score: float  # the mean of the last games; NaN before the first has finished
    done: float  # 0 to 1


class Minibatch(NamedTuple):
    """Samples of a rollout, [m] each. The target of the critic is ``reward + discount · V(following)``."""

    observation: Tensor
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    reward: Tensor
    discount: Tensor
    following: Tensor | None  # None if the target is fixed

    def target(self, actor: Actor) -> Tensor:
        return self.reward if self.following is None else self.reward + self.discount * actor(self.following)[1]


class PPO:
    """The actor, its optimizer, and the state of the run; ``run`` is the training loop."""

    def __init__(self, settings: Settings, device: torch.device | str = "cpu") -> None:
        settings.check()
        self.settings = settings
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(settings.seed)
        initialization = torch.Generator().manual_seed(settings.seed)
        self.actor = Actor(action_count(settings.game), initialization).to(self.device)
        if settings.begin_with:
            expert = load_expert(settings.begin_with, settings.game)
            if expert.greedy:
                raise UserError(f"{settings.begin_with} has action values, not a policy to continue from")
            self.actor.load_state_dict(expert.actor.state_dict())
        self.optimizer = unstale.CorrectedAdam(
            self.actor,
            lr=settings.lr,
            betas=(settings.beta, 0.999),
            eps=1e-5,
            correction=settings.correction,
            horizon=settings.horizon,
            trust=settings.trust,
        )
        self.steps, self.seconds = 0, 0.0
        self.curve: list[Progress] = []
        self.steps_per_iteration = settings.games * settings.rollout
        self.updates_per_iteration = settings.epochs * self.steps_per_iteration // settings.minibatch

    def run(self) -> Generator[Progress, None, None]:
        """Alternates between rollouts and updates until the limit of steps or minutes is reached."""
        settings = self.settings
        # A resumed run continues with new games, not with the first ones again.
        seed = 1_000_000_007 * settings.seed + self.steps
        collector = Collector(settings.game, settings.games, settings.rollout, seed, settings.reward, self.device)
        try:
            while self.done() < 1:
                began = time.perf_counter()
                self.learn(collector.collect(self.actor, self.generator))
                self.steps += self.steps_per_iteration
                self.seconds += time.perf_counter() - began
                self.curve.append(Progress(self.steps, self.seconds, collector.score(), self.done()))
                yield self.curve[-1]
        finally:
            collector.close()

    def done(self) -> float:
        """The completed fraction of the run, by steps or by time."""
        by_time = self.seconds / (60 * self.settings.minutes) if self.settings.minutes else 0.0
        return min(1.0, max(self.steps / self.settings.steps, by_time))

    def learn(self, rollout: Rollout) -> None:
        """Several epochs of updates on a rollout. The learning rate and the weight of the entropy bonus decay linearly
        over the run."""
        settings = self.settings
        left = 1 - self.done()
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr * left
        for batch in minibatches(rollout, settings, self.generator):
            self._backward(batch, settings.entropy * left)
            nn.utils.clip_grad_norm_(self.actor.parameters(), settings.max_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def _backward(self, batch: Minibatch, entropy_weight: float) -> None:
        """Sets ``.grad`` to the gradients of actor and critic."""
        logits, value = self.actor(batch.observation)
        policy = policy_loss(batch, logits, self.settings.clip, entropy_weight)
        weight = self.settings.value_weight
        if self.settings.correction == "none" and not self.optimizer.watchers:  # both in one pass
            with torch.no_grad():
                target = batch.target(self.actor)
            critic = nn.functional.mse_loss(value, target) / 2
            (policy + weight * critic).backward()
            return
        if self.optimizer.watchers or self.settings.correction == "oracle":  # these evaluate past batches again
            self.optimizer.backward(lambda: (self.actor(batch.observation)[1], batch.target(self.actor)), weight=weight)
        else:
            self.optimizer.backward(value, batch.target(self.actor), weight=weight)
        policy.backward()  # adds to .grad

    def score(self) -> float:
        """The mean score of the last games; NaN before the first has finished."""
        return self.curve[-1].score if self.curve else math.nan

    def policy(self) -> Expert:
        return Expert(self.settings.game, self.actor)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on, except the games in progress."""
        return {
            "actor": self.actor.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "curve": [tuple(row) for row in self.curve],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.actor.load_state_dict(state["actor"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"].cpu())
        self.curve = [Progress(*row) for row in state["curve"]]
        self.steps, self.seconds = self.curve[-1][:2] if self.curve else (0, 0.0)


def minibatches(rollout: Rollout, settings: Settings, generator: torch.Generator) -> Iterator[Minibatch]:
    """The samples of a rollout in minibatches, reshuffled in every epoch."""
    never = torch.zeros_like(rollout.ended)
    returns = unstale.targets.td_lambda(
        rollout.reward, rollout.value[1:], rollout.ended, never, settings.gamma, settings.lam
    )
    advantage = (returns - rollout.value[:-1]).flatten()
    observation, action, log_prob = (x.flatten(0, 1) for x in (rollout.observation, rollout.action, rollout.log_prob))
    reward, discount, following = returns.flatten(), torch.zeros_like(advantage), None
    if settings.n_step:
        parts = n_step_returns(rollout.reward, rollout.ended, never, settings.gamma, settings.n_step)
        reward, discount = parts.reward.flatten(), parts.discount.flatten()
        following = _following(parts.steps)
    for _ in range(settings.epochs):
        order = torch.randperm(len(advantage), generator=generator, device=advantage.device)
        for rows in order.split(settings.minibatch):
            yield Minibatch(
                observation[rows],
                action[rows],
                log_prob[rows],
                advantage[rows],
                reward[rows],
                discount[rows],
                None if following is None else observation[following[rows]],
            )


def _following(steps: Tensor) -> Tensor:
    """The index of the state that each sample bootstraps from, in the flattened rollout, [T * n]."""
    length, games = steps.shape
    time, game = (torch.arange(size, device=steps.device) for size in (length, games))
    return ((time[:, None] + steps) * games + game).flatten()


def policy_loss(batch: Minibatch, logits: Tensor, clip: float, entropy_weight: float) -> Tensor:
    """The clipped objective with normalized advantages and an entropy bonus."""
    log_probs = logits.log_softmax(-1)
    ratio = (log_probs.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1) - batch.log_prob).exp()
    advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
    objective = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    return -objective - entropy_weight * entropy
