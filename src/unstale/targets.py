"""Targets of temporal-difference learning, from tensors.

Nothing is detached, so that the correction can use the gradients of the target. Pass a value that should be constant
(that of a frozen target network) without a graph.

``terminated`` and ``truncated`` are kept apart, as in Gymnasium. The last step of a terminated episode does not
bootstrap; that of a truncated episode does. A step that is both counts as terminated. Both can be bool tensors, or
tensors of zeros and ones.

The discount ``gamma`` is a number, or a floating-point tensor of the shape of the rewards with one discount per
transition, each in [0, 1]: the discount of what follows that transition.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch
from torch import Tensor


def td(reward: Tensor, next_value: Tensor, terminated: Tensor, gamma: float | Tensor) -> Tensor:
    """The one-step target, ``y = r + γ (1 - terminated) V(s')``.

    Args:
        reward: ``r``, shape ``[m]``, one number per transition.
        next_value: ``V(s')``, shape ``[m]``, where ``s'`` is the state that the step led to.
        terminated: whether the episode terminated there, shape ``[m]``. Not whether it was truncated.
        gamma: the discount ``γ``, a number or ``[m]``: for example ``γ^k`` for a transition that sums ``k`` rewards.

    >>> td(torch.tensor([1.0, 1.0]), torch.tensor([8.0, 8.0]), torch.tensor([False, True]), gamma=0.5)
    tensor([5., 1.])
    """
    _check_discount(gamma, terminated)
    _check_shapes("reward", reward, next_value=next_value, terminated=terminated, **_discounts(gamma))
    return reward + _discount(gamma, terminated, next_value) * next_value


def sarsa(reward: Tensor, next_q: Tensor, next_action: Tensor, terminated: Tensor, gamma: float | Tensor) -> Tensor:
    """The target of Sarsa, ``y = r + γ (1 - terminated) Q(s', a')``.

    Args:
        reward: ``r``, shape ``[m]``.
        next_q: ``Q(s', ·)``, shape ``[m, actions]``.
        next_action: ``a'``, the action taken in ``s'``, whole numbers of shape ``[m]``. Any action is valid where
            the episode terminated.
        terminated: whether the episode terminated at ``s'``, shape ``[m]``.
        gamma: the discount ``γ``, a number or one per transition.

    >>> q = torch.tensor([[2.0, 4.0], [6.0, 8.0]])
    >>> sarsa(torch.tensor([1.0, 1.0]), q, torch.tensor([1, 0]), torch.tensor([False, False]), gamma=0.5)
    tensor([3., 4.])
    """
    _check_actions(reward, next_q=next_q)
    _check_shapes("reward", reward, next_action=next_action)
    if next_action.is_floating_point() or next_action.dtype == torch.bool:
        raise TypeError(f"next_action must hold whole numbers, not {next_action.dtype}. Use .long().")
    return td(reward, _chosen(next_q, next_action), terminated, gamma)


def expected_sarsa(reward: Tensor, next_q: Tensor, policy: Tensor, terminated: Tensor, gamma: float | Tensor) -> Tensor:
    """The target of expected Sarsa, ``y = r + γ (1 - terminated) Σ_a π(a|s') Q(s', a)``.

    Args:
        reward: ``r``, shape ``[m]``.
        next_q: ``Q(s', ·)``, shape ``[m, actions]``.
        policy: ``π(·|s')``, probabilities of shape ``[m, actions]``. Gradients flow through it too, if it has a graph.
        terminated: whether the episode terminated at ``s'``, shape ``[m]``.
        gamma: the discount ``γ``, a number or one per transition.

    >>> q, policy = torch.tensor([[2.0, 4.0]]), torch.tensor([[0.25, 0.75]])
    >>> expected_sarsa(torch.tensor([1.0]), q, policy, torch.tensor([False]), gamma=0.5)
    tensor([2.7500])
    """
    _check_actions(reward, next_q=next_q, policy=policy)
    return td(reward, (policy * next_q).sum(-1), terminated, gamma)


def q_learning(
    reward: Tensor, next_q: Tensor, terminated: Tensor, gamma: float | Tensor, select: Tensor | None = None
) -> Tensor:
    """The target of Q-learning, ``y = r + γ (1 - terminated) max_a Q(s', a)``.

    With ``select``, that of double Q-learning: ``Q(s', a*)`` with ``a* = argmax_a select(s', a)``.

    Args:
        reward: ``r``, shape ``[m]``.
        next_q: ``Q(s', ·)``, shape ``[m, actions]``. Gradients flow through the chosen action's value alone, the
            first of them at a tie.
        terminated: whether the episode terminated at ``s'``, shape ``[m]``.
        gamma: the discount ``γ``, a number or one per transition.
        select: the values by which the action is chosen, shape ``[m, actions]``; no gradient flows through them.
            Default: ``next_q``.

    >>> reward, q, terminated = torch.tensor([1.0]), torch.tensor([[2.0, 4.0]]), torch.tensor([False])
    >>> q_learning(reward, q, terminated, gamma=0.5)
    tensor([3.])
    >>> q_learning(reward, q, terminated, gamma=0.5, select=torch.tensor([[9.0, 0.0]]))
    tensor([2.])
    """
    select = next_q if select is None else select
    _check_actions(reward, next_q=next_q, select=select)
    return td(reward, _chosen(next_q, select.argmax(-1)), terminated, gamma)


def n_step(
    rewards: Tensor, next_values: Tensor, terminated: Tensor, truncated: Tensor, gamma: float | Tensor, n: int
) -> Tensor:
    """The n-step target of every step of a trajectory, which may hold several episodes one after another::

        G_t = r_t + γ r_{t+1} + … + γ^{k-1} r_{t+k-1} + γ^k (1 - terminated_{t+k-1}) V_{t+k}

    where ``k`` is ``n``, or fewer where the episode or the trajectory ends first. With one discount per step, ``γ^j``
    is the product of the ``j`` discounts ``γ_t … γ_{t+j-1}``.

    Args:
        rewards: ``r_t``, shape ``[T, ...]``: time first, then any batch axes.
        next_values: ``V_{t+1}``, same shape: the value of the state that step ``t`` led to. At an episode's last step
            that is its *final* observation, not the first of the next episode, which an environment that resets
            itself returns in its place.
        terminated: whether the episode terminated at step ``t``, same shape.
        truncated: whether it was cut off there, same shape.
        gamma: the discount ``γ``, a number or one per transition.
        n: how many rewards are summed before bootstrapping, at least 1.

    >>> no, yes = False, True
    >>> terminated, truncated = torch.tensor([no, no, no, yes]), torch.tensor([no, yes, no, no])
    >>> n_step(torch.ones(4), torch.full((4,), 8.0), terminated, truncated, gamma=0.5, n=3)
    tensor([3.5000, 5.0000, 1.5000, 1.0000])
    """
    _check_discount(gamma, terminated)
    flags = dict(terminated=terminated, truncated=truncated)
    _check_trajectory(rewards, next_values=next_values, **flags, **_discounts(gamma))
    if int(n) != n or n < 1:
        raise ValueError(f"n must be a whole number of at least 1, got {n}; 1 is td().")
    discount, last = _discount(gamma, terminated, next_values), _is_last(terminated, truncated)
    # k steps from t are one step and then k-1 from t+1; at the end of an episode they are one step only.
    target = rewards + discount * next_values
    for _ in range(min(int(n), len(rewards)) - 1):
        later = torch.cat([target[1:], next_values[-1:]])
        target = rewards + discount * torch.where(last, next_values, later)
    return target


def td_lambda(
    rewards: Tensor, next_values: Tensor, terminated: Tensor, truncated: Tensor, gamma: float | Tensor, lam: float
) -> Tensor:
    """The λ-return of every step of a trajectory, in the forward view::

        G_t = r_t + γ (1 - terminated_t) ((1 - λ) V_{t+1} + λ G_{t+1})

    with ``V_{t+1}`` in place of ``G_{t+1}`` where the episode was truncated and at the trajectory's end. It is the mean
    of all n-step targets, the n-th weighed by ``(1 - λ) λ^{n-1}``, and the longest by what is left.

    Args:
        rewards: ``r_t``, shape ``[T, ...]``: time first, then any batch axes.
        next_values: ``V_{t+1}``, same shape: the value of the state that step ``t`` led to; the final observation's
            at an episode's last step, as in :func:`n_step`.
        terminated: whether the episode terminated at step ``t``, same shape.
        truncated: whether it was cut off there, same shape.
        gamma: the discount ``γ``, a number or one per transition.
        lam: ``λ``, from 0 (the one-step target) to 1 (all rewards to the end of the episode).

    >>> no, yes = False, True
    >>> terminated, truncated = torch.tensor([no, no, no, yes]), torch.tensor([no, yes, no, no])
    >>> td_lambda(torch.ones(4), torch.full((4,), 8.0), terminated, truncated, gamma=0.5, lam=0.5)
    tensor([4.2500, 5.0000, 3.2500, 1.0000])
    """
    _check_discount(gamma, terminated)
    _check_unit("lam", lam)
    flags = dict(terminated=terminated, truncated=truncated)
    _check_trajectory(rewards, next_values=next_values, **flags, **_discounts(gamma))
    discount, last = _discount(gamma, terminated, next_values), _is_last(terminated, truncated)
    later = next_values[-1]
    targets: list[Tensor] = []
    for t in reversed(range(len(rewards))):
        # Chosen, not multiplied by zero: an episode never sees the next one, not even its infinities.
        ahead = torch.where(last[t], next_values[t], (1 - lam) * next_values[t] + lam * later)
        later = rewards[t] + discount[t] * ahead
        targets.append(later)
    return torch.stack(targets[::-1])


def _discount(gamma: float | Tensor, terminated: Tensor, like: Tensor) -> Tensor:
    if isinstance(gamma, Tensor):
        gamma = gamma.to(like.dtype)
    return gamma * (1 - terminated.to(like.dtype))


def _is_last(terminated: Tensor, truncated: Tensor) -> Tensor:
    return (terminated != 0) | (truncated != 0)


def _chosen(q: Tensor, action: Tensor) -> Tensor:
    return q.gather(-1, action.long().unsqueeze(-1)).squeeze(-1)


def _discounts(gamma: float | Tensor) -> dict[str, Tensor]:
    """Discounts whose shape has to be that of the rewards."""
    return {"gamma": gamma} if isinstance(gamma, Tensor) and gamma.ndim else {}


def _check_discount(gamma: Any, terminated: Any) -> None:
    """Refuse discounts outside of [0, 1], and those that are given in the place of ``terminated``."""
    swapped = "gamma and terminated look swapped: flags come before gamma."
    if isinstance(gamma, Tensor) and not gamma.is_floating_point():
        raise TypeError(f"gamma must be a number or a floating-point tensor, not {gamma.dtype}; {swapped}")
    if not isinstance(gamma, Tensor | Real) or isinstance(gamma, bool):
        raise TypeError(f"gamma must be a number or a tensor, not {type(gamma).__name__}.")
    if isinstance(terminated, float):
        raise TypeError(f"terminated must be a tensor of flags, not the number {terminated}; {swapped}")
    if not isinstance(gamma, Tensor) or gamma.ndim == 0:
        _check_unit("gamma", float(gamma))
        return
    if not bool(((gamma >= 0) & (gamma <= 1)).all()):
        low, high = float(gamma.min()), float(gamma.max())
        raise ValueError(f"gamma must be in [0, 1], got discounts from {low:g} to {high:g}.")
    is_number = isinstance(terminated, Tensor) and terminated.is_floating_point()
    if is_number and not bool(((terminated == 0) | (terminated == 1)).all()):
        raise ValueError(f"terminated must hold zeros and ones; {swapped}")


def _check_unit(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value}.")


# Shapes are compared, never broadcast: [m, 1] with [m] would silently make [m, m].


def _check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, not {type(value).__name__}. Use torch.as_tensor({name}).")


def _check_shapes(first: str, reward: Tensor, **others: Tensor) -> None:
    """Refuse tensors that are not all shaped like the rewards."""
    _check_tensor(first, reward)
    for name, tensor in others.items():
        _check_tensor(name, tensor)
        if tensor.shape != reward.shape:
            raise ValueError(
                f"{name} must have the shape of {first}, {list(reward.shape)}, but has shape {list(tensor.shape)}."
                + _advice(first, reward, name, tensor)
            )


def _advice(first: str, reward: Tensor, name: str, tensor: Tensor) -> str:
    for this, shape, other in ((name, tensor.shape, reward.shape), (first, reward.shape, tensor.shape)):
        if shape == (*other, 1):
            return f" Use {this}.squeeze(-1)."
    return " Pass one number per transition in each."


def _check_actions(reward: Tensor, **tables: Tensor) -> None:
    """Refuse tables that are not shaped like the rewards with one more axis, the same for all: the actions."""
    _check_tensor("reward", reward)
    actions = 0
    for name, table in tables.items():
        _check_tensor(name, table)
        if table.ndim == 0 or table.shape[:-1] != reward.shape or table.shape[-1] == 0:
            advice = " Use reward.squeeze(-1)." if reward.shape == (*table.shape[:-1], 1) else ""
            raise ValueError(
                f"{name} must have the shape of reward, {list(reward.shape)}, and then an axis of actions, but has "
                f"shape {list(table.shape)}.{advice}"
            )
        actions = actions or table.shape[-1]
        if table.shape[-1] != actions:
            raise ValueError(
                f"{name} has {table.shape[-1]} actions but next_q has {actions}. Give one number for each."
            )


def _check_trajectory(rewards: Tensor, **others: Tensor) -> None:
    _check_shapes("rewards", rewards, **others)
    if rewards.ndim == 0 or len(rewards) == 0:
        raise ValueError(
            f"rewards must have shape [T, ...], time first, with at least one step, but has shape "
            f"{list(rewards.shape)}. Use .unsqueeze(0) for a single step; skip an empty trajectory."
        )
