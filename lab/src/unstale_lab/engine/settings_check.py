"""Checks the settings of a run before it is trained."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .. import methods, problems
from ..errors import UserError, unknown
from ..experiment import Run
from ..precision import PRECISIONS
from .conventions import check_convention
from .layers import INITIALIZATIONS
from .measurements import MEASUREMENTS
from .network import ACTIVATIONS
from .schedules import LR_SCHEDULES
from .traces import check_traces


def check_settings(run: Run) -> None:
    """Check settings that only some values, or some combinations with methods and problems, are defined for.

    Raises:
        UserError: if one is out of its range, or cannot be combined with the run's method or problem.
    """
    _check_numbers(run)
    names: list[tuple[str, str, Iterable[str]]] = [
        ("method", run.method, methods.METHODS),
        ("activation", run.activation, ACTIVATIONS),
        ("precision", run.precision, PRECISIONS),
        ("initialization", run.initialization, INITIALIZATIONS),
        ("learning-rate schedule", run.lr_schedule, LR_SCHEDULES),
        *(("measurement", name, MEASUREMENTS) for name in run.measure),
    ]
    for kind, name, known in names:
        if name not in known:
            raise unknown(kind, name, known)
    bootstraps = problems.load(run.problem).bootstraps
    if not bootstraps and {"drift", "agreement", "batch agreement"} & set(run.measure):
        raise UserError(f"measure {run.measure}: {run.problem} has no target values that could drift or become stale")
    method = methods.METHODS[run.method]
    if "phases" in run.measure and (method.correction == "oracle" or method.second_order):
        raise UserError(f"measure 'phases': the steps of {run.method} cannot be split into passes and correction")
    check_convention(run)
    check_traces(run)


def _check_numbers(run: Run) -> None:
    """Check that numbers are in their ranges.

    Raises:
        UserError: naming the first one that is not.
    """
    layers = set(run.corrected_layers)
    ranges = {
        "alpha": (0 < run.alpha < math.inf, "positive"),
        "beta": (0 <= run.beta < 1, "at least 0 and less than 1"),
        "weight_average": (0 <= run.weight_average < 1, "at least 0 and less than 1"),
        "rbf_width": (run.rbf_width > 0, "positive"),
        "corrected_layers": (
            len(layers) == len(run.corrected_layers) and layers <= set(range(run.layers)),
            f"different numbers from 0 to {run.layers - 1}",
        ),
        "seed": (0 <= run.seed < 2**63, "at least 0 and less than 2^63"),
        **{name: (getattr(run, name) >= 1, "at least 1") for name in ("batch", "steps", "width", "layers", "n_step")},
        **{name: (getattr(run, name) >= 0, "at least 0") for name in ("rbf_grid", "horizon", "slots")},
    }
    for name, (is_valid, wanted) in ranges.items():
        if not is_valid:
            raise UserError(f"{name} {getattr(run, name)}: it must be {wanted}")
