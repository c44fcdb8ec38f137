"""Factors by which ``.grad`` is scaled: given, from clipping, or inferred from how it changed."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ._checks import as_float, as_scalar, is_finite, is_number


def check_factor(factor: float | Tensor) -> float | Tensor:
    """A factor as torch takes it; or an error. A tensor is not read."""
    if not is_number(factor) or (not isinstance(factor, Tensor) and not is_finite(factor)):
        raise ValueError(f"factor must be one finite number, got {factor!r}.")
    return as_scalar(factor)


def norm_and_clip_factor(
    parameters: Iterable[Tensor], max_norm: float, norm_type: float | str
) -> tuple[Tensor, float | None]:
    """The norm of all ``.grad``, and the factor that clips it; None if the bound is infinite.

    Args:
        parameters: whose ``.grad`` is measured, without those that have none.
        max_norm: the largest norm, at least 0.
        norm_type: ``p`` of the p-norm, above 0; infinity or ``"inf"`` for the largest entry.
    """
    if not is_number(max_norm) or not max_norm >= 0:
        raise ValueError(f"max_norm must be a number of at least 0, got {max_norm!r}.")
    order = math.inf if isinstance(norm_type, str) and norm_type == "inf" else norm_type
    if isinstance(order, str) or not is_number(order) or not order > 0:
        raise ValueError(f"norm_type must be a number above 0, or infinity, got {norm_type!r}.")
    gradients = [p.grad for p in parameters if p.grad is not None]
    gradients = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    norm = torch.nn.utils.get_total_norm(gradients, as_float("norm_type", order))
    most = as_float("max_norm", max_norm)
    # inf / inf is NaN if the norm is infinite, too.
    return norm, None if most == math.inf else float((most / (norm + 1e-6)).clamp(max=1.0))


def common_factor(before: Tensor, now: Tensor, precision: torch.finfo, tolerance: float = 8) -> float | None:
    """The factor ``c`` with ``now = c · before`` to rounding; None if there is none.

    Entries are compared one by one, with a relative ``tolerance`` in units of the precision; above 8, where ``before``
    and ``now`` were computed in different ways, relative to the largest entry.

    >>> before, float32 = torch.tensor([1.0, -2.0, 0.0]), torch.finfo(torch.float32)
    >>> common_factor(before, before / 2, float32)
    0.5
    >>> common_factor(before, torch.tensor([0.5, -1.0, 1e-3]), float32) is None
    True
    """
    one, other = before.double(), now.double()
    factor = float(one @ other / (one @ one))
    if not 0 < factor < float("inf"):
        return None
    expected = one * factor
    sizes = expected.abs() if tolerance <= 8 else expected.abs().max()
    close = (other - expected).abs() <= tolerance * precision.eps * sizes + precision.tiny
    # Entries near the smallest normal number are ignored, because rounding is coarse there; one entry fits any factor.
    telling = expected.abs() > 1000 * precision.tiny
    return factor if bool(close.all()) and int(telling.sum()) >= 2 else None
