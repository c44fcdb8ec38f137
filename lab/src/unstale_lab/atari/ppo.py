"""Proximal policy optimisation (Schulman et al. 2017) on games that are played side by side.

Ordinary, but for the critic: where its momentum is to be corrected, its gradient goes through ``optimizer.backward``.
The actor's gradient rides along in the same momentum, uncorrected.
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
from .actor import Actor, Expert, load_expert
from .games import action_count, check_game
from .returns import n_step_parts
from .rollout import REWARDS, Collector, Rollout


@dataclass(frozen=True)
class Settings:
    """All that a run depends on."""

    game: str = "ms_pacman"
    seed: int = 0
    steps: int = 6_000_000  # of all games together
    minutes: float | None = None  # the run ends, and its rates fade, by whichever limit is nearer
    games: int = 128
    rollout: int = 32  # steps of each game between two updates
    epochs: int = 4
    minibatch: int = 1024
    lr: float = 5e-4  # 2.5e-4 is usual for minibatches of 256; twice that goes with four times the samples
    beta: float = 0.9
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.1
    entropy: float = 0.01
    value_weight: float = 0.25  # half the usual: values of logarithmic rewards are about twice those of signs
    max_norm: float = 0.5
    reward: str = "log"
    n_step: int = 0  # 0: the critic learns λ-returns, which stand still; n: live targets, n steps ahead
    correction: str = "none"  # one of the library's, for the critic; and so are the next two
    horizon: int | None = None
    trust: float | None = 1.0
    begin_with: str = ""  # the file of an expert to go on from

    def check(self) -> None:
        """Refuses, in one line, what cannot be run."""
        check_game(self.game)
        if self.reward not in REWARDS:
            raise unknown("reward", self.reward, REWARDS)
        for name in ("steps", "games", "rollout", "epochs", "minibatch"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.minutes is not None and not self.minutes > 0:
            raise UserError(f"minutes must be more than 0, not {self.minutes}")
        if self.games * self.rollout % self.minibatch:
            raise UserError(f"{self.games} games × {self.rollout} steps do not divide by {self.minibatch} a minibatch")
        if self.correction != "none" and not self.n_step:
            raise UserError("a correction follows targets that move: give n_step, 5 for example")


class Progress(NamedTuple):
    """Where a run is after a rollout."""

    steps: int
    seconds: float
    score: float  # the mean over the last games; not a number before the first is over
    done: float  # 0 to 1


class Minibatch(NamedTuple):
    """Samples of a rollout, [m] each; the critic's target is ``reward + discount · V(following)``."""

    observation: Tensor
    action: Tensor
    log_prob: Tensor
    advantage: Tensor
    reward: Tensor
    discount: Tensor
    following: Tensor | None  # none where the target stands still

    def target(self, actor: Actor) -> Tensor:
        return self.reward if self.following is None else self.reward + self.discount * actor(self.following)[1]


