"""Trains a batch of runs of one shape with the library's own momentum and corrections."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstale.corrections import Selection
from unstale.momentum import correct, growing_beta, limited, running_mean_
from unstale.per_sample.gradients import Linearization

from .. import methods, problems
from ..checkpoint import Checkpoint
from ..experiment import Run
from ..precision import matmul_precision
from ..records import Record
from .architectures import build_network
from .conventions import loss_function, oracle_weight_scale, uses_mean_gradients
from .corrections import build_correction, make_plan
from .data import Feed, Samples, to_device
from .measurements import MEASUREMENTS, ParameterHistory, TrustStatistics
from .network import ForwardPass
from .phase_timer import CORRECTION, PASSES, make_phase_timer
from .schedules import averaging_decay, lr_factor
from .settings_check import check_settings
from .step_timer import StepTimer
from .torch_compile import can_compile, compile_once
from .traces import update_trace_

# A run whose mean squared TD error exceeds this has diverged: true values and rewards are of order 1 to 10.
DIVERGENCE_THRESHOLD = 1e6
CPU_CACHE_ELEMENTS = 1 << 14  # per run, so that the rows of several runs fit into the cache
EVALUATIONS_PER_RUN = 50  # besides the one before the first step
# Evaluating a network with this many multiply-adds per row costs as much as hundreds of steps. Such networks are
# evaluated every twentieth of the run, within these bounds (the paper evaluates every 2,500 steps), and measurements
# look back on fewer steps, because the parameters of each are stored.
LARGE_NETWORK_MACS = 1e5
MIN_EVAL_INTERVAL, MAX_EVAL_INTERVAL = 1000, 2500
MAX_HISTORY_LARGE_NETWORK = 20
EVAL_CHUNK_IMAGES = 2048  # images per forward pass when errors are measured
# Attributes that a step reads and writes, besides the batches: the content of a checkpoint.
STATE = (
    "theta",
    "displacement",
    "mu",
    "second_moment",
    "assumed_displacement",
    "memory",
    "target_theta",
    "mean_weight",
    "averaged_theta",
    "trace",
    "trace_decay",
    "step_number",
    "diverged_at",
)

Progress = Callable[[int], None]  # called with the number of steps made since the last call


class Training:
    """A batch of runs that differ in seed and α only, and in β unless ``methods.has_one_beta``.

    On a CPU a run's numbers are bitwise independent of the other runs in its batch: no operation depends on how many
    runs there are. (A single matrix is multiplied by another routine than a batch of matrices, so that a single run is
    trained twice there.)

    Every tensor that a step reads or writes stays at its address, the step number included, so that steps can be
    captured as a CUDA graph.
    """

    def __init__(self, runs: Sequence[Run], device: str) -> None:
        first = runs[0]
        check_settings(first)
        self.num_requested = len(runs)
        self.runs = runs = list(runs) * (2 if len(runs) == 1 and device == "cpu" else 1)
        self.method = methods.METHODS[first.method]
        self.problem = problems.load(first.problem)
        dtype = torch.float64 if first.precision == "float64" else torch.float32
        self.network = build_network(first, self.problem, device)
        self.loss = loss_function(first, self.network.objective)
        self.uses_mean_gradients = uses_mean_gradients(first, self.problem)
        self.is_large = self.network.macs > LARGE_NETWORK_MACS
        self.plan = make_plan(first, self.network) if methods.has_growing_memory(first) else None
        self.correction = build_correction(first, self.network, self.plan)
        self.is_oracle = self.method.correction == "oracle"
        horizon = methods.horizon(first) if self.is_oracle or first.measure else 1
        if self.is_large and not self.is_oracle:
            horizon = min(horizon, MAX_HISTORY_LARGE_NETWORK)
        self.feed = Feed(self.problem, [run.seed for run in runs], first.batch, first.n_step, horizon, device, dtype)

        def per_run(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        self.beta = per_run([run.beta for run in runs])
        self.decay = first.beta if methods.has_one_beta(first) else self.beta
        assert isinstance(self.decay, Tensor) or {run.beta for run in runs} == {self.decay}
        if self.plan is not None:
            self.decay = torch.zeros_like(self.beta)  # written at every step
        # The sum of the weights of all gradients in the momentum, if its memory grows.
        self.mean_weight = torch.zeros_like(self.beta) if self.plan is not None else None
        self.trust = methods.trust_bound(first)
        # Undamped momentum adds gradients without the factor 1-β.
        self.lr = per_run([run.alpha / (1 if run.damped else 1 - run.beta) for run in runs]).unsqueeze(-1)
        initial = [self.network.initial(run.seed, dtype, run.initialization) for run in runs]
        self.theta = torch.stack(initial).to(device)
        self.displacement = torch.zeros_like(self.theta)
        self.mu = torch.zeros_like(self.theta)
        self.second_moment = torch.zeros_like(self.theta) if self.method.adam else None
        self.epsilon = torch.full_like(self.lr, methods.ADAM_EPSILON)
        self.assumed_displacement = torch.zeros_like(self.theta) if self.method.literal else None
        self.memory: dict[str, Any] = {}
        self.backward_passes = 0
        self.target_theta = self.theta.clone() if self.method.target_every else None
        self.averaged_theta = self.theta.clone() if first.weight_average else None
        self.trace = torch.zeros_like(self.theta) if first.trace_decay else None
        self.trace_decay = torch.zeros_like(self.lr) if first.trace_decay else None  # γλ; 0 after an episode
        self.step_number = torch.zeros((), dtype=torch.int64, device=device)
        self.diverged_at = torch.full((len(runs),), -1, dtype=torch.int64, device=device)
        if self.is_oracle:
            self.horizon = horizon
            self.ages = torch.arange(horizon - 1, -1, -1, device=device).repeat_interleave(first.batch)
            cached = CPU_CACHE_ELEMENTS // self.network.max_saved_elements // first.batch * first.batch
            self.oracle_chunk = max(first.batch, cached) if device == "cpu" else len(self.ages)
            self.age_weight = (1 - self.beta).unsqueeze(-1) * self.beta.unsqueeze(-1) ** self.ages
        self.history = ParameterHistory(self.theta, horizon) if first.measure else None
        self.phase_timer = make_phase_timer(self.theta.device) if "phases" in first.measure else None
        measures_trust = "trust" in first.measure and self.correction is not None
        self.trust_statistics = TrustStatistics(self.theta) if measures_trust else None
        self.value_sets = {
            name: (to_device(values.state, device, dtype), values.value.to(device, dtype), values.floor)
            for name, values in self.problem.values().items()
        }

    def run(self, progress: Progress = lambda steps: None, checkpoint: Checkpoint | None = None) -> list[Record]:
        """Train to the end and return one record per run.

        Args:
            progress: called with the number of steps made; may raise to stop the training.
            checkpoint: resumed from if it exists, with the same numbers as without interruption; saved to when due.
        """
        with matmul_precision(self.runs[0].precision):
            return self._run(progress, checkpoint)

    def _run(self, progress: Progress, checkpoint: Checkpoint | None) -> list[Record]:
        steps = self.runs[0].steps
        interval = max(1, steps // EVALUATIONS_PER_RUN)
        if self.is_large:
            interval = min(steps, MAX_EVAL_INTERVAL, max(MIN_EVAL_INTERVAL, steps // 20))
        timer = StepTimer(self.theta.device)
        at, measured = self._resume(checkpoint, timer)
        advance = make_stepper(self, at[-1] if at else 0)
        if at:
            progress(at[-1] * self.num_requested)
        while not at or at[-1] < steps:
            done = at[-1] if at else 0
            count = min(interval, steps - done)
            self.feed.fill(count)
            if not at:
                at, measured = [0], [self.measure()]
            timer.run(advance, count)
            at.append(done + count)
            measured.append(self.measure())
            progress(count * self.num_requested)
            if checkpoint is not None and checkpoint.is_due and at[-1] < steps:
                checkpoint.save(self._state() | {"at": at, "measured": measured, "timer": timer.state()})
        return self._records(np.array(at), measured, timer.estimate(steps))

    def _state(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in STATE}
        state["history"] = None if self.history is None else self.history.ring
        state["trust"] = None if self.trust_statistics is None else self.trust_statistics.sums
        return state

    def _resume(self, checkpoint: Checkpoint | None, timer: StepTimer) -> tuple[list[int], list[dict[str, Tensor]]]:
        """Load the checkpoint, if there is one, and return the steps of its measurements and the measurements."""
        saved = checkpoint.load(str(self.theta.device)) if checkpoint is not None else None
        if saved is None or not saved.keys() >= {*STATE, "history", "trust", "timer"}:  # an older format
            return [], []
        for name in STATE:
            setattr(self, name, saved[name])
        if self.history is not None:
            self.history.ring = saved["history"]
        if self.trust_statistics is not None:
            self.trust_statistics.sums = saved["trust"]
        for before, after in pairwise(saved["at"]):
            self.feed.fill(after - before)  # draw the batches again, in chunks of the same size
        for _ in range(saved["at"][-1] - saved["at"][-2]):
            self.feed.advance()
        timer.load_state(saved["timer"])
        return saved["at"], saved["measured"]

    @torch.no_grad()
    def step(self) -> None:
        """Make one step of every run on the feed's current batch."""
        rows_before = self.network.rows_backward
        if self.plan is not None:
            self._grow_memory(self.plan["max_memory"])
        momentum, residual = self._oracle_momentum() if self.is_oracle else self._corrected_momentum()
        if self.history is not None:
            self.history.append(self.theta, self.step_number)
        self._apply_step(momentum, residual)
        self.feed.advance()
        self.backward_passes = (self.network.rows_backward - rows_before) // self.runs[0].batch

    def _grow_memory(self, max_memory: float) -> None:
        assert isinstance(self.decay, Tensor) and self.mean_weight is not None
        self.decay.copy_(growing_beta((self.step_number + 1).double(), max_memory).expand_as(self.decay))
        running_mean_(self.mean_weight, torch.ones_like(self.mean_weight), self.decay)

    def _corrected_momentum(self) -> tuple[Tensor, Tensor]:
        """Return the momentum to move by, and the residuals of the current batch."""
        samples = self.feed.current()
        with self._timed(PASSES):
            forward, residual = self._evaluate(samples)
            slope, curvature = self._derivatives(residual)
            batch, gradient = self._batch(samples, forward, slope, curvature)
        self._elementwise(Training._update_moments, gradient)
        if self.correction is None:
            return self.mu, residual
        displacement = self.displacement if self.assumed_displacement is None else self.assumed_displacement
        with self._timed(CORRECTION):
            eta = self.correction.update(self.memory, batch, displacement, self.decay)
            corrected = correct(self.mu, eta, self.trust)
        if self.trust_statistics is not None:
            self.trust_statistics.update(corrected)
        return corrected.momentum, residual

    def _timed(self, phase: str) -> AbstractContextManager[None]:
        return nullcontext() if self.phase_timer is None else self.phase_timer.phase(phase)

    def _oracle_momentum(self) -> tuple[Tensor, Tensor]:
        """Return the momentum of all recent batches at the current parameters, and the newest batch's residuals."""
        weight = torch.where(self.ages <= self.step_number, self.age_weight, 0.0)
        if self.runs[0].convention == "text":
            weight *= oracle_weight_scale(self.beta, self.step_number, self.horizon).unsqueeze(-1)
        momentum = torch.zeros_like(self.theta)
        for index, samples in self.feed.recent().chunks(self.oracle_chunk):
            forward, residual = self._evaluate(samples)
            slope, _ = self._derivatives(residual)
            states = self.network.state_rows(forward, slope.shape[-1])
            momentum += self.network.gradient(self.theta, states, slope * weight[..., index]).total
        if self.second_moment is not None:  # of the newest batch alone, as in Adam
            newest = self.network.last_rows(states, self.runs[0].batch)
            gradient = self.network.gradient(self.theta, newest, slope[..., -self.runs[0].batch :]).total
            self._update_second_moment(gradient)
        return momentum, residual[..., -self.runs[0].batch :]

    def _elementwise(self, function: Callable[..., None], *tensors: Tensor | tuple[Tensor, ...] | None) -> None:
        """Call a method that works element-wise on the parameters.

        It is compiled for large networks on a GPU, so that memory is read and written once instead of once per
        operation.
        """
        compiles = self.theta.is_cuda and self.is_large and can_compile()
        (compile_once(function) if compiles else function)(self, *tensors)

    def _update_moments(self, gradient: Tensor) -> None:
        running_mean_(self.mu, gradient, self.decay)
        self._update_second_moment(gradient)

    def _update_second_moment(self, gradient: Tensor) -> None:
        if self.second_moment is not None:
            running_mean_(self.second_moment, gradient.square(), methods.ADAM_BETA_2)

    def _derivatives(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return first and second derivative of the batch's mean loss with respect to the residuals."""
        _, slope, curvature = self.loss(residual)
        return slope / self.runs[0].batch, curvature / self.runs[0].batch

    def _evaluate(self, samples: Samples) -> tuple[ForwardPass, Tensor]:
        """Return the forward pass (of states only, if there is a target network) and the residuals."""
        if self.target_theta is None or samples.discount is None:
            forward = self.network.forward(self.theta, samples.rows)
            return forward, samples.residual(forward.values)
        is_due = self.step_number % self.method.target_every == 0
        self.target_theta.copy_(torch.where(is_due, self.theta, self.target_theta))
        states, successors = samples.rows.chunk(2, -2)
        forward = self.network.forward(self.theta, states)
        return forward, samples.residual(forward.values, self.network.values(self.target_theta, successors))

    def _batch(
        self, samples: Samples, forward: ForwardPass, slope: Tensor, curvature: Tensor
    ) -> tuple[Linearization | None, Tensor]:
        """Return the per-sample gradients that the correction needs, if any, and the gradient of the batch."""
        count = slope.shape[-1]
        if self.trace is not None:
            return None, self._trace_gradient(samples, forward, slope)
        if self.correction is not None:
            selection = self.correction.choose(self.memory, count, device=self.theta.device)
        else:
            selection = Selection(None, 1.0) if self.method.linearizes else None
        if selection is None or selection.rows is not None:
            gradient = self.network.gradient(self.theta, self.network.state_rows(forward, count), slope).total
            if selection is None or selection.rows is None:
                return None, gradient
            slope, curvature = slope * selection.inverse_probability, curvature * selection.inverse_probability
            return self._selected(selection.rows, samples, forward, slope, curvature), gradient
        if self.uses_mean_gradients:
            gradient = self.network.gradient(self.theta, self.network.state_rows(forward, count), slope).total
            return self.network.linearize_mean(self.theta, forward, samples.discount, curvature), gradient
        linear = self.network.linearize(self.theta, forward, samples.discount, slope, curvature)
        gradient = linear.semi_gradient()
        if self.method.second_order:
            hessian = self.network.hessian(self.theta, samples.rows[..., :count, :], slope)
            linear = Linearization(linear.pieces, slope, curvature, hessian)
        return linear.scaled(selection.inverse_probability), gradient

    def _selected(
        self, chosen: Tensor, samples: Samples, forward: ForwardPass, slope: Tensor, curvature: Tensor
    ) -> Linearization:
        """Return the per-sample gradients of the chosen samples."""
        discount = None if samples.discount is None else samples.discount.index_select(-1, chosen)
        rows = chosen if discount is None else torch.cat([chosen, chosen + slope.shape[-1]])
        slope, curvature = (x.index_select(-1, chosen) for x in (slope, curvature))
        return self.network.linearize(self.theta, self.network.select_rows(forward, rows), discount, slope, curvature)

    def _trace_gradient(self, samples: Samples, forward: ForwardPass, slope: Tensor) -> Tensor:
        """Add the current state's gradient to the eligibility trace ``e``, and return ``slope · e``."""
        assert self.trace is not None and self.trace_decay is not None and samples.discount is not None
        states = self.network.state_rows(forward, 1)
        gradient = self.network.gradient(self.theta, states, torch.ones_like(slope)).total
        update_trace_(self.trace, self.trace_decay, gradient)
        torch.mul(samples.discount, self.runs[0].trace_decay, out=self.trace_decay)
        return slope * self.trace

    def _apply_step(self, momentum: Tensor, residual: Tensor) -> None:
        """Move the parameters of healthy runs; freeze a diverged run and mark the step at which it diverged.

        Numbers per run are computed here: compiled code would compute them again for every parameter.
        """
        is_healthy = (residual.square().mean(-1) < DIVERGENCE_THRESHOLD) & (self.diverged_at < 0)
        lr, steps = self._learning_rate(), self.step_number + 1
        adam = averaging = None
        if self.second_moment is not None:
            bias_correction = (1 - methods.ADAM_BETA_2 ** steps.double()).rsqrt().to(lr.dtype).expand_as(lr)
            mean_weight = 1 - self.beta**steps if self.mean_weight is None else self.mean_weight
            adam = (bias_correction, mean_weight.unsqueeze(-1))
        if self.averaged_theta is not None:
            averaging = averaging_decay(self.runs[0].weight_average, self.step_number).to(lr.dtype)
        self._elementwise(Training._move, momentum, is_healthy.unsqueeze(-1), lr, adam, averaging)
        newly_diverged = ~is_healthy & (self.diverged_at < 0)
        self.diverged_at.copy_(torch.where(newly_diverged, self.step_number, self.diverged_at))
        self.step_number += 1

    def _move(
        self,
        momentum: Tensor,
        is_healthy: Tensor,
        lr: Tensor,
        adam: tuple[Tensor, Tensor] | None,
        averaging: Tensor | None,
    ) -> None:
        """Move the parameters, and their average.

        Args:
            momentum: ``[runs, n]``.
            is_healthy: ``[runs, 1]``; the others do not move.
            lr: ``[runs, 1]``.
            adam: bias correction of the denominator, and the weight of all gradients in the momentum, ``[runs, 1]``
                each; ``None`` without a denominator.
            averaging: decay of the averaged parameters, if they are averaged.
        """
        if adam is None:
            torch.mul(momentum, -lr, out=self.displacement)
        else:
            self._divide_by_second_moment(momentum, *adam)
            self.displacement *= -lr
        self.displacement.masked_fill_(~is_healthy, 0.0)
        if self.assumed_displacement is not None:
            torch.mul(momentum, -lr, out=self.assumed_displacement)
        self.theta += self.displacement
        if self.averaged_theta is not None:
            assert averaging is not None
            running_mean_(self.averaged_theta, self.theta, averaging)

    def _divide_by_second_moment(self, momentum: Tensor, bias_correction: Tensor, mean_weight: Tensor) -> None:
        """Write Adam's step at a learning rate of 1, without its sign, to ``self.displacement``.

        Few passes over the parameters: those of a large network are read from memory each time.
        """
        assert self.second_moment is not None
        denominator = torch.addcmul(self.epsilon, self.second_moment.sqrt(), bias_correction)
        torch.div(momentum, denominator, out=self.displacement)
        self.displacement /= mean_weight
        if self.correction is not None or self.is_oracle:
            limited(self.displacement)

    def _learning_rate(self) -> Tensor:
        """Return the learning rates of this step, ``[runs, 1]``."""
        first = self.runs[0]
        if first.lr_schedule == "constant":
            return self.lr
        return self.lr * lr_factor(first.lr_schedule, self.step_number, first.steps)

    @torch.no_grad()
    def measure(self) -> dict[str, Tensor]:
        """Return errors and the measurements that the runs ask for, ``[runs]`` each; ``inf`` for diverged runs."""
        measured: dict[str, Tensor] = {}
        for name, (state, value, floor) in self.value_sets.items():
            measured |= {name + kind: error - floor for kind, error in self._errors(state, value).items()}
        for name in self.runs[0].measure:
            measured |= MEASUREMENTS[name](self)
        is_healthy = self.diverged_at < 0
        return {
            name: torch.where(is_healthy, x, torch.inf).nan_to_num(torch.inf, torch.inf) for name, x in measured.items()
        }

    def _errors(self, state: Tensor, value: Tensor) -> dict[str, Tensor]:
        """Return the mean errors over all states, ``[runs]`` each; images are evaluated in chunks to save memory."""
        theta = self.theta if self.averaged_theta is None else self.averaged_theta
        chunk = len(state) if state.is_floating_point() else EVAL_CHUNK_IMAGES
        parts = [self.network.errors(theta, *part) for part in zip(state.split(chunk), value.split(chunk), strict=True)]
        return {kind: torch.cat([part[kind] for part in parts], -1).mean(-1) for kind in parts[0]}

    def _records(self, at: np.ndarray, measured: list[dict[str, Tensor]], seconds: float) -> list[Record]:
        curves = {name: torch.stack([m[name] for m in measured], -1).double().cpu().numpy() for name in measured[0]}
        diverged = self.diverged_at.tolist()
        vectors = 1 if self.correction is None else 2  # momentum and last displacement
        vectors += (self.averaged_theta is not None) + (self.trace is not None)
        kept = count_elements(self.memory) // len(self.runs) + vectors * self.network.size
        return [
            Record(
                run=run,
                at=at,
                curves={name: curve[i] for name, curve in curves.items()},
                diverged_at=diverged[i] if diverged[i] >= 0 else None,
                parameters=self.network.size,
                numbers_kept=kept,
                backward_passes=self.backward_passes,
                seconds=seconds / self.num_requested,
            )
            for i, run in enumerate(self.runs[: self.num_requested])
        ]


def count_elements(state: Any) -> int:
    """Return the number of tensor elements in nested dicts and lists."""
    if isinstance(state, Tensor):
        return state.numel()
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    return sum(count_elements(part) for part in parts)


def make_stepper(training: Training, steps_done: int) -> Callable[[int], None]:
    """Return a function that makes a given number of steps: eagerly, or by replaying a CUDA graph on a GPU."""
    if training.theta.is_cuda and training.phase_timer is None:  # a graph has no phases
        from .cuda_graphs import STEPS_PER_GRAPH, GraphStepper

        period = 1 if training.correction is None else training.correction.period
        return GraphStepper(training.step, steps_done, math.lcm(STEPS_PER_GRAPH, period))

    def advance(count: int) -> None:
        for _ in range(count):
            training.step()

    return advance
