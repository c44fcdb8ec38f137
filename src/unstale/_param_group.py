"""One parameter group between ``backward`` and ``step``: its pending batches and its correction."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor

from . import corrections
from ._batch import BackwardCall, EvaluatedBatch
from ._checks import as_scalar
from ._flat_params import FlatParams
from ._follow import check_live, check_still
from ._grad_scaling import common_factor
from ._ranks import Ranks
from ._state import GroupState, SavedGroup
from ._warnings import user_stacklevel
from .momentum import MIN_MEMORY, correct, growing_beta, running_mean_
from .per_sample.gradients import Batch, Linearization, SampleGradients, SummedGradient, merged, split_at
from .per_sample.jacobian import vector_jacobian_products
from .per_sample.linearize import linearize, trace_batch


class FewSlotsWarning(UserWarning):
    """A reservoir has too few slots for its ``β`` and the size of batches."""


class AmbiguousScalingWarning(UserWarning):
    """``.grad`` changed in a way that can be clipping or another loss."""


class ParamGroup:
    """The transient state of a group from ``backward`` to ``step``. Nothing here is saved."""

    def __init__(
        self,
        settings: dict[str, Any],
        optimizer_needs_samples: bool,
        followed: Sequence[Tensor] = (),
        ranks: Ranks | None = None,
    ) -> None:
        self.settings = settings
        self._ranks = ranks or Ranks()
        # Blocks of a given size are cut in the group's own order.
        self._vectors_first = settings["correction"] != "blocks"
        self.params = FlatParams(settings["params"], self._vectors_first)
        self.follow(followed)
        kind = corrections.CLASSES.get(settings["correction"])
        self.is_corrected = kind is not None
        self._needs_whole_batch = optimizer_needs_samples
        self.needs_samples = optimizer_needs_samples or (kind is not None and kind.needs_per_sample_gradients)
        self.needs_replay = kind is not None and (kind.needs_replay or bool(settings["refresh"]))
        self.needs_displacement = kind is not None and kind.needs_displacement
        self.needs_batch = self.is_corrected or self.needs_samples
        self.needs_hessian = settings["second_order"]
        self.plan: corrections.Plan | None = None
        self.expects_first_samples = False  # whose size may change the plan
        self._correction: corrections.Correction | None = None
        self._pending: list[Batch] = []  # what the correction has chosen of each batch
        self._whole: list[Linearization] = []  # all samples of each batch, if the optimizer needs them
        self._factors: list[Any] = []  # by which the gradient of each call of backward was scaled since
        self._samples = 0  # in the pending batches
        self._point: Tensor | None = None
        self._left: Tensor | None = None  # .grad as backward() left it, or a sample of it
        # Vectors that are reused: a large allocation costs as much as the arithmetic.
        self._gradient_buffer: Tensor | None = None
        self._free: Tensor | None = None
        self._moved: Tensor | None = None
        self._scratch: Tensor | None = None

    def follow(self, followed: Sequence[Tensor]) -> None:
        """Follow these parameters; or, in the place of others, counterparts of the same shapes."""
        # The parameters and those of followed networks, whose displacements change residuals.
        self.joint = FlatParams(self.settings["params"], self._vectors_first, followed) if followed else self.params

    @property
    def given_beta(self) -> float | None:
        """``β``, which a scheduler may have changed; None if it grows with training."""
        beta = self.settings["beta"] if "beta" in self.settings else self.settings["betas"][0]
        if beta is None and self.settings["correction"] not in corrections.LONG_MEMORY:
            return corrections.DEFAULT_BETA
        return beta

    def beta_at(self, step: float, saved_plan: corrections.Plan | None = None) -> float:
        """``β`` of a step, counted from 1."""
        beta, plan = self.given_beta, self.plan or saved_plan
        if beta is not None:
            return beta
        return growing_beta(step, MIN_MEMORY if plan is None else plan["max_memory"])

    @property
    def _precision(self) -> torch.finfo:
        """That of the coarsest parameter."""
        return max((torch.finfo(p.dtype) for p in self.params.parameters), key=lambda info: info.eps)

    @property
    def is_ready(self) -> bool:
        """Whether it has the batch that its step needs; False for a group that was added after ``backward``."""
        return bool(self._factors) or not self.needs_batch

    # --------------------------------------------------------------------------------------------------- backward

    def option(self, name: str) -> float | Tensor:
        """A number among the options."""
        return as_scalar(self.settings[name])

    def set_ranks(self, ranks: Ranks) -> None:
        """Ranks of the same number, found again."""
        self._ranks = ranks

    @property
    def has_begun(self) -> bool:
        """Whether the point where the parameters were is known, if the correction needs it."""
        return self._point is not None or not self.needs_displacement

    def begin_step(self) -> None:
        """Remember where the parameters are when the first batch of a step is linearized."""
        self.params.check_unchanged()
        if self.needs_displacement:
            check_live(self._followed)
            self._point, self._free = self.joint.point(out=self._free), None

    def check_followed(self) -> None:
        """Raise if a followed network was changed since the first batch of the step."""
        if self._followed and self._point is not None:
            now = self.joint.point()[self.params.size :]
            check_still(self._point[self.params.size :], now, "backward")

    @property
    def _followed(self) -> list[Tensor]:
        return self.joint.parameters[len(self.params.parameters) :]

    def make_ready(self, state: GroupState, samples: int) -> None:
        """Plan and build the correction, unless that is done already.

        Args:
            state: of this group.
            samples: size of a batch, on all ranks together.
        """
        if self.is_corrected and self._correction is None:
            self.expects_first_samples = "plan" not in state
            self.plan = state.get("plan") or self._make_plan(samples)
            self._correction = self._build(self.plan)

    def forget_plan(self) -> None:
        """Let the next batch decide: the one that decided was refused."""
        self.plan = self._correction = None

    def choose(self, state: GroupState, samples: int, call: int) -> corrections.Selection | None:
        """What of the next batch is needed; None if nothing is.

        Args:
            state: of this group, which is ready.
            samples: size of the batch.
            call: number of the batch within its step.
        """
        chosen = None
        if self.is_corrected:
            assert self._correction is not None
            chosen = self._correction.choose(state.get("memory", {}), samples, call, self.params.device)
        return corrections.Selection(None, 0.0) if chosen is None and self._needs_whole_batch else chosen

    def kept_samples(self, batch: int) -> int:
        """How many samples are stored in the same form as those of a batch."""
        plan = None if self.plan is None else self.plan["reservoir"]
        return batch if plan is None else max(batch, corrections.ReservoirPlan(*plan).slots // self._ranks.size)

    @property
    def wants_matrices(self) -> bool:
        """Whether per-sample gradients are materialized anyway."""
        return self.plan is not None and self.plan["correction"] in ("dense", "blocks", "diagonal")

    def _build(self, plan: corrections.Plan) -> corrections.Correction:
        followed, part = self.joint.size - self.params.size, (self._ranks.rank, self._ranks.size)
        return corrections.build(plan, self.settings, self.params.lengths, followed, part)

    def saved(self, has_square: bool) -> SavedGroup:
        """What a state of this group has to look like."""
        layout = corrections.Layout(self.params.size, self.joint.size - self.params.size, self.params.dtype)
        return SavedGroup(
            settings=self.settings,
            layout=layout,
            lengths=self.params.lengths,
            device=self.params.device,
            has_square=has_square,
            needs_replay=self.needs_replay,
            needs_displacement=self.needs_displacement,
        )

    def _slot_numbers(self) -> int:
        """An estimate of the numbers per slot. A prediction and a target of two networks take half as many of each."""
        own = corrections.slot_numbers(self.params.parameters)
        return (own + corrections.slot_numbers(self._followed)) // 2 if self._followed else own

    def _check_bytes(self, batch: Linearization) -> None:
        """Plan again if the first samples take much more or less room than was estimated from the parameters."""
        self.expects_first_samples = False
        estimate = self._slot_numbers()
        numbers = sum(t.numel() for piece in batch.pieces for t in piece.tensors) // batch.samples
        with self._ranks.agree("plan") as vote:  # ranks whose batches differ in size may store samples differently
            vote.values = [numbers, batch.samples]
        numbers, samples = int(max(each[0] for each in vote.received)), int(sum(each[1] for each in vote.received))
        is_automatic = self.plan is not None and self.plan["reservoir"] is not None and self.settings["slots"] is None
        if is_automatic and not estimate / 2 < numbers < 2 * estimate:
            with self._ranks.agree("plan"):  # one of them may have too little memory
                self.plan = self._make_plan(samples, numbers)
            self._correction = self._build(self.plan)

    def _make_plan(self, samples: int, slot_numbers: int | None = None) -> corrections.Plan:
        sizes = corrections.Sizes(
            parameters=self.params.size,
            followed=self.joint.size - self.params.size,
            slot_numbers=slot_numbers or self._slot_numbers(),
            batch=samples,
            device=self.params.device.type,
            itemsize=self.params.dtype.itemsize,
        )
        plan = corrections.make_plan(self.settings, self.given_beta, sizes, self._ranks.size)
        needed = corrections.bytes_needed(plan, self.settings, sizes, self.params.lengths)
        if plan["correction"] in ("window", "reservoir"):
            needed //= self._ranks.size  # whose slots are divided
        corrections.check_memory(needed, self.settings.get("memory_limit"), self.params.device, plan)
        advice = corrections.too_few_slots(plan, samples)
        is_asked_for = self.settings["slots"] is not None or self.given_beta is not None
        if advice and is_asked_for:
            warnings.warn(advice, FewSlotsWarning, stacklevel=user_stacklevel())
        return plan

    def add_batch(
        self,
        batch: EvaluatedBatch,
        gradients: tuple[SampleGradients, ...] | None,
        hessian: Tensor | None,
        selection: corrections.Selection | None,
        before: Tensor | None,
    ) -> None:
        """Keep what is needed of a batch until the step.

        Args:
            batch: the batch.
            gradients: its per-sample gradients, if they are needed.
            hessian: of :meth:`hessian`, if it is needed.
            selection: what the correction has chosen.
            before: what was in ``.grad``, if hooks may have changed what the batch added to it.
        """
        self._factors.append(1.0)
        self._samples += len(batch.prediction)
        if selection is not None and self.needs_batch:
            self._keep(batch, gradients, hessian, selection, before)

    def _keep(
        self,
        batch: EvaluatedBatch,
        gradients: tuple[SampleGradients, ...] | None,
        hessian: Tensor | None,
        selection: corrections.Selection,
        before: Tensor | None,
    ) -> None:
        whole = self._summed_gradient(batch) if gradients is None else self._linearization(batch, gradients, hessian)
        if isinstance(whole, Linearization) and self.expects_first_samples:
            self._check_bytes(whole)
        if before is not None:
            expected = whole if batch.all_entries is None else self._summed_gradient(batch)
            whole = self._scaled_by_hooks(whole, expected.semi_gradient(), before)
        if self._needs_whole_batch:
            assert isinstance(whole, Linearization)
            self._whole.append(whole)
        if self.is_corrected and selection.inverse_probability:
            self._pending.append(_chosen(whole, selection))
        self._left = self.params.gradient_sample()

    def gradient_before_hooks(self) -> Tensor | None:
        """What is in ``.grad`` before autograd adds to it, if hooks may change what it adds."""
        return self.params.gradient() if self.needs_batch and self.params.has_hooks else None

    def _scaled_by_hooks(self, batch: Batch, gradient: Tensor, before: Tensor) -> Batch:
        """The batch, scaled as hooks on the parameters scaled its gradient, if that is certain."""
        added = self.params.gradient() - before
        factor = common_factor(gradient, added, self._precision, tolerance=1000)
        if factor is None or abs(factor - 1) <= 1000 * self._precision.eps:
            return batch
        self._factors[-1] = factor
        return batch.scaled(factor)

    @property
    def was_cleared(self) -> bool:
        """Whether the gradients of the pending batches were set to None or to zero since."""
        if all(p.grad is None for p in self.params.parameters):
            return True
        now = self.params.gradient_sample()
        if self._left is None:  # nothing was chosen
            return not bool(now.any())
        return bool(self._left.any()) and not bool(now[self._left != 0].any())

    def forget_batches(self) -> None:
        self._pending.clear()
        self._whole.clear()
        self._factors = []
        self._samples = 0
        self._point = self._left = None

    def hessian(self, batch: EvaluatedBatch) -> Tensor:
        """``Σ_k slope_k ∇²f_k``, ``[n, n]``."""
        return _hessian(batch, self.params)

    def _linearization(
        self, batch: EvaluatedBatch, gradients: tuple[SampleGradients, ...], hessian: Tensor | None
    ) -> Linearization:
        slope, curvature = (x.to(self.params.device, self.params.dtype) for x in (batch.slope, batch.curvature))
        if self._followed:
            gradients = split_at(gradients, self.params.size)
        return Linearization(gradients, slope, curvature, hessian, self.joint.size - self.params.size)

    def _summed_gradient(self, batch: EvaluatedBatch) -> SummedGradient:
        return SummedGradient(self.params.gradient_of(*batch.for_grad))

    # ------------------------------------------------------------------------------------------------------- step

    def gradient(self) -> Tensor:
        """``.grad`` of all parameters, ``[n]``. Valid until the next call."""
        self._gradient_buffer = self.params.gradient(out=self._gradient_buffer)
        return self._gradient_buffer

    def record_scaling(self, factor: Tensor | float) -> None:
        """Scale the pending batches by ``factor``, as ``.grad`` was scaled."""
        if self._left is not None:
            self._scale_pending(factor)
            self._left = self.params.gradient_sample()

    def settle_scaling(self) -> None:
        """Scale the pending batches as ``.grad`` was scaled since it was last looked at, if that is certain."""
        if self._left is not None:
            now = self.params.gradient_sample()
            if not torch.equal(self._left, now):
                self._scale_pending(self._inferred_scale(self._left, now))
                self._left = now

    def _scale_pending(self, factor: Tensor | float) -> None:
        if not isinstance(factor, float) or factor != 1.0:
            self._pending = [batch.scaled(factor) for batch in self._pending]
            self._whole = [batch.scaled(factor) for batch in self._whole]
            self._factors = [before * factor for before in self._factors]

    def whole_batch(self) -> Linearization | None:
        """All samples of the pending batches; None unless the optimizer needs them."""
        return cast(Linearization, merged(self._whole)) if self._whole else None

    def _inferred_scale(self, left: Tensor, now: Tensor) -> float:
        """By how much ``.grad`` was scaled (clipping, unscaling), if that is certain; 1 otherwise."""
        if not self._pending and not self._whole:
            return 1.0  # nothing was chosen that would have to be scaled
        scale = common_factor(left, now, self._precision)
        if scale is None:
            return 1.0
        if self._samples == 1:
            # One text for all steps, so that Python shows it once.
            warnings.warn(
                "all gradients changed by one factor since backward(). With a single sample this can be clipping or "
                "another loss of the same prediction; it is taken as the latter. If it is clipping or scaling, use "
                "optimizer.clip_grad_norm_() or optimizer.scale_grad_() instead.",
                AmbiguousScalingWarning,
                stacklevel=user_stacklevel(),
            )
            return 1.0
        return scale

    def corrected_momentum(self, state: GroupState, gradient: Tensor, calls: list[BackwardCall]) -> Tensor:
        """Update the momentum ``μ`` with a gradient, and return ``μ̂``: ``μ`` without its stale part ``η``.

        Args:
            state: of this group; empty at its first step.
            gradient: ``.grad`` of all parameters, ``[n]``.
            calls: of ``backward`` since the last step.
        """
        if not state:
            state["mu"] = torch.zeros_like(gradient)
            state["step"] = torch.zeros((), dtype=torch.float64)
            state["bounded"] = torch.zeros((), device=gradient.device)
            state["memory"] = {}
        if self.plan is not None:
            state["plan"] = self.plan
        state["step"] += 1
        beta = self.beta_at(float(state["step"]))
        momentum = running_mean_(state["mu"], gradient, beta)
        if not self.is_corrected:  # as torch.optim.Adam has it, also where a scheduler changes β
            state["mean_weight"] = 1 - beta ** float(state["step"])
            return momentum
        state["mean_weight"] = beta * state.get("mean_weight", 0.0) + (1 - beta)
        eta = self._ranks.mean_(self._eta(state, beta, calls))
        # A correction without a Taylor expansion (the oracle) needs no bound.
        is_bounded = self.needs_displacement and self.settings["trust"] is not None
        trust = self.option("trust") if is_bounded else None
        momentum, state["mu_norm"], state["eta_norm"], kept = correct(momentum, eta, trust, out=self._scratch)
        if kept is not None:
            state["bounded"] += kept < 1
        if self.settings["recursion"] == "literal":
            state["literal"] = momentum * -self.option("lr")
        return momentum

    def _eta(self, state: GroupState, beta: float, calls: list[BackwardCall]) -> Tensor:
        """``η`` of this rank. Batches that are evaluated again may fail on one rank alone."""
        with self._ranks.agree("replay") if self.needs_replay else nullcontext():
            return self._updated_eta(state, beta, calls)

    def _updated_eta(self, state: GroupState, beta: float, calls: list[BackwardCall]) -> Tensor:
        """Update the correction with the parameters' displacement and the new batch, and return ``η``."""
        assert self._correction is not None
        batch = merged(self._pending) if self._pending else None
        replay = None
        if self.needs_replay:
            # A group that was added between two calls of backward knows of the later ones alone.
            scaled_calls = list(zip(calls[-len(self._factors) :], self._factors, strict=True))

            def replay() -> Batch:
                return merged([self._replayed(call).scaled(scale) for call, scale in scaled_calls])

        return self._correction.update(state["memory"], batch, self._displacement(state), beta, replay)

    def _displacement(self, state: GroupState) -> Tensor:
        """``d``, how far the parameters, and those of followed networks, moved since the last linearization."""
        if self._scratch is None or self._moved is None:
            self._moved = torch.empty(self.joint.size, dtype=self.params.dtype, device=self.params.device)
            self._scratch = self._moved[: self.params.size] if self._followed else self._moved
        if self._point is None:
            return self._moved.zero_()
        displacement = torch.sub(self._point, state.get("anchor", self._point), out=self._moved)
        self._free, state["anchor"] = state.get("anchor"), self._point
        return state.get("literal", displacement) if self.settings["recursion"] == "literal" else displacement

    def _replayed(self, call: BackwardCall) -> Batch:
        batch = call.evaluate_again()
        if not self.needs_samples:
            return self._summed_gradient(batch)
        with self.joint.hooks_disabled():
            found = linearize(trace_batch(batch.prediction, batch.target, batch.columns), [self.joint])
        return self._linearization(batch, found.gradients[0], self.hessian(batch) if self.needs_hessian else None)