class PPO:
    """An actor, its optimizer and where its run is; ``run`` is the training loop."""

    def __init__(self, settings: Settings, device: torch.device | str = "cpu") -> None:
        settings.check()
        self.settings = settings
        self.device = torch.device(device)
        self.numbers = torch.Generator(self.device).manual_seed(settings.seed)
        weights = torch.Generator().manual_seed(settings.seed)
        self.actor = Actor(action_count(settings.game), weights).to(self.device)
        if settings.begin_with:
            expert = load_expert(settings.begin_with, settings.game)
            if expert.greedy:
                raise UserError(f"{settings.begin_with} has action values, and no policy to go on from")
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
        self.steps_a_turn = settings.games * settings.rollout
        self.updates_a_turn = settings.epochs * self.steps_a_turn // settings.minibatch

    def run(self) -> Generator[Progress, None, None]:
        """Plays and learns in turns until the steps or the minutes are spent."""
        settings = self.settings
        # A run that was interrupted goes on with other games, not with its first ones again.
        games = 1_000_000_007 * settings.seed + self.steps
        collector = Collector(settings.game, settings.games, settings.rollout, games, settings.reward, self.device)
        try:
            while self.done() < 1:
                began = time.perf_counter()
                self.learn(collector.collect(self.actor, self.numbers))
                self.steps += self.steps_a_turn
                self.seconds += time.perf_counter() - began
                self.curve.append(Progress(self.steps, self.seconds, collector.score(), self.done()))
                yield self.curve[-1]
        finally:
            collector.close()

    def done(self) -> float:
        """The share of the run that is over, by steps or by the clock."""
        by_clock = self.seconds / (60 * self.settings.minutes) if self.settings.minutes else 0.0
        return min(1.0, max(self.steps / self.settings.steps, by_clock))

    def learn(self, rollout: Rollout) -> None:
        """Several passes over a rollout. Learning rate and entropy fade over the run: in the end the actor is still
        drawn from, but nothing keeps it undecided for the sake of exploring."""
        settings = self.settings
        left = 1 - self.done()
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr * left
        for batch in minibatches(rollout, settings, self.numbers):
            self._backward(batch, settings.entropy * left)
            nn.utils.clip_grad_norm_(self.actor.parameters(), settings.max_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def _backward(self, batch: Minibatch, entropy: float) -> None:
        """Fills ``.grad`` with the gradients of actor and critic."""
        logits, value = self.actor(batch.observation)
        policy = policy_loss(batch, logits, self.settings.clip, entropy)
        weight = self.settings.value_weight
        if self.settings.correction == "none" and not self.optimizer.watchers:  # both in one pass
            with torch.no_grad():
                target = batch.target(self.actor)
            critic = nn.functional.mse_loss(value, target) / 2
            (policy + weight * critic).backward()
            return
        if self.optimizer.watchers or self.settings.correction == "oracle":  # these look at past batches again
            self.optimizer.backward(lambda: (self.actor(batch.observation)[1], batch.target(self.actor)), weight=weight)
        else:
            self.optimizer.backward(value, batch.target(self.actor), weight=weight)
        policy.backward()  # adds to .grad

    def score(self) -> float:
        """The mean over the last games; not a number before the first is over."""
        return self.curve[-1].score if self.curve else math.nan

    def policy(self) -> Expert:
        return Expert(self.settings.game, self.actor)

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of the run depends on, but for the games under way."""
        return {
            "actor": self.actor.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "numbers": self.numbers.get_state(),
            "curve": [tuple(row) for row in self.curve],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.actor.load_state_dict(state["actor"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.numbers.set_state(state["numbers"].cpu())
        self.curve = [Progress(*row) for row in state["curve"]]
        self.steps, self.seconds = self.curve[-1][:2] if self.curve else (0, 0.0)


def minibatches(rollout: Rollout, settings: Settings, numbers: torch.Generator) -> Iterator[Minibatch]:
    """A rollout's samples, shuffled anew in every epoch."""
    never = torch.zeros_like(rollout.ended)
    returns = unstale.targets.td_lambda(
        rollout.reward, rollout.value[1:], rollout.ended, never, settings.gamma, settings.lam
    )
    advantage = (returns - rollout.value[:-1]).flatten()
    observation, action, log_prob = (x.flatten(0, 1) for x in (rollout.observation, rollout.action, rollout.log_prob))
    reward, discount, following = n_step_parts(rollout.reward, rollout.ended, settings.gamma, settings.n_step)
    if not settings.n_step:
        reward = returns.flatten()
    for _ in range(settings.epochs):
        order = torch.randperm(len(advantage), generator=numbers, device=advantage.device)
        for rows in order.split(settings.minibatch):
            yield Minibatch(
                observation[rows],
                action[rows],
                log_prob[rows],
                advantage[rows],
                reward[rows],
                discount[rows],
                observation[following[rows]] if settings.n_step else None,
            )


def policy_loss(batch: Minibatch, logits: Tensor, clip: float, entropy: float) -> Tensor:
    """The clipped objective, with normalised advantages, and a reward for undecidedness."""
    log_probs = logits.log_softmax(-1)
    ratio = (log_probs.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1) - batch.log_prob).exp()
    advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
    undecidedness = -(log_probs.exp() * log_probs).sum(-1).mean()
    return -gain - entropy * undecidedness
