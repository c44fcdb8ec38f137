"""A straightforward implementation of the runs of figure 3, one run at a time, without ``unstale``.

Eager PyTorch, per-sample gradients by ``torch.func``, a dense ``ζ``, and Gymnasium for every transition. It is not
slowed down on purpose: the batch is vectorized, matrices are updated in place, and only the gradients that the method
needs are computed. The oracle keeps its history as one long batch in memory.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

GAMMA = 0.95
REWARD_SCALE = 0.1
LOW, HIGH = np.array([-1.2, -0.07]), np.array([0.6, 0.07])  # position, velocity

# "lean momentum" is plain backpropagation of the mean loss, without per-sample gradients.
METHODS = ("momentum", "diagonal", "full", "oracle", "lean momentum")


class Transitions(NamedTuple):
    """A batch of ``m`` transitions."""

    state: Tensor  # [m, 2]
    reward: Tensor  # [m]
    discount: Tensor  # [m]; 0 if the episode ended
    next_state: Tensor  # [m, 2]


class PlainRun:
    """One run: an MLP of 4 layers learns the value of pushing the car in its direction of motion.

    The loss is the mean of ``δ²``, as in the paper's figures.
    """

    def __init__(
        self,
        method: str,
        width: int,
        batch: int,
        alpha: float,
        beta: float,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.method, self.batch, self.alpha, self.beta, self.dtype = method, batch, alpha, beta, dtype
        self.gradient_scale = 2 / batch  # the gradient is the mean of 2 δ ∇V
        self.rng = np.random.default_rng(seed)
        self.env = gymnasium.make("MountainCar-v0")
        self.env.reset(seed=seed)
        self.car: Any = self.env.unwrapped

        torch.manual_seed(seed)
        sizes = [2, width, width, width]
        hidden = [m for i, o in pairwise(sizes) for m in (nn.Linear(i, o), nn.LeakyReLU())]
        self.model = nn.Sequential(*hidden, nn.Linear(width, 1)).to(dtype)
        self.theta = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        nn.utils.vector_to_parameters(self.theta, self.model.parameters())  # parameters become views of theta
        self.parameters = {name: p.detach() for name, p in self.model.named_parameters()}

        def one_value(parameters: dict[str, Tensor], state: Tensor) -> Tensor:
            return functional_call(self.model, parameters, (state,)).squeeze()

        self.per_sample = vmap(grad_and_value(one_value), in_dims=(None, 0))

        n = len(self.theta)
        self.mu, self.eta, self.muhat = (torch.zeros(n, dtype=dtype) for _ in range(3))
        if method == "diagonal":
            self.zeta = torch.zeros(n, dtype=dtype)
        if method == "full":
            self.zeta = torch.zeros(n, n, dtype=dtype)
        if method == "oracle":
            self.time = 0
            self.slots = torch.arange(round(2 / (1 - beta)))  # the paper's horizon
            shapes = [(2,), (), (), (2,)]
            self.past = Transitions(*(torch.zeros(len(self.slots), batch, *shape, dtype=dtype) for shape in shapes))

    def step(self) -> None:
        """Sample a batch and learn from it."""
        self.learn(self.transitions(self.sample_states()))

    def sample_states(self) -> np.ndarray:
        """Return uniform states, ``[batch, 2]``."""
        return self.rng.uniform(LOW, HIGH, (self.batch, 2))

    def transitions(self, states: np.ndarray) -> Transitions:
        """Make one step of the environment from each state."""
        next_states, rewards, not_terminated = [], [], []
        for state in states:
            self.car.state = state
            next_state, reward, terminated, _, _ = self.env.step(0 if state[1] < 0 else 2)
            next_states.append(next_state)
            rewards.append(reward)
            not_terminated.append(not terminated)
        fields = (
            torch.from_numpy(states.astype(np.float32)),
            torch.tensor(rewards, dtype=torch.float32) * REWARD_SCALE,
            torch.tensor(not_terminated, dtype=torch.float32) * GAMMA,
            torch.from_numpy(np.stack(next_states)),
        )
        return Transitions(*(field.to(self.dtype) for field in fields))

    @torch.no_grad()
    def learn(self, samples: Transitions) -> None:
        """Make one step of the method."""
        match self.method:
            case "momentum":
                self._momentum(samples)
            case "diagonal" | "full":
                self._corrected(samples)
            case "oracle":
                self._oracle(samples)
            case "lean momentum":
                gradient = self._gradient(samples)
                self.muhat = self.mu.mul_(self.beta).add_(gradient, alpha=1 - self.beta)
        self.theta.sub_(self.muhat, alpha=self.alpha)

    def _momentum(self, samples: Transitions) -> None:
        v, value = self._gradients_and_values(samples.state)
        next_value = self.model(samples.next_state).squeeze(-1)
        delta = value - (samples.reward + samples.discount * next_value)
        self.muhat = self.mu.mul_(self.beta).add_(delta @ v, alpha=(1 - self.beta) * self.gradient_scale)

    def _corrected(self, samples: Transitions) -> None:
        alpha, beta, share = self.alpha, self.beta, (1 - self.beta) * self.gradient_scale
        v, value = self._gradients_and_values(samples.state)
        v2, next_value = self._gradients_and_values(samples.next_state)
        delta = value - (samples.reward + samples.discount * next_value)
        u = v - samples.discount[:, None] * v2

        self.mu.mul_(beta).add_(delta @ v, alpha=share)
        if self.method == "full":
            self.eta.addmv_(self.zeta.T, self.muhat, beta=beta, alpha=alpha * beta)
            self.zeta.addmm_(u.T, v, beta=beta, alpha=share)
        else:
            self.eta.mul_(beta).addcmul_(self.zeta, self.muhat, value=alpha * beta)
            self.zeta.mul_(beta).add_((u * v).sum(0), alpha=share)
        self.muhat = self.mu - self.eta

    def _oracle(self, samples: Transitions) -> None:
        horizon = len(self.slots)
        for buffer, new in zip(self.past, samples, strict=True):
            buffer[self.time % horizon] = new
        age = (self.time - self.slots) % horizon
        weight = (age <= self.time) * (1 - self.beta) * self.beta**age
        self.time += 1
        history = Transitions(*(buffer.flatten(0, 1) for buffer in self.past))
        self.muhat = self._gradient(history, weight.to(self.dtype).repeat_interleave(self.batch))

    def _gradients_and_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``∇V [m, n]`` and ``V [m]``."""
        gradients, values = self.per_sample(self.parameters, states)
        return torch.cat([g.flatten(1) for g in gradients.values()], 1), values

    def _gradient(self, samples: Transitions, weight: Tensor | float = 1.0) -> Tensor:
        """Return the semi-gradient of ``Σ weight · δ² / batch``, ``[n]``."""
        target = samples.reward + samples.discount * self.model(samples.next_state).squeeze(-1)
        with torch.enable_grad():
            delta = self.model(samples.state).squeeze(-1) - target
            loss = (weight * delta.square()).sum() / self.batch
            gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        return torch.cat([g.flatten() for g in gradients])
