"""n-step returns of recorded trajectories, in parts: the value to bootstrap from is added by the learner."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class NStep(NamedTuple):
    """The n-step target of step ``t`` is ``reward_t + discount_t · V(s_{t + steps_t})``. All are ``[T, ...]``."""

    reward: Tensor  # the discounted sum of rewards
    discount: Tensor  # γ^steps, or 0 if the episode terminated on the way
    steps: Tensor  # n, or fewer if the episode or the trajectory ends first; int64


def n_step_returns(reward: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, n: int) -> NStep:
    """The parts of all n-step targets of a trajectory, which may hold several episodes in sequence.

    With values ``V``, ``unstale.targets.n_step`` returns the same targets.

    Args:
        reward: ``r_t``, shape ``[T, ...]``: time first, then any batch dimensions.
        terminated: whether the episode terminated with step ``t``, same shape.
        truncated: whether it was cut off after step ``t``, same shape.
        gamma: the discount factor.
        n: how many rewards are summed, at least 1.

    >>> reward, no = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([False, False, False])
    >>> n_step_returns(reward, torch.tensor([False, False, True]), no, gamma=0.5, n=2)
    NStep(reward=tensor([2., 4., 4.]), discount=tensor([0.2500, 0.0000, 0.0000]), steps=tensor([2, 2, 1]))
    """
    length = len(reward)
    total = torch.zeros_like(reward)
    steps = torch.zeros_like(reward, dtype=torch.int64)
    running = torch.ones_like(reward, dtype=torch.bool)
    has_terminated = torch.zeros_like(running)
    for ahead in range(min(n, length)):
        own = running[: length - ahead]
        total[: length - ahead] += own * (gamma**ahead * reward[ahead:])
        steps[: length - ahead] += own
        has_terminated[: length - ahead] |= own & terminated[ahead:]
        own &= ~(terminated[ahead:] | truncated[ahead:])  # in place: a view of ``running``
    discount = (gamma ** steps.double()).to(reward.dtype) * ~has_terminated
    return NStep(total, discount, steps)
