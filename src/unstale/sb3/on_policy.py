"""PPO and A2C: one optimizer for policy and value function, and targets from rollouts."""

from __future__ import annotations

import warnings
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.utils import explained_variance, obs_as_tensor
from torch import Tensor

from .. import targets
from .._batch import ConstantTargetWarning
from ..losses import Derivatives, Loss
from .base import Corrected, log_means


class _CorrectedValue(Corrected):
    """The value function of PPO and A2C, which one optimizer trains with the policy."""

    action_space: Any
    logger: Any
    rollout_buffer: Any
    clip_range: Any
    clip_range_vf: Any
    _last_obs: Any
    _last_episode_starts: Any
    normalize_advantage: bool
    vf_coef: float
    max_grad_norm: float

    def _policy_parameters(self) -> set[int]:
        policy: Any = self.policy
        value_modules = [policy.vf_features_extractor, policy.mlp_extractor.value_net, policy.value_net]
        policy_modules = [policy.pi_features_extractor, policy.mlp_extractor.policy_net, policy.action_net]
        values, others = (
            {id(p) for m in modules for p in m.parameters()} for modules in (value_modules, policy_modules)
        )
        return {id(p) for p in policy.parameters()} - (values - others)

    def _evaluate(self, data: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Values, log-probabilities of the actions taken, normalized advantages, and the loss of the entropy."""
        is_discrete = isinstance(self.action_space, spaces.Discrete)
        actions = data.actions.long().flatten() if is_discrete else data.actions
        values, log_prob, entropy = self.policy.evaluate_actions(data.observations, actions)
        advantages = data.advantages
        if self.normalize_advantage and len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        entropy_loss = log_prob.mean() if entropy is None else -entropy.mean()
        return values.flatten(), log_prob, advantages, entropy_loss

    def _update(self, values: Tensor, target: Tensor, loss: Loss | str, other_losses: Tensor) -> float:
        """One step of policy and value function; returns the loss of the values."""
        optimizer = self.policy.optimizer
        optimizer.zero_grad()
        value_loss = optimizer.backward(values, target, loss=loss, weight=self.vf_coef)
        other_losses.backward()
        optimizer.clip_grad_norm_(self.max_grad_norm)
        optimizer.step()
        return float(value_loss)

    def _log_fit(self) -> None:
        buffer, logger = self.rollout_buffer, self.logger
        logger.record("train/explained_variance", explained_variance(buffer.values.flatten(), buffer.returns.flatten()))
        if hasattr(self.policy, "log_std"):
            logger.record("train/std", self.policy.log_std.exp().mean().item())


class CorrectedPPO(_CorrectedValue, PPO):
    """PPO whose value function learns with corrected momentum.

    Its targets, the returns of the rollout, are constant while the networks are fitted to them.
    """

    def train(self) -> None:
        """Fit policy and value function to the rollout."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        clip = self.clip_range(self._current_progress_remaining)
        value_clip = None if self.clip_range_vf is None else self.clip_range_vf(self._current_progress_remaining)
        logs: dict[str, list[float]] = defaultdict(list)
        is_close = True
        for _ in range(self.n_epochs):
            logs["approx_kl"] = []
            for data in self.rollout_buffer.get(self.batch_size):
                values, log_prob, advantages, entropy_loss = self._evaluate(data)
                log_ratio = log_prob - data.old_log_prob
                ratio = log_ratio.exp()
                policy_loss = -torch.min(advantages * ratio, advantages * ratio.clamp(1 - clip, 1 + clip)).mean()
                divergence = (ratio - 1 - log_ratio).mean().item()
                logs["approx_kl"].append(divergence)
                logs["clip_fraction"].append(((ratio - 1).abs() > clip).float().mean().item())
                logs["policy_gradient_loss"].append(policy_loss.item())
                logs["entropy_loss"].append(entropy_loss.item())
                is_close = self.target_kl is None or divergence <= 1.5 * self.target_kl
                if not is_close:
                    if self.verbose >= 1:
                        print(f"Stopped early: the policy has moved by an approximate KL of {divergence:.2f}.")
                    break
                loss = "mse" if value_clip is None else _clipped_error(values, data.old_values, value_clip)
                other_losses = policy_loss + self.ent_coef * entropy_loss
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConstantTargetWarning)
                    value_loss = self._update(values, data.returns, loss, other_losses)
                logs["value_loss"].append(value_loss)
                logs["loss"] = [other_losses.item() + self.vf_coef * value_loss]
            self._n_updates += 1
            if not is_close:
                break
        log_means(self, {**logs, "clip_range": [clip], "clip_range_vf": [] if value_clip is None else [value_clip]})
        self._log_fit()


def _clipped_error(value: Tensor, old_value: Tensor, clip: float) -> Loss:
    """Stable-Baselines3's value clipping, ``(clip(v, old - ε, old + ε) - y)²``, as a function of ``v - y``.

    Unlike :func:`unstale.losses.clipped_value` it has no maximum with the unclipped error.
    """
    change = value.detach() - old_value
    excess = change - change.clamp(-clip, clip)
    is_free = (excess == 0).to(excess.dtype)
    return lambda residual: Derivatives((residual - excess).square(), 2 * residual * is_free, 2 * is_free)


class CorrectedA2C(_CorrectedValue, A2C):
    """A2C whose value function learns with corrected momentum."""

    def train(self) -> None:
        """Make one step with the rollout."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        buffer = self.rollout_buffer
        next(buffer.get(batch_size=None))  # flattens the buffer; its samples are shuffled
        data = buffer._get_samples(np.arange(buffer.buffer_size * buffer.n_envs))
        values, log_prob, advantages, entropy_loss = self._evaluate(data)
        policy_loss = -(advantages * log_prob).mean()
        target = self._live_returns(values) if self._is_corrected else data.returns
        value_loss = self._update(values, target, "mse", policy_loss + self.ent_coef * entropy_loss)
        self._n_updates += 1
        logs = dict(entropy_loss=entropy_loss.item(), policy_loss=policy_loss.item(), value_loss=value_loss)
        log_means(self, {name: [number] for name, number in logs.items()})
        self._log_fit()

    def _live_returns(self, values: Tensor) -> Tensor:
        """The returns of the rollout as functions of the parameters, from values ``[envs · T]`` in the buffer's order.

        Where a time limit ended an episode, the value of its last observation is part of the reward, and constant.
        """
        buffer, device = self.rollout_buffer, self.device
        last_value = self.policy.predict_values(obs_as_tensor(self._last_obs, device)).reshape(1, -1)
        values = values.reshape(buffer.n_envs, buffer.buffer_size).T
        rewards = torch.as_tensor(buffer.rewards, device=device)
        starts = np.concatenate([buffer.episode_starts[1:], self._last_episode_starts[None]])
        ended = torch.as_tensor(starts, device=device).bool()
        following = torch.cat([values[1:], last_value])
        returns = targets.td_lambda(rewards, following, ended, torch.zeros_like(ended), self.gamma, self.gae_lambda)
        return returns.T.flatten()
