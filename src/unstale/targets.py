"""Targets of temporal-difference learning, from tensors.

Nothing is detached, so that the correction can use the gradients of the target. Pass a value that should be constant
(that of a frozen target network) without a graph.

``terminated`` and ``truncated`` are kept apart, as in Gymnasium. The last step of a terminated episode does not
bootstrap; that of a truncated episode does. A step that is both counts as terminated. Both can be bool tensors, or
tensors of zeros and ones. Values out of range are refused on a CPU; on a GPU, in ``vmap`` and in compiled functions
they are not looked at, because that would wait for the device or is not possible.

The discount ``gamma`` is a number, or a floating-point tensor of the shape of the rewards with one discount per
transition, each in [0, 1]: the discount of what follows that transition.

Rewards and values that are whole numbers become floating point, as torch promotes them in ``r + γ V``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._checks import check_tensor, is_count, is_number, is_readable, is_real


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
    next_value = _floating("next_value", next_value, reward, gamma)
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
    _check_shapes("reward", reward, next_action=next_action, terminated=terminated)
    if next_action.is_floating_point() or not is_real(next_action):
        raise TypeError(f"next_action must hold whole numbers, not {next_action.dtype}. Use .long().")
    action, actions = next_action.long(), next_q.shape[-1]
    # After a termination any action will do. Elsewhere one that does not exist is an error, here or in gather.
    action = torch.where(terminated == 1, action.clamp(0, actions - 1), action)
    if is_readable(action) and not bool(((action >= 0) & (action < actions)).all()):
        raise ValueError(
            f"next_action must be from 0 to {actions - 1}, the columns of next_q, but goes from {int(action.min())} to "
            f"{int(action.max())}."
        )
    return td(reward, _chosen(next_q, action), terminated, gamma)


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
    policy = _floating("policy", policy, next_q, next_q)
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
    tables = dict(next_q=next_q) if select is None else dict(next_q=next_q, select=select)
    _check_actions(reward, **tables)
    for name, table in tables.items():
        if not is_real(table):
            raise TypeError(f"{name} must hold real numbers, not {table.dtype}.")
    select = next_q if select is None else select
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
    if not is_count(n):
        raise ValueError(f"n must be a whole number of at least 1, got {n!r}; 1 is td().")
    next_values = _floating("next_values", next_values, rewards, gamma)
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
    lam = float(lam)
    flags = dict(terminated=terminated, truncated=truncated)
    _check_trajectory(rewards, next_values=next_values, **flags, **_discounts(gamma))
    next_values = _floating("next_values", next_values, rewards, gamma)
    discount, last = _discount(gamma, terminated, next_values), _is_last(terminated, truncated)
    later = next_values[-1]
    targets: list[Tensor] = []
    for t in reversed(range(len(rewards))):
        # Chosen, not multiplied by zero: an episode never sees the next one, not even its infinities.
        ahead = torch.where(last[t], next_values[t], (1 - lam) * next_values[t] + lam * later)
        later = rewards[t] + discount[t] * ahead
        targets.append(later)
    return torch.stack(targets[::-1])


def _floating(name: str, values: Tensor, reward: Tensor, gamma: float | Tensor) -> Tensor:
    """Values as floating point: in the dtype of rewards or discounts if they are whole numbers themselves."""
    for what, tensor in ((name, values), ("reward", reward)):
        if tensor.is_complex():
            raise TypeError(f"{what} must hold real numbers, not {tensor.dtype}.")
    if values.is_floating_point():
        return values
    if values.dtype == torch.bool:
        raise TypeError(f"{name} must hold values, not flags; the order of arguments is rewards, values, flags, gamma.")
    others = [x.dtype for x in (reward, gamma) if isinstance(x, Tensor) and x.is_floating_point()]
    return values.to(others[0] if others else torch.get_default_dtype())


def _discount(gamma: float | Tensor, terminated: Tensor, like: Tensor) -> Tensor:
    gamma = gamma.to(like.dtype) if isinstance(gamma, Tensor) else float(gamma)
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
    if not isinstance(gamma, Tensor) and not is_number(gamma):
        raise TypeError(f"gamma must be a number or a tensor, not {type(gamma).__name__}.")
    if isinstance(terminated, float):
        raise TypeError(f"terminated must be a tensor of flags, not the number {terminated}; {swapped}")
    if not isinstance(gamma, Tensor) or gamma.ndim == 0:
        _check_unit("gamma", gamma)
        _check_probabilities("terminated", terminated)
        return
    if is_readable(gamma) and not bool(((gamma >= 0) & (gamma <= 1)).all()):
        low, high = float(gamma.min()), float(gamma.max())
        raise ValueError(f"gamma must be in [0, 1], got discounts from {low:g} to {high:g}.")
    _check_flags("terminated", terminated, swapped)


def _check_flags(name: str, flags: Any, advice: str) -> None:
    """Refuse values other than 0 and 1, where they can be read."""
    if _has_values(name, flags) and not bool(((flags == 0) | (flags == 1)).all()):
        raise ValueError(f"{name} must hold zeros and ones; {advice}")


def _check_probabilities(name: str, values: Any) -> None:
    """Refuse values outside of [0, 1], where they can be read."""
    if _has_values(name, values) and not bool(((values >= 0) & (values <= 1)).all()):
        raise ValueError(f"{name} must hold zeros and ones, or probabilities, but has values outside of [0, 1].")


def _has_values(name: str, flags: Any) -> bool:
    """Whether flags are numbers that can be read; complex ones are refused."""
    if not isinstance(flags, Tensor) or flags.dtype == torch.bool:
        return False
    if flags.is_complex():
        raise TypeError(f"{name} must hold flags, not {flags.dtype}.")
    return is_readable(flags)


def _check_unit(name: str, value: Any) -> None:
    if not is_number(value):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value}.")


# Shapes are compared, never broadcast: [m, 1] with [m] would silently make [m, m].


def _check_shapes(first: str, reward: Tensor, **others: Tensor) -> None:
    """Refuse tensors that are not all shaped like the rewards."""
    check_tensor(first, reward)
    for name, tensor in others.items():
        check_tensor(name, tensor)
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
    check_tensor("reward", reward)
    actions = 0
    for name, table in tables.items():
        check_tensor(name, table)
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
    _check_flags("truncated", others["truncated"], "the order of flags is terminated, truncated.")
    if rewards.ndim == 0 or len(rewards) == 0:
        raise ValueError(
            f"rewards must have shape [T, ...], time first, with at least one step, but has shape "
            f"{list(rewards.shape)}. Use .unsqueeze(0) for a single step; skip an empty trajectory."
        )
