"""Runs of one shape, stepped together with the library's own momentum and corrections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unstale.momentum import correct
from unstale.running import mean_
from unstale.samples import Batch, Linearization

from .. import problems
from ..checkpoint import Checkpoint
from ..experiment import Run
from ..precision import products
from ..records import Record
from . import methods
from .architectures import network_of
from .compiling import can_compile, compiled
from .data import Feed, Samples, moved
from .instruments import INSTRUMENTS, Recent, TrustLog
from .network import Pass
from .stopwatch import Stopwatch

# A run whose mean squared TD error exceeds this has diverged: true values and rewards are of order 1 to 10.
DIVERGED = 1e6
CACHED = 1 << 14  # numbers a run: some runs' stay in a cache together
MEASUREMENTS = 50  # along a run, besides the one before the first step
# Measuring a network of so many multiply-adds a row costs as much as hundreds of steps: it waits for a thousand, and
# for a twentieth of the run, but no longer than the paper's 2,500. Instruments look back on few of its steps: the
# parameters of each are kept.
LARGE, RARELY, RARELIEST, RECENT = 1e5, 1000, 2500, 20
# All that a step reads and writes, besides the batches.
STATE = (
    "theta",
    "displacement",
    "mu",
    "square",
    "believed",
    "memory",
    "target",
    "step_number",
    "diverged_at",
)
AT_ONCE = 2048  # pictures looked at together when errors are measured


Progress = Callable[[int], None]  # told of steps as they are made


class Training:
    """A batch of runs that differ in seed, α and, unless ``methods.has_one_beta``, β alone.

    On a CPU a run's numbers are the same to the last bit in whatever company it is stepped: no operation depends on how
    many runs there are. (One matrix is multiplied by another routine than several are, so one alone gets a twin there.)

    Everything a step reads and writes stays where it is in memory, the number of the step included: on a GPU, steps
    are recorded once as a CUDA graph and replayed.
    """

    def __init__(self, runs: Sequence[Run], device: str) -> None:
        first = runs[0]
        self.asked = len(runs)
        self.runs = runs = list(runs) * (2 if len(runs) == 1 and device == "cpu" else 1)
        self.method = methods.METHODS[first.method]
        self.problem = problems.load(first.problem)
        dtype = torch.float64 if first.precision == "float64" else torch.float32
        self.network = network_of(first, self.problem, device)
        self.is_large = self.network.work > LARGE
        self.correction = methods.build(first, self.network)
        self.is_oracle = self.method.correction == "oracle"
        horizon = methods.horizon(first) if self.is_oracle or first.measure else 1
        if self.is_large and not self.is_oracle:
            horizon = min(horizon, RECENT)
        self.feed = Feed(self.problem, [run.seed for run in runs], first.batch, first.n_step, horizon, device, dtype)

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        self.beta = column([run.beta for run in runs])
        self.decay = first.beta if methods.has_one_beta(first) else self.beta
        assert isinstance(self.decay, Tensor) or {run.beta for run in runs} == {self.decay}
        self.rate = column([run.alpha / (1 if run.damped else 1 - run.beta) for run in runs]).unsqueeze(-1)
        self.theta = torch.stack([self.network.initial(run.seed, dtype) for run in runs]).to(device)
        self.displacement = torch.zeros_like(self.theta)
        self.mu = torch.zeros_like(self.theta)
        self.square = torch.zeros_like(self.theta) if self.method.adam else None
        self.epsilon = torch.full_like(self.rate, methods.EPSILON)
        self.believed = torch.zeros_like(self.theta) if self.method.literal else None
        self.memory: dict[str, Any] = {}
        self.backward_passes = 0
        self.target = self.theta.clone() if self.method.target_every else None
        self.step_number = torch.zeros((), dtype=torch.int64, device=device)
        self.diverged_at = torch.full((len(runs),), -1, dtype=torch.int64, device=device)
        if self.is_oracle:
            self.ages = torch.arange(horizon - 1, -1, -1, device=device).repeat_interleave(first.batch)
            # A CPU is quick as long as what it works on stays in its cache.
            room = CACHED // self.network.widest // first.batch * first.batch
            self.at_once = max(first.batch, room) if device == "cpu" else len(self.ages)
            self.age_weight = (1 - self.beta).unsqueeze(-1) * self.beta.unsqueeze(-1) ** self.ages
        self.recent = Recent(self.theta, horizon) if first.measure else None
        self.trust_log = TrustLog(self.theta) if "trust" in first.measure and self.correction is not None else None
        self.value_sets = {
            name: (moved(held.state, device, dtype), held.value.to(device, dtype), held.floor)
            for name, held in self.problem.values().items()
        }

    def run(self, progress: Progress = lambda steps: None, checkpoint: Checkpoint | None = None) -> list[Record]:
        """Train to the end. ``progress`` is told of steps as they are made, and may raise to stop. What was saved as a
        checkpoint is gone on from, and the numbers are the same as if nothing had happened."""
        with products(self.runs[0].precision):
            return self._run(progress, checkpoint)

    def _run(self, progress: Progress, checkpoint: Checkpoint | None) -> list[Record]:
        steps = self.runs[0].steps
        chunk = max(1, steps // MEASUREMENTS)
        if self.is_large:
            chunk = min(steps, RARELIEST, max(RARELY, steps // 20))
        watch = Stopwatch(self.theta.device)
        at, measured = self._resume(checkpoint, watch)
        advance = stepper(self, at[-1] if at else 0)
        if at:
            progress(at[-1] * self.asked)
        while not at or at[-1] < steps:
            done = at[-1] if at else 0
            count = min(chunk, steps - done)
            self.feed.fill(count)
            if not at:
                at, measured = [0], [self.measure()]
            watch.time(advance, count)
            at.append(done + count)
            measured.append(self.measure())
            progress(count * self.asked)
            if checkpoint is not None and checkpoint.is_due and at[-1] < steps:
                checkpoint.save(self._state() | {"at": at, "measured": measured, "watch": watch.state()})
        return self._records(np.array(at), measured, watch.seconds_of(steps))

    def _state(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in STATE}
        state["recent"] = None if self.recent is None else self.recent.ring
        state["trust"] = None if self.trust_log is None else self.trust_log.sums
        return state

    def _resume(self, checkpoint: Checkpoint | None, watch: Stopwatch) -> tuple[list[int], list[dict[str, Tensor]]]:
        """Where the runs are, and what was measured on the way."""
        saved = checkpoint.load(str(self.theta.device)) if checkpoint is not None else None
        if saved is None:
            return [], []
        for name in STATE:
            setattr(self, name, saved[name])
        if self.recent is not None:
            self.recent.ring = saved["recent"]
        if self.trust_log is not None:
            self.trust_log.sums = saved["trust"]
        for before, after in pairwise(saved["at"]):
            self.feed.fill(after - before)  # batches are drawn again, in the same portions
        for _ in range(saved["at"][-1] - saved["at"][-2]):
            self.feed.advance()
        watch.load_state(saved["watch"])
        return saved["at"], saved["measured"]

    @torch.no_grad()
    def step(self) -> None:
        """One step of every run, on the feed's present batch."""
        rows_before = self.network.rows_backward
        momentum, residual = self._oracle() if self.is_oracle else self._corrected()
        if self.recent is not None:
            self.recent.remember(self.theta, self.step_number)
        self._in_one_pass(Training._move, momentum, residual)
        self.feed.advance()
        self.backward_passes = (self.network.rows_backward - rows_before) // self.runs[0].batch

    def _corrected(self) -> tuple[Tensor, Tensor]:
        """The momentum to move by, and the residuals of the present batch."""
        samples = self.feed.present()
        seen, residual = self._evaluate(samples)
        slope, curvature = self._derivatives(residual)
        batch = self._batch(samples, seen, slope, curvature)
        gradient = batch.semi_gradient()
        self._in_one_pass(Training._average, gradient)
        if self.correction is None:
            return self.mu, residual
        last_move = self.displacement if self.believed is None else self.believed
        eta = self.correction.update(self.memory, batch, last_move, self.decay)
        corrected = correct(self.mu, eta, self.method.trust)
        if self.trust_log is not None:
            self.trust_log.note(corrected)
        return corrected.momentum, residual

    def _oracle(self) -> tuple[Tensor, Tensor]:
        """Every recent batch at today's parameters: the gradient of one long batch, and nothing to correct."""
        weight = torch.where(self.ages <= self.step_number, self.age_weight, 0.0)
        momentum = torch.zeros_like(self.theta)
        for some, samples in self.feed.recent().parts(self.at_once):
            seen, residual = self._evaluate(samples)
            slope, _ = self._derivatives(residual)
            states = self.network.of_states(seen, slope.shape[-1])
            momentum += self.network.gradient(self.theta, states, slope * weight[..., some]).total
        if self.square is not None:  # of the newest batch alone, as Adam has it
            newest = self.network.newest(states, self.runs[0].batch)
            self._square(self.network.gradient(self.theta, newest, slope[..., -self.runs[0].batch :]).total)
        return momentum, residual[..., -self.runs[0].batch :]

    def _in_one_pass(self, work: Callable[..., None], *tensors: Tensor) -> None:
        """What is done to each parameter alone. On a GPU it is compiled, for a large network: then it reads and writes
        memory once, and not once for every operation."""
        compiles = self.theta.is_cuda and self.is_large and can_compile()
        (compiled(work) if compiles else work)(self, *tensors)

    def _average(self, gradient: Tensor) -> None:
        """Into momentum and, for Adam, into the mean square."""
        mean_(self.mu, gradient, self.decay)
        self._square(gradient)

    def _square(self, gradient: Tensor) -> None:
        if self.square is not None:
            mean_(self.square, gradient.square(), methods.BETA_2)

    def _derivatives(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Slope and curvature of the mean loss of a batch."""
        _, slope, curvature = self.network.head.loss(residual)
        return slope / self.runs[0].batch, curvature / self.runs[0].batch

    def _evaluate(self, samples: Samples) -> tuple[Pass, Tensor]:
        """A forward pass, of states alone where their successors have a network of their own; and the residuals."""
        if self.target is None or samples.discount is None:
            seen = self.network.forward(self.theta, samples.rows)
            return seen, samples.residual(seen.values)
        fresh = self.step_number % self.method.target_every == 0
        self.target.copy_(torch.where(fresh, self.theta, self.target))
        states, successors = samples.rows.chunk(2, -2)
        seen = self.network.forward(self.theta, states)
        return seen, samples.residual(seen.values, self.network.values(self.target, successors))

    def _batch(self, samples: Samples, seen: Pass, slope: Tensor, curvature: Tensor) -> Batch:
        if self.correction is None and not self.method.linearizes:
            return self.network.gradient(self.theta, self.network.of_states(seen, slope.shape[-1]), slope)
        linear = self.network.linearize(self.theta, seen, samples.discount, slope, curvature)
        if not self.method.second_order:
            return linear
        hessian = self.network.hessian(self.theta, samples.rows[..., : slope.shape[-1], :], slope)
        return Linearization(linear.pieces, slope, curvature, hessian)

    def _move(self, momentum: Tensor, residual: Tensor) -> None:
        """Move the runs that are well; a diverged one stays where it is, marked with the step it diverged at."""
        is_well = (residual.square().mean(-1) < DIVERGED) & (self.diverged_at < 0)
        self._displace(momentum)
        self.displacement.masked_fill_(~is_well.unsqueeze(-1), 0.0)
        if self.believed is not None:
            torch.mul(momentum, -self.rate, out=self.believed)
        self.theta += self.displacement
        newly = ~is_well & (self.diverged_at < 0)
        self.diverged_at.copy_(torch.where(newly, self.step_number, self.diverged_at))
        self.step_number += 1

    def _displace(self, momentum: Tensor) -> None:
        """By the momentum, or by Adam's quotient of two means that both start at zero. Every pass over all parameters
        counts: those of a large network are read from memory each time."""
        if self.square is None:
            torch.mul(momentum, -self.rate, out=self.displacement)
            return
        steps = self.step_number + 1
        unbias = (1 - methods.BETA_2 ** steps.double()).rsqrt().to(self.theta.dtype).expand_as(self.rate)
        root = torch.addcmul(self.epsilon, self.square.sqrt(), unbias)
        torch.div(momentum, root, out=self.displacement)
        self.displacement *= -self.rate / (1 - self.beta**steps).unsqueeze(-1)

    @torch.no_grad()
    def measure(self) -> dict[str, Tensor]:
        """Errors, and whatever instruments were asked for, ``[runs]`` each."""
        measured: dict[str, Tensor] = {}
        for name, (state, value, floor) in self.value_sets.items():
            measured |= {name + kind: error - floor for kind, error in self._errors(state, value).items()}
        for name in self.runs[0].measure:
            measured |= INSTRUMENTS[name](self)
        is_well = self.diverged_at < 0
        return {
            name: torch.where(is_well, x, torch.inf).nan_to_num(torch.inf, torch.inf) for name, x in measured.items()
        }

    def _errors(self, state: Tensor, value: Tensor) -> dict[str, Tensor]:
        """Mean errors over all states, of which few pictures are looked at together: they take room."""
        many = len(state) if state.is_floating_point() else AT_ONCE
        parts = [
            self.network.errors(self.theta, *part) for part in zip(state.split(many), value.split(many), strict=True)
        ]
        return {kind: torch.cat([part[kind] for part in parts], -1).mean(-1) for kind in parts[0]}

    def _records(self, at: np.ndarray, measured: list[dict[str, Tensor]], seconds: float) -> list[Record]:
        curves = {name: torch.stack([m[name] for m in measured], -1).double().cpu().numpy() for name in measured[0]}
        diverged = self.diverged_at.tolist()
        vectors = 1 if self.correction is None else 2  # momentum, and what the last step was
        kept = numbers_in(self.memory) // len(self.runs) + vectors * self.network.size
        return [
            Record(
                run=run,
                at=at,
                curves={name: curve[i] for name, curve in curves.items()},
                diverged_at=diverged[i] if diverged[i] >= 0 else None,
                parameters=self.network.size,
                numbers_kept=kept,
                backward_passes=self.backward_passes,
                seconds=seconds / self.asked,
            )
            for i, run in enumerate(self.runs[: self.asked])
        ]


def numbers_in(memory: Any) -> int:
    """How many numbers are remembered."""
    if isinstance(memory, Tensor):
        return memory.numel()
    parts = memory.values() if isinstance(memory, dict) else memory if isinstance(memory, list) else ()
    return sum(numbers_in(part) for part in parts)


def stepper(training: Training, made: int) -> Callable[[int], None]:
    """A function that makes a number of steps after those ``made``: one by one, or on a GPU many at a time, as a graph
    that was recorded."""
    if training.theta.is_cuda:
        from .graphs import GraphStepper

        return GraphStepper(training.step, made)

    def advance(count: int) -> None:
        for _ in range(count):
            training.step()

    return advance
