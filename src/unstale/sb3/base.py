"""Replaces the optimizers that Stable-Baselines3 builds for value functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn
from torch.optim import Adam, AdamW, Optimizer, RMSprop

from .. import _options
from .._optimizer import CorrectedOptimizer
from ..optimizers import CorrectedAdam, CorrectedRMSprop


class Corrected:
    """Replaces the optimizer of the value function by its corrected form, whenever an algorithm builds its networks.

    Args:
        args: those of the algorithm of Stable-Baselines3.
        correction_kwargs: options of :class:`unstale.CorrectedAdam` (or ``CorrectedRMSprop``, A2C's default) except
            ``lr``, such as ``correction``, ``slots``, ``betas``. Settings of Stable-Baselines3's optimizer, such as
            ``eps=1e-5``, are kept. β is kept with ``correction="none"``, or if ``policy_kwargs`` give it.
        kwargs: those of the algorithm of Stable-Baselines3.
    """

    # Built by the algorithm; Stable-Baselines3 types some of these as None or as settings, too.
    policy: Any
    replay_buffer: Any

    def __init__(self, *args: Any, correction_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.correction_kwargs = dict(correction_kwargs or {})
        if "lr" in self.correction_kwargs:
            raise ValueError("correction_kwargs must not have lr: use learning_rate of the algorithm.")
        super().__init__(*args, **kwargs)

    def _setup_model(self) -> None:
        super()._setup_model()  # type: ignore[misc]
        owner = self._optimizer_owner()
        has_betas = "betas" in self.policy.optimizer_kwargs
        owner.optimizer = corrected(owner.optimizer, self.correction_kwargs, self._policy_parameters(), has_betas)
        target = self._target_network()
        if target is not None:
            owner.optimizer.follow(target)

    def _optimizer_owner(self) -> Any:
        """The module whose ``optimizer`` trains the value function."""
        return self.policy

    def _policy_parameters(self) -> set[int]:
        """Ids of the optimizer's parameters that a policy loss depends on."""
        return set()

    def _target_network(self) -> nn.Module | None:
        return None

    @property
    def _is_corrected(self) -> bool:
        """Whether the graph of targets is needed."""
        return self.correction_kwargs.get("correction") != "none"


def corrected(
    plain: Optimizer, options: dict[str, Any], uncorrected: set[int] | None = None, keep_beta: bool = False
) -> CorrectedOptimizer:
    """The corrected form of an optimizer of torch, for the same parameters and with the same settings.

    Args:
        plain: ``Adam``, ``AdamW``, or ``RMSprop`` without momentum, with one parameter group.
        options: of the corrected optimizer; they override the settings of ``plain``.
        uncorrected: ids of parameters that keep the steps of ``plain``, in a group of their own.
        keep_beta: whether to keep β of ``plain`` (as with ``correction="none"``), instead of letting it grow.
    """
    (settings,) = plain.param_groups
    unknown = [name for name in ("amsgrad", "maximize", "centered", "momentum") if settings.get(name)]
    if settings["weight_decay"] and not settings.get("decoupled_weight_decay"):
        unknown.append("weight_decay (use AdamW)")
    if type(plain) not in (Adam, AdamW, RMSprop) or unknown:
        name = f"{type(plain).__name__}{' with ' + ', '.join(unknown) if unknown else ''}"
        raise ValueError(
            f"optimizer_class {name} has no corrected form here: use Adam, AdamW or RMSprop in policy_kwargs (A2C: "
            "use_rms_prop=False for Adam), and correction_kwargs for the options of unstale."
        )
    keep_beta = keep_beta or options.get("correction") == "none"
    own = dict(lr=settings["lr"], eps=settings["eps"], weight_decay=settings["weight_decay"])
    make: Any
    if isinstance(plain, RMSprop):
        make, plain_beta = CorrectedRMSprop, {"beta": 0.0}
        own.update(alpha=settings["alpha"], beta=0.0 if keep_beta else None)
    else:
        (beta, beta2), make, plain_beta = settings["betas"], CorrectedAdam, {"betas": settings["betas"]}
        own.update(betas=(beta if keep_beta else None, beta2))
    ids = uncorrected or set()
    values = [p for p in settings["params"] if id(p) not in ids]
    others = [p for p in settings["params"] if id(p) in ids]
    groups: list[dict[str, Any]] = [{"params": values}]
    if others:
        shared = ("weight_decay", "on_nonfinite")
        defaults = {name: value for name, value in _options.DEFAULTS.items() if name not in shared}
        groups.append({**defaults, **plain_beta, "params": others, "correction": "none"})
    result: CorrectedOptimizer = make(groups, **{**own, **options})
    return result


def log_means(algorithm: Any, logs: dict[str, list[float]]) -> None:
    """Record the means of what was measured since the last call."""
    algorithm.logger.record("train/n_updates", algorithm._n_updates, exclude="tensorboard")
    for name, numbers in logs.items():
        if numbers:
            algorithm.logger.record(f"train/{name}", np.mean(numbers))
