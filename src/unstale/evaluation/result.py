"""The result of an evaluation: numbers, networks, and the files they are saved to."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .belief import Verdict
from .errors import EvaluationError, first_line, require
from .folders import make_folder
from .interval import Estimates, Interval
from .spaces import Array
from .training import History, Settings
from .values import ValueNetwork

FORMAT = 1
WEIGHTS, DESCRIPTION, REPORT = "value.safetensors", "value.json", "report.html"


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How good a policy is.

    Attributes:
        source, policy: what was evaluated.
        kind: ``"V"``, or ``"Q"`` for fitted-Q evaluation.
        estimates: the estimate with its interval, Monte Carlo, and the estimate of every network.
        verdict: whether it converged, and how much to believe it.
        history: what was measured during training.
        networks: the value networks, on normalized inputs of their own.
        monte_carlo: the mean return of episodes of the policy in the environment; unknown if it could not be run.
        states: for two-dimensional observations, some of the data's.
    """

    source: str
    policy: str
    kind: str
    gamma: float
    level: float
    episodes: int
    transitions: int
    settings: Settings
    estimates: Estimates
    monte_carlo: Interval
    verdict: Verdict
    history: History
    networks: list[ValueNetwork]
    states: Array

    @property
    def value(self) -> float:
        """The value of the start states."""
        return self.estimates.estimate.value

    @property
    def interval(self) -> tuple[float, float]:
        """Its confidence interval."""
        return self.estimates.estimate.low, self.estimates.estimate.high

    def values(self, inputs: Tensor) -> Tensor:
        """The mean of the networks' values, ``[m]`` for ``V``; inputs are flat observations, float32 ``[m, d]``."""
        with torch.no_grad():
            found = torch.stack([network(inputs) for network in self.networks]).mean(0)
        return found.squeeze(-1)

    def summary(self) -> str:
        """A few lines of text."""
        networks = self.estimates.networks
        level, verdict = f"{self.level:.0%}", self.verdict
        lines = [
            f"value of the start states   {self.estimates.estimate}   ({level} interval, γ = {self.gamma:g})",
            f"Monte Carlo                 {_known(self.monte_carlo)}",
            f"networks alone              {np.mean(networks):.4g}, from {min(networks):.4g} to {max(networks):.4g}",
            f"converged                   {'yes' if verdict.converged else 'no'} ({verdict.evidence})",
            f"believe it                  {verdict.belief}",
            *(f"                            - {reason}" for reason in verdict.reasons),
            f"from                        {self.episodes:,} episodes, {self.transitions:,} transitions",
        ]
        if not math.isnan(self.estimates.effective_samples):
            lines.append(f"effective sample size       {self.estimates.effective_samples:,.0f}")
            lines.append(f"bias that TD errors allow   {self.estimates.bellman_bias:.3g}")
        return "\n".join(lines)

    def description(self) -> dict[str, Any]:
        """Everything but the weights, as JSON values. What is not known is null."""
        found = self.estimates
        return _finite(
            dict(
                format=FORMAT,
                source=self.source,
                policy=self.policy,
                kind=self.kind,
                gamma=self.gamma,
                level=self.level,
                episodes=self.episodes,
                transitions=self.transitions,
                inputs=self.networks[0].hidden[0].in_features,
                outputs=self.networks[0].head.out_features,
                settings=asdict(self.settings),
                value=asdict(found.estimate),
                monte_carlo=asdict(self.monte_carlo),
                networks=found.networks,
                variance_ratio=found.variance_ratio,
                effective_samples=found.effective_samples,
                overlap=found.overlap,
                bellman_bias=found.bellman_bias,
                verdict=asdict(self.verdict),
                history=asdict(self.history),
            )
        )

    def save(self, folder: str | Path) -> Path:
        """Write the value networks (safetensors and JSON) and the report (HTML) to a folder, and return it."""
        from .report import page

        folder = make_folder(folder)
        tensors = {
            f"{k}.{name}": tensor.contiguous()
            for k, network in enumerate(self.networks)
            for name, tensor in network.state_dict().items()
        }
        require("safetensors.torch").save_file(tensors, folder / WEIGHTS)
        (folder / DESCRIPTION).write_text(json.dumps(self.description(), indent=1) + "\n", "utf-8")
        (folder / REPORT).write_text(page(self), "utf-8")
        return folder


def load_values(folder: str | Path) -> list[ValueNetwork]:
    """The value networks that :meth:`Evaluation.save` wrote.

    Raises:
        EvaluationError: the files are missing or malformed.
    """
    folder = Path(folder)
    try:
        description = json.loads((folder / DESCRIPTION).read_text("utf-8"))
        tensors = require("safetensors.torch").load_file(folder / WEIGHTS)
        settings = description["settings"]
        networks = [
            ValueNetwork(description["inputs"], description["outputs"], settings["width"])
            for _ in range(settings["networks"])
        ]
        for k, network in enumerate(networks):
            network.load_state_dict({name: tensors[f"{k}.{name}"] for name in network.state_dict()})
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise EvaluationError(f"{folder} does not hold saved values: {first_line(error)}") from error
    return networks


def _known(interval: Interval) -> str:
    return "not known: the policy was not run" if math.isnan(interval.value) else str(interval)


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
