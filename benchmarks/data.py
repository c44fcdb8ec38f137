"""Fixed random transitions. Time and memory do not depend on their values, as long as they stay finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

GAMMA = 0.99


class Batch(NamedTuple):
    """``m`` transitions. ``action`` is None for a network with one value per state.

    ``next_action`` is None for such a network, and for Q-learning, whose target has the largest of the next values.
    """

    state: Tensor
    next_state: Tensor
    reward: Tensor
    not_done: Tensor
    action: Tensor | None = None
    next_action: Tensor | None = None


def pool(
    samples: int,
    shape: Sequence[int],
    device: torch.device,
    actions: int | None = None,
    batches: int = 16,
    greedy: bool = False,
) -> list[Batch]:
    """Return batches to use in turn, created before anything is timed.

    Args:
        samples: per batch.
        shape: of a state.
        device: of all tensors.
        actions: number of actions; None for a network with one value per state.
        batches: number of batches.
        greedy: whether targets are those of Q-learning instead of Sarsa.
    """
    generator = torch.Generator().manual_seed(samples)

    def batch() -> Batch:
        state, next_state = (torch.randn(samples, *shape, generator=generator) for _ in range(2))
        reward = torch.randn(samples, generator=generator)
        not_done = (torch.rand(samples, generator=generator) > 0.05).float()
        parts = [state, next_state, reward, not_done]
        if actions is not None:
            parts += torch.randint(actions, (1 if greedy else 2, samples), generator=generator)
        return Batch(*(part.to(device) for part in parts))

    return [batch() for _ in range(batches)]


def value(model: nn.Module, state: Tensor, action: Tensor | None) -> Tensor:
    """Return one value per sample, ``[m]``."""
    values = model(state)
    return values.squeeze(-1) if action is None else values.gather(1, action.unsqueeze(1)).squeeze(1)


def target(model: nn.Module, batch: Batch) -> Tensor:
    """Return the TD(0), Sarsa or Q-learning target of each sample, ``[m]``, with its graph if gradients are enabled."""
    if batch.action is not None and batch.next_action is None:
        following = model(batch.next_state).max(1).values
    else:
        following = value(model, batch.next_state, batch.next_action)
    return batch.reward + GAMMA * batch.not_done * following
