import importlib.util
import math
import os
import warnings

import pytest
import torch
from hypothesis import HealthCheck, settings

import unstale.per_sample.layer_rules
import unstale_lab  # noqa: F401  sets MKL_CBWR, which has to precede the first matrix product
from unstale.per_sample import linearize

# Tests read what rich and tyro print, which must not depend on the terminal or the CI that they run in.
os.environ["COLUMNS"] = "80"
for name in ("FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)

# Doctests import every module; these need an extra.
collect_ignore = [] if importlib.util.find_spec("stable_baselines3") else ["src/unstale/sb3"]

# No deadline: a test's first example imports and compiles. Derandomised: a red run can be run again.
settings.register_profile(
    "unstale", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unstale")


@pytest.fixture(autouse=True)
def float64():
    """The oracles are in double precision."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(params=["factored", "listening", "jacobian"])
def path(request, monkeypatch):
    """All ways to per-sample gradients: by the rules of layers, with backward passes of their own or with the one that
    fills ``.grad``, and by vector-Jacobian products."""
    # Small networks do not listen by default.
    monkeypatch.setattr(linearize, "MIN_WORK_TO_LISTEN", 0 if request.param == "listening" else math.inf)
    if request.param == "jacobian":
        monkeypatch.setattr(unstale.per_sample.layer_rules, "LAYERS", {})
        warnings.simplefilter("ignore", unstale.SlowGradientsWarning)
