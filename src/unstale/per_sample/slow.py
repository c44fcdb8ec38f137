"""Warnings about per-sample gradients that are slow, with a factor that is measured on the spot."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._flat_params import FlatParams
from .._warnings import user_stacklevel
from .linearize import Linearized

# Fewer columns that are linearized one by one are what was asked for, such as twin critics or some heads.
MIN_SLOW_COLUMNS = 16
# Samples times the rows that each of them combines.
MIN_SLOW_MIXING = 1 << 16
# Plain passes are repeated for as long as what they are compared with took, so that other work on the machine slows
# down both alike; but not for longer than this.
MAX_PLAIN_SECONDS = 0.2


class SlowGradientsWarning(UserWarning):
    """Per-sample gradients take many backward passes: they are exact, but slow."""


def warn_slow(
    found: Linearized,
    groups: Sequence[FlatParams],
    prediction: Tensor,
    linearize: Callable[[], Any],
    is_row_loss: bool,
) -> bool:
    """Warn if the per-sample gradients of a batch need many passes, with the reason, the measured cost and a way out.

    Args:
        found: the per-sample gradients.
        groups: the parameters.
        prediction: of the batch, ``[m]``.
        linearize: finds the per-sample gradients again, to measure how long it takes.
        is_row_loss: whether the columns are the entries of a distribution.

    Returns:
        Whether there was a reason.
    """
    if found.irregular:
        reason, advice = _irregular(found.irregular, groups, len(prediction))
    elif found.columns >= MIN_SLOW_COLUMNS:
        reason, advice = _columns(found.columns, is_row_loss)
    elif found.mixed * len(prediction) >= MIN_SLOW_MIXING:
        reason, advice = _mixed(found.mixed, len(prediction))
    else:
        return False
    factor = relative_time(linearize, prediction, [p for group in groups for p in group.parameters if p.requires_grad])
    warnings.warn(
        f"{reason} The result is exact, but for this batch it took {factor:.1f} times as long as a plain backward "
        f"pass. {advice}",
        SlowGradientsWarning,
        stacklevel=user_stacklevel(),
    )
    return True


def _irregular(irregular: dict[int, str], groups: Sequence[FlatParams], samples: int) -> tuple[str, str]:
    named = [(tuple(p.shape), irregular[id(p)]) for group in groups for p in group.parameters if id(p) in irregular]
    shapes = ", ".join(str(list(size)) for size, _ in named[:4]) + (", …" if len(named) > 4 else "")
    reasons = ", ".join(sorted({why for _, why in named}))
    return (
        f"per-sample gradients of {len(named)} parameter tensor(s) of shape {shapes} come from batched vector-Jacobian "
        f"products, because the rows of samples cannot be separated there ({reasons}): {samples} backward passes, one "
        "per sample.",
        "Use layers and operations whose rows can be separated ('When it is slow' in docs/how-it-works.md), or give "
        "these parameters a group of their own with correction='none'.",
    )


def _columns(columns: int, is_row_loss: bool) -> tuple[str, str]:
    reason = f"per-sample gradients of a prediction with {columns} columns take a few backward passes per column."
    if is_row_loss:
        return reason, (
            "Use loss.sampled(), such as unstale.losses.cross_entropy.sampled(): an unbiased estimate from one entry "
            "per row, in one pass for all columns."
        )
    return (
        reason,
        "Predict fewer columns, or give every column a network of its own, such as the members of an ensemble.",
    )


def _mixed(rows: int, samples: int) -> tuple[str, str]:
    return (
        f"each of the {samples} samples of this batch combines the gradients of {rows} rows, as with λ-returns, whose "
        "targets depend on all later values.",
        "Use smaller batches (the work grows with their square), unstale.targets.n_step, or returns that are computed "
        "once and are constant.",
    )


def relative_time(run: Callable[[], Any], prediction: Tensor, parameters: Sequence[Tensor]) -> float:
    """How long ``run`` takes, relative to one backward pass from the prediction to the parameters."""

    def plain() -> Any:
        weights = torch.ones_like(prediction)
        return torch.autograd.grad(prediction, parameters, weights, retain_graph=True, allow_unused=True)

    plain()  # a warm-up; run() has just had its own
    seconds = _seconds(run, prediction.device)
    passes, total = 0, 0.0
    while passes == 0 or total < min(seconds, MAX_PLAIN_SECONDS):
        total += _seconds(plain, prediction.device)
        passes += 1
    return seconds * passes / total


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start