def _chosen(batch: Batch, selection: corrections.Selection) -> Batch:
    """The chosen samples, with the weight of all."""
    if selection.rows is not None:
        assert isinstance(batch, Linearization)
        batch = batch.select(selection.rows)
    return batch if selection.inverse_probability == 1 else batch.scaled(selection.inverse_probability)


def _hessian(batch: EvaluatedBatch, params: FlatParams) -> Tensor:
    """``Σ_k slope_k ∇²f_k``, the part of the Taylor term that is usually left out."""
    trainable = [p for p in params.parameters if p.requires_grad]
    where = torch.cat(
        [torch.arange(s.start, s.stop) for p, s in zip(params.parameters, params.spans, strict=True) if p.requires_grad]
    )
    prediction, slope = batch.for_grad
    with torch.enable_grad():
        first = torch.autograd.grad(
            prediction,
            trainable,
            slope.to(prediction.dtype),
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        flat = torch.cat([part.flatten() for part in first])
    whole = torch.zeros(params.size, params.size, dtype=params.dtype, device=params.device)
    if flat.requires_grad:
        identity = torch.eye(len(flat), dtype=flat.dtype, device=flat.device)
        rows = vector_jacobian_products(flat, trainable, identity)
        parts = [
            torch.zeros(len(flat), p.numel()) if r is None else r.flatten(1)
            for p, r in zip(trainable, rows, strict=True)
        ]
        square = torch.cat([part.detach().to(whole) for part in parts], 1)
        whole[where.unsqueeze(1), where] = square
    return whole
