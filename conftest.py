import os
import warnings

import pytest
import torch
from hypothesis import HealthCheck, settings

import unstale.per_sample.layer_rules
import unstale_lab  # noqa: F401  sets MKL_CBWR, which has to precede the first matrix product

# Tests read what rich and tyro print, which must not depend on the terminal or the CI that they run in.
os.environ["COLUMNS"] = "80"
for name in ("FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)

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


@pytest.fixture(params=["factored", "jacobian"])
def path(request, monkeypatch):
    """Both ways to per-sample gradients: by the rules of layers, and by vector-Jacobian products."""
    if request.param == "jacobian":
        monkeypatch.setattr(unstale.per_sample.layer_rules, "LAYERS", {})
        warnings.simplefilter("ignore", unstale.SlowGradientsWarning)
