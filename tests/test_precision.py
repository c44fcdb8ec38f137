"""What docs/precision.md says of lower precision. Bounds are 4 to 60 times what the page reports."""

import importlib.util
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[1] / "benchmarks"
STEPS = 100


@pytest.fixture(scope="module")
def precision():
    spec = importlib.util.spec_from_file_location("precision", FOLDER / "precision.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("correction", ["none", "diagonal", "dense", "window", "reservoir"])
def test_runs_in_lower_precision_stay_near(precision, correction):
    torch.set_default_dtype(torch.float32)
    ends = {form: precision.train(correction, form, STEPS) for form in precision.FORMS}
    errors = {form: precision.error(end, ends["float64"]) for form, end in ends.items()}
    assert errors["float32"] < 1e-4
    assert 1e-4 < errors["bfloat16"] < 1.0
    assert 1e-5 < errors["autocast"] < 0.2
    # Vectors beside half-precision parameters are float32.
    assert [end.state_dtype for end in ends.values()] == [torch.float64, *[torch.float32] * 3]
    if correction != "none":
        assert abs(ends["float32"].eta / ends["float64"].eta - 1) < 1e-3
        assert abs(ends["autocast"].eta / ends["float64"].eta - 1) < 0.3
