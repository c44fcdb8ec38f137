"""Targets several steps ahead, in parts: what was gained on the way, and where the rest is to be read."""

from __future__ import annotations

import torch
from torch import Tensor


def n_step_parts(reward: Tensor, ended: Tensor, gamma: float, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """The n-step target of every sample of a rollout as ``total + discount · V(following)``, where ``following`` counts
    samples of the flattened rollout. Fewer steps where the rollout ends first, and a discount of 0 where an episode
    does.

    >>> reward, ended = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[False], [False], [True]])
    >>> n_step_parts(reward, ended, gamma=0.5, n=2)
    (tensor([2., 4., 4.]), tensor([0.2500, 0.0000, 0.0000]), tensor([2, 3, 3]))
    """
    steps, games = reward.shape
    total, discount = torch.zeros_like(reward), torch.ones_like(reward)
    for ahead in range(min(n, steps)):
        total[: steps - ahead] += discount[: steps - ahead] * reward[ahead:]
        discount[: steps - ahead] *= gamma * ~ended[ahead:]
    sample = torch.arange(steps * games, device=reward.device)
    following = torch.minimum(sample + n * games, steps * games + sample % games)
    return total.flatten(), discount.flatten(), following
