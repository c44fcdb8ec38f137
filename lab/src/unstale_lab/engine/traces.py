"""Accumulating eligibility traces: TD(λ) on transitions in temporal order."""

from __future__ import annotations

from torch import Tensor

from .. import problems
from ..errors import UserError
from ..experiment import Run

TRACE_METHODS = ("momentum", "adam")


def check_traces(run: Run) -> None:
    """Check that a run with eligibility traces is one that they are defined for.

    Raises:
        UserError: if it has batches of more than one transition, n-step targets, a problem whose transitions are not in
            temporal order, or a method other than ``TRACE_METHODS``.
    """
    given = f"trace_decay {run.trace_decay}"
    if not 0 <= run.trace_decay <= 1:
        raise UserError(f"{given}: give a number from 0 to 1")
    if run.trace_decay == 0:
        return
    if run.batch != 1 or run.n_step != 1:
        raise UserError(
            f"{given} needs batch 1 and n_step 1, got {run.batch} and {run.n_step}: traces follow one stream of "
            "transitions"
        )
    if run.problem not in problems.ONLINE_PROBLEMS:
        raise UserError(
            f"{given} needs transitions in temporal order, which the problem {run.problem} does not have; choose "
            f"{' or '.join(sorted(problems.ONLINE_PROBLEMS))}"
        )
    if run.method not in TRACE_METHODS:
        raise UserError(f"{given} cannot be combined with the method {run.method}; use {' or '.join(TRACE_METHODS)}")


def update_trace_(trace: Tensor, decay: Tensor, gradient: Tensor) -> Tensor:
    """``e ← γ λ e + ∇V``, in place.

    Args:
        trace: ``e [runs, n]``.
        decay: ``γ λ [runs, 1]`` of the transition before this one, 0 if it ended an episode.
        gradient: ``∇V [runs, n]`` of the current state.
    """
    return trace.mul_(decay).add_(gradient)
