"""Memory is estimated at the first batch, before anything is allocated."""

from __future__ import annotations

import pytest
import torch
from problems import Stream, mlp
from torch import nn

import unstale
from unstale.corrections import memory


def wide():
    return nn.Sequential(nn.Linear(3, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))


def tensor_bytes(value):
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return sum(map(tensor_bytes, parts))


OPTIONS = {
    "dense": dict(correction="dense"),
    "blocks": dict(correction="blocks"),
    "blocks of a size": dict(correction="blocks", block_size=30),
    "window": dict(correction="window", horizon=40),
    "reservoir": dict(correction="reservoir", slots=512),
}


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_estimate_is_close(name, follows, monkeypatch):
    """Within a factor of two of what the memory of the correction takes."""
    seen = []
    monkeypatch.setattr(unstale.corrections, "check_memory", lambda needed, *_: seen.append(needed))
    model, target = wide(), wide()
    optimizer = unstale.CorrectedSGD(model, lr=0.1, beta=0.9, **OPTIONS[name])
    if follows:
        optimizer.follow(target)
    x = torch.randn(10, 3)
    optimizer.backward(model(x).squeeze(-1), 0.9 * (target if follows else model)(-x).squeeze(-1))
    optimizer.step()
    taken = tensor_bytes(optimizer.state["group 0"]["memory"])
    assert taken / 2 < seen[0] < taken * 2


@pytest.mark.parametrize("name", OPTIONS)
def test_too_much_is_refused_before_it_is_allocated(name):
    model = wide()
    for limit, is_enough in ((1e9, True), (1e4, False)):
        optimizer = unstale.CorrectedSGD(model, lr=0.1, beta=0.9, **OPTIONS[name], memory_limit=limit)
        if is_enough:
            optimizer.backward(*Stream().batch(model)())
            optimizer.step()
        else:
            advice = "fewer slots" if name == "reservoir" else "correction='reservoir'"
            with pytest.raises(MemoryError, match=f"{advice}, or allow more with memory_limit"):
                optimizer.backward(*Stream().batch(model)())
            assert not any(optimizer.state.values())
            assert all(p.grad is None for p in model.parameters())
        optimizer.zero_grad()


def test_half_of_the_free_memory_is_the_default(monkeypatch):
    model = mlp(width=20)
    needed = sum(p.numel() for p in model.parameters()) ** 2 * 8
    for free, is_enough in ((2 * needed, True), (2 * needed - 2, False), (None, True)):
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free)
        optimizer = unstale.CorrectedSGD(model, lr=0.1, correction="dense")
        if is_enough:
            optimizer.backward(*Stream().batch(model)())
        else:
            with pytest.raises(MemoryError, match="more than half of the free memory of cpu"):
                optimizer.backward(*Stream().batch(model)())
        optimizer.zero_grad()


def test_free_memory_is_read():
    free = memory.free_bytes(torch.device("cpu"))
    assert free is None or free > 1 << 20
    assert memory.free_bytes(torch.device("meta")) is None


def test_other_limits_are_refused():
    with pytest.raises(ValueError, match="memory_limit must be a positive number of bytes"):
        unstale.CorrectedSGD(mlp(), lr=0.1, memory_limit=0)
    with pytest.warns(unstale.UnusedOptionWarning, match="memory_limit"):
        unstale.CorrectedSGD(mlp(), lr=0.1, correction="diagonal", memory_limit=1e9)


def test_states_from_before_the_option_load():
    model = mlp()
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        del group["memory_limit"]
    optimizer.load_state_dict(state)
    optimizer.backward(*Stream().batch(model)())
    optimizer.step()
