"""The autograd graph of one batch: whether it reaches the optimizer's parameters, and the gradients that it gives."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from torch import Tensor

from ._batch import EvaluatedBatch
from ._follow import target_leaves, target_warning
from ._param_group import ParamGroup
from ._warnings import warn_once
from .per_sample.linearize import (
    Linearized,
    OutputGradients,
    TracedBatch,
    fill_grad,
    linearize,
    linearize_one,
    trace_batch,
)
from .per_sample.slow import warn_slow
from .per_sample.trace import Trace, reached_leaves

UNRELATED_PREDICTION = (
    "prediction depends on none of this optimizer's parameters: it comes from another network, or from a copy (make "
    "the optimizer from the model that predicts), or reentrant checkpointing hides them (use checkpoint(..., "
    "use_reentrant=False))."
)
SWAPPED_ARGUMENTS = (
    "target depends on this optimizer's parameters but prediction does not: the arguments look swapped. The order is "
    "backward(prediction, target), where prediction is the output of the model that the optimizer was made from. (Or "
    "reentrant checkpointing hides the parameters of the prediction: use checkpoint(..., use_reentrant=False).)"
)


class BatchGraph:
    """The graph of one batch, from the prediction and target to the parameters of an optimizer.

    :meth:`trace` comes first and refuses what cannot be corrected, then :meth:`fill_grad`, then :meth:`linearize`.

    Args:
        batch: the batch.
        groups: all parameter groups of the optimizer.
        followed: the parameters of target networks.
        warned: topics of the warnings so far; those of this batch are added.
    """

    def __init__(
        self, batch: EvaluatedBatch, groups: Sequence[ParamGroup], followed: Sequence[Tensor], warned: set[str]
    ) -> None:
        self.sampled: Sequence[ParamGroup] = ()  # groups that need per-sample gradients
        self._batch = batch
        self._groups = groups
        self._followed = followed
        self._warned = warned
        self._traced = TracedBatch([batch.prediction], [Trace()])
        self._is_single = False  # whether there is one sample, whose graph needs no trace
        self._outputs: OutputGradients | None = None  # gradients of layer outputs, which fill_grad() comes across

    # ------------------------------------------------------------------------------------------------------ trace

    def trace(self, sampled: Sequence[ParamGroup], is_first: bool, has_wrappers: bool) -> None:
        """Find the owners of rows, and refuse a batch that does not depend on the parameters.

        Args:
            sampled: groups that need per-sample gradients of this batch.
            is_first: whether no step was taken yet: the graph is checked, whether or not something of it is needed.
            has_wrappers: whether ``DistributedDataParallel`` would wait for the gradients of an unrelated prediction.
        """
        self.sampled, samples = sampled, len(self._batch.prediction)
        if is_first and not sampled:
            self._trace([group for group in self._groups if group.needs_samples])
            self._refuse_swapped()
        may_be_single = samples == 1 and not is_first and not has_wrappers
        self._is_single = may_be_single and all(group.wants_matrices for group in sampled)
        if has_wrappers and not sampled and not self._holds_any(reached_leaves(self._batch.prediction)):
            raise ValueError(UNRELATED_PREDICTION)
        self._traced = self._trace([] if self._is_single else sampled)

    def _trace(self, sampled: Sequence[ParamGroup]) -> TracedBatch:
        batch = self._batch
        if not sampled:
            return TracedBatch([batch.prediction], [Trace()])
        traced = trace_batch(batch.prediction, batch.target, batch.columns)
        if not self._holds_any(traced.reached):
            self._refuse_swapped()
            raise ValueError(UNRELATED_PREDICTION)
        corrected = [group for group in self._groups if group.needs_samples]
        if batch.given_target is None:
            return traced
        leaves = target_leaves(batch, traced)
        if any(group.is_corrected for group in corrected):
            self._check_target(leaves, corrected)
        return traced if batch.is_row_loss or self._is_followed(leaves, corrected) else traced.without_target()

    def _check_target(self, leaves: set[int], corrected: Sequence[ParamGroup]) -> None:
        """Warn if the target, which depends on these leaves, comes from a network whose changes are not followed."""
        own = [p for group in self._groups for p in group.params.parameters]
        seen = [p for group in corrected for p in group.params.parameters]
        warn = target_warning(leaves, own, seen, self._followed)
        if warn is not None:
            warn_once(self._warned, warn.__name__, warn)

    def _holds_any(self, leaves: set[int], groups: Sequence[ParamGroup] | None = None) -> bool:
        """Whether one of the leaves, given by their ids, is a parameter of these groups (default: all)."""
        searched = self._groups if groups is None else groups
        return any(id(p) in leaves for group in searched for p in group.params.parameters)

    def _is_followed(self, leaves: set[int], corrected: Sequence[ParamGroup]) -> bool:
        """Whether the correction sees how one of the leaves, given by their ids, moves."""
        return self._holds_any(leaves, corrected) or any(id(p) in leaves for p in self._followed)

    def _refuse_swapped(self) -> None:
        """Raise if the target depends on the parameters and the prediction does not."""
        target = self._batch.given_target
        if target is None or self._holds_any(reached_leaves(self._batch.prediction)):
            return
        if self._holds_any(reached_leaves(target)):
            raise ValueError(SWAPPED_ARGUMENTS)

    # -------------------------------------------------------------------------------------------------- gradients

    def fill_grad(self, fills_unused: bool) -> None:
        """Add the semi-gradient of the batch to ``.grad``, as autograd does.

        Args:
            fills_unused: whether parameters get gradients that the prediction does not depend on, from other ranks.
        """
        is_complete = not self.sampled or self._is_single or fills_unused
        hidden = {} if is_complete else self._versions_of_hidden()
        if self._batch.all_entries is None:
            self._outputs = fill_grad(self._traced, self._batch.slope)
        else:
            everything, slope = self._batch.all_entries
            fill_grad(TracedBatch([everything], [Trace()]), slope)
        if hidden and hidden != self._versions_of_hidden():
            raise RuntimeError(
                "a parameter received a gradient although the graph does not show that the prediction depends on it, "
                "so it cannot be corrected. Reentrant checkpointing does this; use checkpoint(use_reentrant=False)."
            )

    def _versions_of_hidden(self) -> dict[int, tuple[int, int]]:
        """The state of ``.grad`` of every parameter that the graph of the prediction does not show."""
        hidden = [p for group in self._groups for p in group.params.parameters if id(p) not in self._traced.reached]
        return {id(p): (0, 0) if p.grad is None else (id(p.grad), p.grad._version) for p in hidden}

    def linearize(self) -> Linearized:
        """The per-sample gradients, for the groups that need them."""
        batch, params = self._batch, [group.joint for group in self.sampled]
        with ExitStack() as stack:
            for each in params:
                stack.enter_context(each.hooks_disabled())
            if self._is_single:
                found = linearize_one(batch.prediction, batch.target, params)
                if found is None:
                    self._refuse_swapped()
                    raise ValueError(UNRELATED_PREDICTION)
                if self._followed and batch.given_target is not None:
                    self._check_target(reached_leaves(batch.given_target), self.sampled)
                return found
            kept = [group.kept_samples(len(batch.prediction)) for group in self.sampled]
            found = linearize(self._traced, params, self._outputs, kept)
            again = partial(linearize, self._traced, params, self._outputs, kept)
            if "slow" not in self._warned and warn_slow(found, params, batch.prediction, again, batch.is_row_loss):
                self._warned.add("slow")
        return found
