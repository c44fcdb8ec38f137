"""The base of all optimizers: from ``backward`` to ``step``.

``backward`` linearizes the batch at the current parameters and fills ``.grad`` as ``loss.backward()`` does. ``step``
reads ``.grad``, gets the stale part of the momentum from the correction, and moves the parameters. Displacements are
measured from one linearization to the next, so that the correction is valid for any step rule.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import _options, _ranks, _state, corrections, losses
from ._batch import (
    BackwardCall,
    BatchFunction,
    EvaluatedBatch,
    evaluate_log_likelihood,
    explained_freed_graph,
    read_batch,
    warn_constant_target,
    warn_replaced_target,
)
from ._batch_graph import BatchGraph
from ._follow import extended, followable, followed_by, replacing
from ._grad_scaling import check_factor, norm_and_clip_factor
from ._param_group import ParamGroup
from ._params import check_parameters, expanded
from ._ranks import RankDiscovery, Ranks
from ._state import GroupState
from ._warnings import warn_once
from .losses import Loss
from .per_sample.gradients import Linearization, SampleGradients
from .per_sample.linearize import all_finite

# More than there are calls of backward in one step: each draws random entries of its own.
MAX_CALLS = 1 << 20


class CorrectedOptimizer(Optimizer):
    """Corrected momentum. Subclasses define the denominator."""

    # Whether the denominator is made from per-sample gradients.
    _needs_samples = False
    # Whether the denominator is a running mean of squares, which is saved.
    _has_square = True

    def __init__(self, params: Any, defaults: dict[str, Any], given: dict[str, Any]) -> None:
        self._process_group = _options.check_process_group(given.pop("process_group", "auto"))
        _options.refuse_unknown(given, defaults, type(self).__name__)
        self._reset()
        self.followed: list[Tensor] = []  # parameters of target networks
        # Called with every batch, and whether it is the first of its step; see diagnostics.
        self.watchers: list[Callable[[BackwardCall, EvaluatedBatch, bool], None]] = []
        super().__init__(expanded(params), {**defaults, **_options.DEFAULTS, **given})
        _options.refuse_unused(given, self.param_groups)

    def _reset(self) -> None:
        """Forget everything that is not saved."""
        self._groups: list[ParamGroup] = []
        self._discovery = RankDiscovery()
        self._calls: list[BackwardCall] = []  # of backward, since the last step
        self._skip_step = False
        self._warned: set[str] = set()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group. Its ``params`` can be modules. Each group is corrected separately, with its own options."""
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise TypeError("a parameter group is a dictionary with 'params', such as {'params': model.parameters()}.")
        param_group = {**param_group, "params": expanded(param_group["params"])}
        settings = {**self.defaults, **param_group}
        if isinstance(param_group["params"], list):
            check_parameters(param_group["params"], self.followed)
        _options.check(settings)
        if not _options.DEFAULTS.keys() <= param_group.keys():  # with all options it is a copy of another group
            _options.refuse_unused(param_group, [settings])
        if param_group.get("on_nonfinite", self.defaults["on_nonfinite"]) != self.defaults["on_nonfinite"]:
            raise ValueError("on_nonfinite is for the whole optimizer: a step is taken by every group or by none.")
        super().add_param_group(param_group)
        self._discovery.restart()

    def follow(self, network: nn.Module | Iterable[nn.Module | Tensor]) -> None:
        """Follow a target network: targets also change when *its* parameters move.

        Call it once, before the first ``backward``. From then on copy or average the network's parameters whenever you
        like between steps; the next ``backward`` sees how far they moved. Compute targets with the network live: not
        under ``torch.no_grad()``, and not detached. The network gets no ``.grad`` and is not optimized.

        If another network takes its place (``target_network = copy.deepcopy(network)``), call it again between steps,
        with all networks that are to be followed: their parameters must have the shapes of those before.

        With ``correction="diagonal"`` and ``"blocks"`` the network must be a copy of the optimized parameters. The
        oracle evaluates past batches with the network as it is, and needs no call.

        Args:
            network: a module, a list of modules, or parameters. Parameters of the optimizer among them are left out.

        >>> import copy, torch, unstale
        >>> model = torch.nn.Linear(2, 1)
        >>> target_network = copy.deepcopy(model)
        >>> optimizer = unstale.CorrectedSGD(model, lr=0.1)
        >>> optimizer.follow(target_network)
        >>> loss = optimizer.backward(model(torch.ones(4, 2)), 1 + 0.9 * target_network(torch.ones(4, 2)))
        >>> optimizer.step()
        >>> target_network.load_state_dict(model.state_dict())
        <All keys matched successfully>
        """
        new = followable(expanded(network), self._all_parameters())
        if self._calls:
            raise RuntimeError("follow() comes before the first backward() of a step: its batches are pending.")
        if self._has_stepped():
            self.followed = replacing(self.followed, new, "backward")
            self._warned.discard(warn_replaced_target.__name__)
            for group in self._groups:
                group.follow(followed_by(group.settings, self.param_groups, self.followed))
            return
        both = extended(self.followed, new)
        for settings in self.param_groups:
            followed_by(settings, self.param_groups, both)
        self.followed = both
        self._groups = []
        self._discovery.restart()

    # --------------------------------------------------------------------------------------------------- backward

    def backward(
        self,
        prediction: Tensor | BatchFunction,
        target: Tensor | float | None = None,
        loss: Loss | str = losses.half_squared,
        *,
        weight: Tensor | float = 1.0,
        return_weighted: bool = False,
    ) -> Tensor:
        """Fill ``.grad`` with the semi-gradient of the mean loss, and remember what the correction needs.

        Instead of ``loss(prediction - target.detach()).mean().backward()``.

        Args:
            prediction: the network's values for a batch, of shape ``[m]``, ``[m, k]`` (twin critics, ensembles, several
                heads), ``[T, B]``, ``[T, B, k]``, or any other with at least one axis; or the batch as a function that
                computes prediction and target afresh, which ``correction="oracle"`` and ``refresh`` need. Bind its data
                as default arguments.
            target: TD target of the same shape, *not* detached: the correction needs its gradient. A number stands for
                the same target everywhere; nothing else is broadcast.
            loss: elementwise loss of the residual, ``½ δ²`` by default: a name (``"half_squared"``, ``"squared"``,
                ``"mse"``, ``"huber"``, ``"smooth_l1"``), a function of :mod:`unstale.losses`, or any
                twice-differentiable function of a tensor of residuals; or a loss of whole rows ``[m, k]``, of which the
                mean is over rows: ``unstale.losses.cross_entropy`` (C51, HL-Gauss) or
                ``unstale.losses.quantile_huber()`` (QR-DQN; its target has as many rows, of any length).
            weight: factor of the loss: one per entry, one for each entry of the leading axes (``[m]`` for ``[m, k]``,
                ``[T, B]`` for ``[T, B, k]``), or a number (a loss scale).
            return_weighted: return the loss with the weights.

        Returns:
            The mean loss over all entries, without the weights, detached: importance weights change the gradient, not
            what is reported, unless ``return_weighted`` is set.
        """

        def evaluate() -> tuple[BackwardCall, EvaluatedBatch]:
            function, values, level = read_batch(prediction, target)
            number = 0
            if isinstance(loss, losses.RowLoss) and loss.seed is not None:
                number = int(self.state_of("group 0").get("step", 0)) * MAX_CALLS + len(self._calls)
            fixed = weight.detach() if isinstance(weight, Tensor) else weight
            call = BackwardCall(function, loss, fixed, number, self._ranks.rank, return_weighted)
            evaluated = call.evaluate(values, level)
            if self._needs_samples and isinstance(loss, losses.RowLoss):
                raise TypeError(
                    f"{type(self).__name__} divides by per-sample derivatives, which a loss of whole rows does not "
                    "have one by one; use CorrectedAdam."
                )
            if evaluated.given_target is None and any(group.is_corrected for group in self.ready_groups()):
                warn_once(self._warned, "constant target", warn_constant_target)
            return call, evaluated

        with explained_freed_graph("optimizer.backward()"):
            return self._take(evaluate)

    def backward_log_likelihood(
        self, log_prob: Tensor | Callable[[], Tensor], *, weight: Tensor | float = 1.0
    ) -> Tensor:
        """:meth:`backward` for classification: ``log_prob`` is the log-likelihood of each sample's right class.

        The loss is ``-mean log_prob``, and the Taylor term the paper's ``mean ∇f ∇fᵀ``. Shapes of ``log_prob`` and
        ``weight`` are as for :meth:`backward`: ``[m]``, ``[T, B]`` and so on.
        """
        with explained_freed_graph("optimizer.backward_log_likelihood()"):
            return self._take(lambda: evaluate_log_likelihood(log_prob, weight))

    def _take(self, evaluate: Callable[[], tuple[BackwardCall, EvaluatedBatch]]) -> Tensor:
        """Take a batch as :meth:`_take_batch` does. One that is refused or skipped decides no plan."""
        groups = self.ready_groups()
        unplanned = [group for group in groups if group.is_corrected and group.plan is None]
        try:
            return self._take_batch(evaluate, groups)
        finally:
            if unplanned and not self._calls:
                for group in unplanned:
                    group.forget_plan()
                self._discovery.restart()

    def _take_batch(
        self, evaluate: Callable[[], tuple[BackwardCall, EvaluatedBatch]], groups: list[ParamGroup]
    ) -> Tensor:
        """Evaluate a batch, add its gradient to ``.grad``, and keep what the step needs of it. Returns its loss."""
        self._ranks.check_join()
        with self._ranks.agree("backward") as vote:
            call, batch = evaluate()
            if math.isfinite(batch.check):
                self._check_call(call, groups)
                if self._discovery.are_compared:
                    chosen, graph = self._begin_batch(batch, groups)
            else:
                self._refuse(
                    f"the loss of this batch is {float(batch.check)}: a prediction, target or weight is not finite"
                )
                vote.skips = True
            vote.values = [len(batch.prediction), self._discovery.are_compared]
        if vote.skips:
            self._skip_step = True
            return batch.loss
        if not all(are_compared for _, are_compared, *_ in vote.received):
            self._compare_ranks(groups, sum(int(samples) for samples, *_ in vote.received))
            with self._ranks.agree("batch"):
                chosen, graph = self._begin_batch(batch, groups)
        for group in groups:
            group.settle_scaling()
        before = [group.gradient_before_hooks() for group in groups]
        graph.fill_grad(self._ranks.fills_unused)
        gradients: dict[ParamGroup, tuple[SampleGradients, ...]] = {}
        hessians: dict[ParamGroup, Tensor] = {}
        if graph.sampled:
            with self._ranks.agree("gradients") as vote:
                found = graph.linearize()
                hessians = {group: group.hessian(batch) for group in graph.sampled if group.needs_hessian}
                if not found.is_finite or not all_finite([batch.curvature, *hessians.values()]):
                    self._refuse("a derivative of this batch's loss, predictions or targets is not finite")
                    vote.skips = True
            if vote.skips:
                self._skip_step = True
                return batch.loss
            gradients = dict(zip(graph.sampled, found.gradients, strict=True))
        self._calls.append(call)
        for group, selection, gradient in zip(groups, chosen, before, strict=True):
            group.add_batch(batch, gradients.get(group), hessians.get(group), selection, gradient)
        if self._ranks.averages_gradients:
            self._average_gradients(groups)
        for watcher in self.watchers:
            watcher(call, batch, len(self._calls) == 1)
        return batch.loss

    def _compare_ranks(self, groups: list[ParamGroup], samples: int) -> None:
        """Plan the corrections for batches of so many samples on all ranks, and raise if the ranks differ."""
        states = [self.state_of(f"group {number}") for number in range(len(groups))]
        with self._ranks.agree("plan") as vote:
            for group, state in zip(groups, states, strict=True):
                group.make_ready(state, samples)
            steps = [float(state.get("step", 0)) for state in states]
            moments = [state[name] for state in states for name in ("mu", "square") if name in state]
            vote.values = self._ranks.fingerprint(
                [type(self).__name__, steps], self.param_groups, [*self.followed, *moments]
            )
        _ranks.check_same(vote.received)
        self._discovery.set_compared()

    def _begin_batch(
        self, batch: EvaluatedBatch, groups: list[ParamGroup]
    ) -> tuple[list[corrections.Selection | None], BatchGraph]:
        """Choose what each group needs of a batch, trace its graph, and begin the step; or raise."""
        chosen = [
            group.choose(self.state_of(f"group {number}"), len(batch.prediction), len(self._calls))
            for number, group in enumerate(groups)
        ]
        sampled = [
            group for group, rows in zip(groups, chosen, strict=True) if group.needs_samples and rows is not None
        ]
        graph = BatchGraph(batch, groups, self.followed, self._warned)
        graph.trace(sampled, not self._has_stepped(), self._ranks.has_wrappers)
        for group in groups:
            if self._calls and group.has_begun:
                group.check_followed()
            else:
                group.begin_step()
        return chosen, graph

    def _check_call(self, call: BackwardCall, groups: list[ParamGroup]) -> None:
        if self._calls and all(group.was_cleared for group in groups):
            self._forget_batches()  # not by our zero_grad
        if call.function is None and any(group.needs_replay for group in groups):
            raise TypeError(
                "correction='oracle' and refresh evaluate past batches again: give backward() the batch as a function "
                "that returns (prediction, target), not the tensors."
            )
        if self._ranks.has_wrappers and any(group.needs_batch and group.params.has_hooks for group in groups):
            raise RuntimeError(
                "parameters in DistributedDataParallel have gradient hooks, whose effect cannot be told from its "
                "averaging: pass process_group=, and the optimizer averages after them."
            )

    def _refuse(self, why: str) -> None:
        """Raise, or mark the step as one to skip."""
        if self.defaults["on_nonfinite"] == "raise":
            raise FloatingPointError(
                f"{why}, or training has diverged. Parameters and optimizer state are unchanged. Pass "
                "on_nonfinite='skip' to skip and count such steps."
            )
        self._skip_step = True

    # ----------------------------------------------------------------------------------- gradients before the step

    @torch.no_grad()
    def scale_grad_(self, factor: float | Tensor) -> None:
        """Multiply every ``.grad`` by ``factor``, and the pending batches with it.

        For a gradient that was scaled by other means (a clipping function, mixed precision's unscaling) the factor is
        inferred where it is certain: if all entries of a group's ``.grad`` changed by one factor, and the batch has
        several samples. This method makes it explicit.

        Args:
            factor: a finite number, or a tensor of one (which is not read, so that training does not wait for it).
        """
        self._scale_grad(check_factor(factor))

    def _scale_grad(self, factor: float | Tensor) -> None:
        for group in self._groups:
            group.settle_scaling()
        for parameter in self._all_parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        for group in self._groups:
            group.record_scaling(factor)

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float | str = 2.0) -> Tensor:
        """:func:`torch.nn.utils.clip_grad_norm_` over all parameters, with the pending batches scaled alike.

        Args:
            max_norm: the largest norm, at least 0; infinity only measures.
            norm_type: ``p`` of the p-norm, above 0; infinity, or ``"inf"`` as torch has it, for the largest entry.

        Returns:
            The norm of all gradients before clipping.
        """
        norm, factor = norm_and_clip_factor(self._all_parameters(), max_norm, norm_type)
        if factor is not None:
            self._scale_grad(factor)
        return norm

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and with them the batches that no step has used yet."""
        if set_to_none:  # torch's own way, without its bookkeeping
            for settings in self.param_groups:
                for parameter in settings["params"]:
                    parameter.grad = None
        else:
            super().zero_grad(set_to_none)
        self._forget_batches()

    def _forget_batches(self) -> None:
        for group in self._groups:
            group.forget_batches()
        self._calls = []
        self._skip_step = False

    # ------------------------------------------------------------------------------------------------------- step

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the parameters by the corrected momentum.

        Args:
            closure: called first, with gradients enabled; it should call :meth:`backward` itself.

        Returns:
            What ``closure`` returns.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = self.ready_groups()
        gradients: list[Tensor] = []
        with self._ranks.agree("step") as vote:
            if not self._skip_step:
                if not self._calls and any(group.needs_batch for group in groups):
                    raise RuntimeError(
                        "step() came before backward(): call optimizer.backward(prediction, target) first. A gradient "
                        "left by loss.backward() alone does not say how it becomes stale."
                    )
                gradients = self._finite_gradients(groups)
            vote.skips = self._skip_step
            vote.values = self._ranks.step_fingerprint(self.param_groups, gradients, self._all_parameters())
        self._skip_step = vote.skips
        if not self._skip_step and self._ranks.needs_average(vote.received, self._all_parameters()):
            self._average_gradients(groups)
            gradients = self._finite_gradients(groups)
        if self._skip_step:
            shared = self.state_of("shared")
            shared["skipped"] = shared.get("skipped", 0) + 1
        else:
            self._move(groups, gradients)
        self._discovery.settle()
        self._forget_batches()
        return loss

    def _average_gradients(self, groups: list[ParamGroup]) -> None:
        for group in groups:
            group.settle_scaling()
            group.params.average_gradient(self._ranks.mean_)
            group.record_scaling(1.0)  # an average is no clipping

    def _finite_gradients(self, groups: list[ParamGroup]) -> list[Tensor]:
        gradients = [group.gradient() for group in groups]
        # A sum is not finite if a part is not. Running means of squares would never recover from an infinite one.
        sums = [gradient.dot(gradient) if self._has_square else gradient.sum() for gradient in gradients]
        if not all(map(math.isfinite, sums)):
            what = "squares" if self._has_square else "entries"
            self._refuse(f"a gradient is not finite, or so large that the sum of its {what} is not")
        return gradients

    def _move(self, groups: list[ParamGroup], gradients: list[Tensor]) -> None:
        # All directions first: an oracle must see the parameters of every group where they were.
        directions = [
            self._group_direction(group, self.state_of(f"group {number}"), gradient)
            for number, (group, gradient) in enumerate(zip(groups, gradients, strict=True))
        ]
        for group, direction in zip(groups, directions, strict=True):
            if direction is not None:
                group.params.move(direction, group.option("lr"), group.option("weight_decay"))

    def _group_direction(self, group: ParamGroup, state: GroupState, gradient: Tensor) -> Tensor | None:
        """The direction of a group's step; None for a group that was added since ``backward``."""
        if not group.is_ready:
            return None
        group.settle_scaling()
        momentum = group.corrected_momentum(state, gradient, self._calls)
        return self._direction(state, group.settings, momentum, gradient, group.whole_batch())

    @abstractmethod
    def _direction(
        self,
        state: GroupState,
        settings: dict[str, Any],
        momentum: Tensor,
        gradient: Tensor,
        batch: Linearization | None,
    ) -> Tensor:
        """The corrected momentum, divided by the optimizer's denominator."""

    # ------------------------------------------------------------------------------------------- groups and ranks

    def ready_groups(self) -> list[ParamGroup]:
        """The parameter groups with what they keep between ``backward`` and ``step``."""
        if self._discovery.is_needed():
            self._find_ranks()
        self._groups += self._make_groups(self.param_groups, len(self._groups))
        return self._groups

    def _find_ranks(self) -> None:
        has_state = bool(self._groups) and (bool(self._calls) or self._has_stepped())
        if self._discovery.update(self._process_group, self._all_parameters(), has_state):
            self._groups = []
        for group in self._groups:
            group.set_ranks(self._ranks)

    def _make_groups(self, all_settings: list[dict[str, Any]], first: int = 0) -> list[ParamGroup]:
        return [
            ParamGroup(settings, self._needs_samples, followed_by(settings, all_settings, self.followed), self._ranks)
            for settings in all_settings[first:]
        ]

    def _all_parameters(self) -> list[Tensor]:
        return [p for settings in self.param_groups for p in settings["params"]]

    @property
    def _ranks(self) -> Ranks:
        return self._discovery.ranks

    def _has_stepped(self) -> bool:
        """Whether a step was taken; steps that were skipped do not count."""
        return any(state for name, state in cast(dict[str, Any], self.state).items() if name != "shared")

    # ------------------------------------------------------------------------------------------------------ state

    @property
    def momentum_beta(self) -> float:
        """``β`` of the first parameter group, as it is at the next step."""
        group, state = self.ready_groups()[0], self.state_of("group 0")
        return group.beta_at(float(state.get("step", 0)) + 1, state.get("plan"))

    def __repr__(self) -> str:
        """The settings of all groups, and what was decided about them at the first batch."""
        lines = super().__repr__().splitlines()
        chosen = []
        for number, group in enumerate(self._groups):
            plan = group.plan or self.state_of(f"group {number}").get("plan")
            if plan is not None:
                name = f"group {number}" if len(self._groups) > 1 else "chosen"
                chosen.append(f"    {name}: {corrections.describe(plan, group.given_beta)}")
        return "\n".join([*lines[:-1], *chosen, lines[-1]])

    def state_of(self, name: str) -> Any:
        """The state under a name: ``"group 0"`` and so on (a :class:`GroupState`), or ``"shared"``."""
        return cast(dict[str, Any], self.state)[name]

    def state_dict(self) -> dict[str, Any]:
        """The state as torch's optimizers save it, with a header that :meth:`load_state_dict` checks."""
        return {**super().state_dict(), "unstale": self._header()}

    def _header(self) -> _state.Header:
        return _state.make_header(type(self).__name__, self.param_groups, self.followed, self._ranks)

    def load_state_dict(self, state_dict: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Load a state of the same kind of optimizer over the same parameters.

        The whole state is checked first. One that does not belong here, or is damaged, raises :class:`ValueError` and
        leaves the optimizer unchanged.

        Every rank of ``torch.distributed`` has a state of its own. A list of the states of all ranks, or the state of a
        single process, can be loaded on another number of ranks (a reservoir's only if that divides its generations).
        Load on all ranks, or on none.

        Past batches of ``correction="oracle"`` and ``refresh`` are functions and cannot be saved: what they left in the
        momentum stays, uncorrected, with a warning.
        """
        states = state_dict if isinstance(state_dict, list) and state_dict else [state_dict]
        self._find_ranks()
        with _state.refuse_unexpected_errors():
            names = [name for name in self.defaults if name in self.param_groups[0]]
            settings = _state.read_settings(states, self._header(), self.param_groups, names)
            groups = [group.saved(self._has_square) for group in self._make_groups(settings)]
            own, lacks_batches = _state.read_own_state(cast(list[dict[str, Any]], states), groups, self._ranks)
        super().load_state_dict(own)
        self.ready_groups()  # with the settings that were loaded
        self.defaults["on_nonfinite"] = self.param_groups[0]["on_nonfinite"]
        if lacks_batches:
            _state.warn_lost_batches()

    def __getstate__(self) -> dict[str, Any]:
        if self._ranks.size > 1:
            raise TypeError("an optimizer of several ranks cannot be copied or pickled; save its state_dict().")
        is_alone = self._process_group is None
        return {**super().__getstate__(), "followed": self.followed, "_process_group": None if is_alone else "auto"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._reset()
        self.followed = self.__dict__.get("followed", [])
        self._process_group = self.__dict__.get("_process_group", "auto")
        self.watchers = self.__dict__.get("watchers", [])
        _state.forget_past_batches(cast(dict[str, Any], self.state).values())
