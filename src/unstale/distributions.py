"""Distributions of returns as targets, for :data:`unstale.losses.cross_entropy`. Nothing is detached."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ._checks import check_floating, check_positive, check_tensor, is_real
from .targets import td

MAX_WIDTHS = 1e6  # of the standard deviation, in units of the range of the edges: beyond, all bins are alike


def c51(reward: Tensor, next_probs: Tensor, terminated: Tensor, gamma: float | Tensor, atoms: Tensor) -> Tensor:
    """The categorical target of C51: the distribution of ``r + γ (1 - terminated) z'``, projected onto the atoms.

    Args:
        reward: ``r``, shape ``[m]``.
        next_probs: probabilities of the atoms in the next state, shape ``[m, k]``.
        terminated: whether the episode terminated there, shape ``[m]``.
        gamma: the discount ``γ``, a number or ``[m]``.
        atoms: ``z``, shape ``[k]``, ascending and evenly spaced.

    Returns:
        Probabilities ``[m, k]``.

    >>> atoms, next_probs = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([[0.0, 1.0, 0.0]])
    >>> c51(torch.tensor([0.5]), next_probs, torch.tensor([False]), 0.5, atoms)
    tensor([[0., 1., 0.]])
    """
    spacing = _check_atoms(atoms)
    check_floating("next_probs", next_probs)
    check_tensor("reward", reward)
    if reward.is_complex():
        raise TypeError(f"reward must hold real numbers, not {reward.dtype}.")
    if next_probs.ndim != 2 or next_probs.shape != (*reward.shape, len(atoms)):
        raise ValueError(
            f"next_probs must have shape {[*reward.shape, len(atoms)]}, one row per transition and one column per "
            f"atom, but has shape {list(next_probs.shape)}."
        )
    given = next_probs.dtype
    # At least float32: rounded atoms are not evenly spaced, and rows would not sum to 1.
    next_probs = next_probs.to(torch.promote_types(given, torch.float32))
    atoms = atoms.detach().to(next_probs)
    nothing = torch.zeros_like(reward, dtype=next_probs.dtype)
    discount = td(nothing, nothing + 1, terminated, gamma)  # γ (1 - terminated)
    moved = reward.unsqueeze(-1) + discount.unsqueeze(-1) * atoms
    moved = moved.to(next_probs).clamp(float(atoms[0]), float(atoms[-1]))
    # An atom that falls between two others is shared by them.
    share = (1 - (moved.unsqueeze(-2) - atoms.unsqueeze(-1)).abs() / spacing).clamp(min=0)  # [m, onto, from]
    return (share * next_probs.unsqueeze(-2)).sum(-1).to(given)


def hl_gauss(value: Tensor, edges: Tensor, sigma: float) -> Tensor:
    """The histogram target of HL-Gauss: a normal distribution around ``value``, cut into bins.

    Args:
        value: TD target ``[m]``, live; limited to the range of the edges.
        edges: of the bins, shape ``[k + 1]``, ascending.
        sigma: standard deviation of the distribution; 0.75 times the width of a bin is usual.

    Returns:
        Probabilities ``[m, k]``.

    >>> hl_gauss(torch.tensor([0.0]), torch.tensor([-3.0, -1.0, 1.0, 3.0]), sigma=1.0)
    tensor([[0.1577, 0.6845, 0.1577]])
    """
    check_floating("value", value)
    if value.ndim != 1:
        raise ValueError(f"value must have shape [m], but has shape {list(value.shape)}.")
    check_tensor("edges", edges)
    if edges.ndim != 1 or len(edges) < 2 or not is_real(edges) or not bool((edges.diff() > 0).all()):
        raise ValueError("edges must be at least two ascending numbers, of shape [k + 1].")
    sigma = check_positive("sigma", sigma)
    precision = torch.promote_types(value.dtype, torch.float32)  # differences of bins vanish in half precision
    edges = edges.detach().to(value.device, precision)
    least, most = torch.finfo(precision).tiny, MAX_WIDTHS * float(edges[-1] - edges[0])
    if not bool((edges.diff() > 0).all()) or not least <= sigma <= most:
        raise ValueError(
            f"sigma must be at most {MAX_WIDTHS:g} times the range of the edges, and both have to be numbers of "
            f"{precision}, got sigma={sigma:g} and edges from {float(edges[0]):g} to {float(edges[-1]):g}."
        )
    centre = value.to(precision).clamp(float(edges[0]), float(edges[-1])).unsqueeze(-1)
    below = torch.erf((edges - centre) / (sigma * math.sqrt(2)))
    return ((below[:, 1:] - below[:, :-1]) / (below[:, -1:] - below[:, :1])).to(value.dtype)


def _check_atoms(atoms: Tensor) -> float:
    """The distance between neighbouring atoms."""
    check_tensor("atoms", atoms)
    if not is_real(atoms):
        raise TypeError(f"atoms must hold real numbers, not {atoms.dtype}.")
    if atoms.ndim != 1 or len(atoms) < 2:
        raise ValueError(f"atoms must be at least two numbers, of shape [k], but have shape {list(atoms.shape)}.")
    spacing = float(atoms[-1] - atoms[0]) / (len(atoms) - 1)
    even = torch.linspace(float(atoms[0]), float(atoms[-1]), len(atoms), dtype=atoms.dtype, device=atoms.device)
    if not spacing > 0 or not torch.allclose(atoms, even, rtol=0, atol=1e-3 * spacing):
        raise ValueError("atoms must be ascending and evenly spaced, such as torch.linspace(-10, 10, 51).")
    return spacing
