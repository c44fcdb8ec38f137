"""A sample of the fuzz cases; ``python tools/fuzz.py`` runs as many as wanted."""

from __future__ import annotations

import pytest
import torch
from fuzz_cases import quiet_case

from unstale.per_sample import linearize


@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("first", range(0, 200, 10))
def test_random_networks_and_graphs_follow_the_reference(first, dtype, listens, monkeypatch):
    if listens:  # as large networks do
        monkeypatch.setattr(linearize, "MIN_WORK_TO_LISTEN", 0)
    for seed in range(first, first + 10):
        quiet_case(seed, dtype)
