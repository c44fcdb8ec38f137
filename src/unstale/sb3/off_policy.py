"""DQN, SAC and TD3: targets come from replayed transitions and target networks."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.utils import polyak_update
from torch import Tensor, nn

from .base import Corrected, log_means


class CorrectedDQN(Corrected, DQN):
    """DQN whose network learns with corrected momentum."""

    def _target_network(self) -> nn.Module:
        return self.policy.q_net_target

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Fit the network to sampled batches."""
        self.policy.set_training_mode(True)
        optimizer = self.policy.optimizer
        self._update_learning_rate(optimizer)
        losses = []
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            with torch.set_grad_enabled(self._is_corrected):
                next_value = self.q_net_target(batch.next_observations).max(dim=1, keepdim=True).values
                target = _bootstrapped(batch, self.gamma, next_value)
            value = self.q_net(batch.observations).gather(1, batch.actions.long())
            optimizer.zero_grad()
            losses.append(optimizer.backward(value, target, loss="smooth_l1").item())
            optimizer.clip_grad_norm_(self.max_grad_norm)
            optimizer.step()
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))


class _CorrectedCritics(Corrected):
    """The critics of SAC and TD3. Their actors keep their optimizers."""

    critic: Any
    critic_target: Any
    log_ent_coef: Any
    target_entropy: Any

    def _optimizer_owner(self) -> Any:
        return self.critic

    def _target_network(self) -> nn.Module:
        return self.critic_target

    def _update_critics(self, batch: Any, target: Tensor, loss: str) -> float:
        """One step of all critics towards ``target`` of shape ``[m, 1]``; returns the sum of their losses."""
        values = torch.cat(self.critic(batch.observations, batch.actions), dim=1)
        optimizer, critics = self.critic.optimizer, values.shape[1]
        optimizer.zero_grad()
        mean = optimizer.backward(values, target.expand_as(values), loss=loss, weight=float(critics))
        optimizer.step()
        return critics * float(mean)

    def _next_value(self, batch: Any, next_action: Tensor) -> Tensor:
        """The smallest value of the target critics, of shape ``[m, 1]``."""
        values = torch.cat(self.critic_target(batch.next_observations, next_action), dim=1)
        return values.min(dim=1, keepdim=True).values


class CorrectedSAC(_CorrectedCritics, SAC):
    """SAC whose critics learn with corrected momentum."""

    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        """Fit temperature, critics and actor to sampled batches."""
        self.policy.set_training_mode(True)
        tuner = self.ent_coef_optimizer  # None if the temperature is constant
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer, *([tuner] if tuner else [])])
        logs: dict[str, list[float]] = defaultdict(list)
        for step in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            if self.use_sde:
                self.actor.reset_noise()
            action, log_prob = self.actor.action_log_prob(batch.observations)
            log_prob = log_prob.reshape(-1, 1)
            if tuner:
                temperature = self.log_ent_coef.detach().exp()
                tuner_loss = -(self.log_ent_coef * (log_prob + self.target_entropy).detach()).mean()
                tuner.zero_grad()
                tuner_loss.backward()
                tuner.step()
                logs["ent_coef_loss"].append(tuner_loss.item())
            else:
                temperature = self.ent_coef_tensor
            logs["ent_coef"].append(temperature.item())

            with torch.no_grad():
                next_action, next_log_prob = self.actor.action_log_prob(batch.next_observations)
            with torch.set_grad_enabled(self._is_corrected):
                next_value = self._next_value(batch, next_action) - temperature * next_log_prob.reshape(-1, 1)
                target = _bootstrapped(batch, self.gamma, next_value)
            logs["critic_loss"].append(self._update_critics(batch, target, "half_squared"))

            value = torch.cat(self.critic(batch.observations, action), dim=1).min(dim=1, keepdim=True).values
            actor_loss = (temperature * log_prob - value).mean()
            self.actor.optimizer.zero_grad()
            actor_loss.backward()
            self.actor.optimizer.step()
            logs["actor_loss"].append(actor_loss.item())

            if step % self.target_update_interval == 0:
                polyak_update(self.critic.parameters(), self.critic_target.parameters(), self.tau)
                polyak_update(self.batch_norm_stats, self.batch_norm_stats_target, 1.0)
        self._n_updates += gradient_steps
        log_means(self, logs)


class CorrectedTD3(_CorrectedCritics, TD3):
    """TD3 whose critics learn with corrected momentum."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Fit critics and, less often, the actor to sampled batches."""
        self.policy.set_training_mode(True)
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer])
        logs: dict[str, list[float]] = defaultdict(list)
        for _ in range(gradient_steps):
            self._n_updates += 1
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            with torch.no_grad():
                noise = torch.empty_like(batch.actions).normal_(0, self.target_policy_noise)
                noise = noise.clamp(-self.target_noise_clip, self.target_noise_clip)
                next_action = (self.actor_target(batch.next_observations) + noise).clamp(-1, 1)
            with torch.set_grad_enabled(self._is_corrected):
                target = _bootstrapped(batch, self.gamma, self._next_value(batch, next_action))
            logs["critic_loss"].append(self._update_critics(batch, target, "mse"))
            if self._n_updates % self.policy_delay:
                continue

            actor_loss = -self.critic.q1_forward(batch.observations, self.actor(batch.observations)).mean()
            self.actor.optimizer.zero_grad()
            actor_loss.backward()
            self.actor.optimizer.step()
            logs["actor_loss"].append(actor_loss.item())
            for network, follower in ((self.critic, self.critic_target), (self.actor, self.actor_target)):
                polyak_update(network.parameters(), follower.parameters(), self.tau)
            polyak_update(self.critic_batch_norm_stats, self.critic_batch_norm_stats_target, 1.0)
            polyak_update(self.actor_batch_norm_stats, self.actor_batch_norm_stats_target, 1.0)
        log_means(self, logs)


def _bootstrapped(batch: Any, gamma: float, next_value: Tensor) -> Tensor:
    """The TD target ``[m, 1]``. Samples of n-step replay have a discount of their own."""
    discount = gamma if batch.discounts is None else batch.discounts
    return batch.rewards + (1 - batch.dones) * discount * next_value
