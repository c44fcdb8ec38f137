"""What is decided at the first batch: the correction, its size, and β where it is left out."""

from __future__ import annotations

import warnings
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import Stream, mlp, parameters_of, twins
from torch import nn

import unstale
from unstale._options import DEFAULTS
from unstale.corrections import ReservoirPlan, Sizes, default_horizon, make_plan, select, slot_numbers, too_few_slots
from unstale.momentum import MEMORY_SHARE, growing_beta

# Some options are given to all corrections, although not all of them use them.
pytestmark = pytest.mark.filterwarnings("ignore::unstale.UnusedOptionWarning")


def sizes_of(parameters=300, batch=4, slot_numbers=None, device="cpu", itemsize=4):
    numbers = 2 * parameters if slot_numbers is None else slot_numbers
    return Sizes(parameters=parameters, slot_numbers=numbers, batch=batch, device=device, itemsize=itemsize)


def plan_for(beta=None, sizes=None, **settings):
    return make_plan({**DEFAULTS, **settings}, beta, sizes_of() if sizes is None else sizes)


ATARI = dict(parameters=1_700_000, slot_numbers=40_000)

# Settings, β, sizes; the correction, and the steps between batches that enter a dense matrix.
CHOICES = {
    "small": ({}, None, {}, "dense", 2),
    "small, small batches": ({}, None, dict(batch=2), "dense", 1),
    "small, large batches": ({}, None, dict(batch=32), "dense", 5),
    "small, medium batches": ({}, None, dict(batch=7), "dense", 2),
    "small, short memory": ({}, 0.9, dict(batch=32), "dense", 1),
    "small, given β": ({}, 0.999, dict(batch=32), "dense", 5),
    "medium": ({}, None, dict(parameters=5_000, batch=16), "reservoir", 1),
    "medium on a GPU": ({}, None, dict(parameters=5_000, batch=16, device="cuda"), "dense", 5),
    "medium, large budget": (dict(budget=100.0), None, dict(parameters=5_000, batch=16), "dense", 5),
    "medium, short memory": ({}, 0.8, dict(parameters=5_000, batch=8, slot_numbers=500), "window", 1),
    "medium, long memory": ({}, 0.99, dict(parameters=5_000, batch=8, slot_numbers=500), "reservoir", 1),
    "large": ({}, None, dict(ATARI, batch=32), "reservoir", 1),
    "large on a GPU": ({}, None, dict(ATARI, batch=32, device="cuda"), "reservoir", 1),
    "large, few samples still count": ({}, 0.0, dict(ATARI, batch=32), "window", 1),
    "few slots": (dict(slots=64), None, dict(parameters=5_000), "reservoir", 1),
    "many slots": (dict(slots=100_000), None, dict(parameters=5_000, batch=16), "reservoir", 1),
    "small, few slots": (dict(slots=64), None, {}, "reservoir", 1),
    "as large as a GPU may": ({}, None, dict(parameters=8_000, device="cuda"), "dense", 2),
    "too large for a matrix": ({}, None, dict(parameters=9_000, device="cuda"), "reservoir", 1),
    "second derivatives": (dict(second_order=True), None, dict(parameters=5_000, batch=16), "dense", 5),
    "refreshed": (dict(refresh=(1, 2)), None, {}, "window", 1),
    "as told: dense": (dict(correction="dense"), None, dict(batch=64), "dense", 1),
    "as told: reservoir": (dict(correction="reservoir"), None, {}, "reservoir", 1),
    "as told: window": (dict(correction="window"), 0.9, {}, "window", 1),
    "as told: diagonal": (dict(correction="diagonal"), None, {}, "diagonal", 1),
}


@pytest.mark.parametrize("case", CHOICES)
def test_choices(case):
    settings, beta, sizes, correction, every = CHOICES[case]
    plan = plan_for(beta, sizes_of(**sizes), **settings)
    assert (plan["correction"], plan["every"]) == (correction, every)
    assert (plan["reservoir"] is not None) == (correction == "reservoir")
    assert bool(plan["reason"]) == ("correction" not in settings)
    if beta is not None:
        assert plan["max_memory"] == pytest.approx(1 / (1 - beta))
        assert plan["horizon"] == default_horizon(beta)


@pytest.mark.parametrize(
    ("settings", "sizes", "memory"),
    [
        (dict(correction="dense"), {}, select.MAX_MEMORY),
        (dict(correction="reservoir", slots=256), dict(batch=4), 512),
        (dict(correction="reservoir", slots=4096), dict(batch=4), select.MAX_MEMORY),
        (dict(correction="reservoir", slots=16), dict(batch=32), 10),
        (dict(correction="window"), {}, 10),
        (dict(refresh=(1,)), {}, 10),
        ({}, {}, select.MAX_MEMORY),
    ],
)
def test_longest_memory_where_beta_is_left_out(settings, sizes, memory):
    """As long as the slots allow, up to ``MAX_MEMORY``; a window has the usual one."""
    assert plan_for(None, sizes_of(**sizes), **settings)["max_memory"] == pytest.approx(memory)


@given(
    parameters=st.integers(1, 10**9),
    share=st.floats(0.001, 2),
    batch=st.integers(1, 4096),
    device=st.sampled_from(["cpu", "cuda", "mps"]),
    itemsize=st.sampled_from([4, 8]),
    budget=st.sampled_from([1.01, 2.5, 10.0, 1e6]),
    beta=st.sampled_from([None, 0.0, 0.9, 0.999, 0.9999]),
)
def test_slots_fit_into_memory(parameters, share, batch, device, itemsize, budget, beta):
    numbers = max(2, int(parameters * share))
    sizes = sizes_of(parameters, batch, numbers, device, itemsize)
    plan = plan_for(beta, sizes, correction="reservoir", budget=budget)
    slots = ReservoirPlan(*plan["reservoir"]).slots
    assert slots <= select.MAX_SLOTS
    if 3 * numbers * itemsize <= select.MAX_SLOT_BYTES:  # a reservoir has at least three
        assert slots * numbers * itemsize <= select.MAX_SLOT_BYTES


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_slots_grow_with_the_budget(device):
    sizes = sizes_of(100_000, batch=32, device=device, slot_numbers=1000)
    found = [select.slots_within(budget, sizes) for budget in (1.01, 1.5, 2, 3, 10, 100)]
    assert found == sorted(found) and found[0] == select.MIN_SLOTS
    uncorrected = select.OVERHEAD[device] + 6 * 32 * 100_000
    for budget, slots in zip((1.01, 1.5, 2, 3, 10, 100), found, strict=True):
        one_more, ratio = (
            select.FIXED_COST + k * (3 * 100_000 + select.SLOT_NUMBER_WORK * 1000) / uncorrected
            for k in (slots + 128, slots)
        )
        assert slots % 128 == 0
        assert slots == select.MIN_SLOTS or ratio <= budget
        assert slots == select.MAX_SLOTS or one_more > budget


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_slots_are_at_most_a_share_of_the_longest_memory(batch):
    found = select.slots_within(1e6, sizes_of(batch=batch))
    most = select.MAX_SAMPLING_RATIO * select.MAX_MEMORY / 2 * batch
    assert most - 128 < found <= most
    assert select.slots_within(1e6, sizes_of(batch=batch), memory=1000) == found
    assert select.slots_within(1e6, sizes_of(batch=batch), memory=10) == select.MIN_SLOTS


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("batch", [1, 512])
def test_the_largest_matrix_within_the_budget_is_dense(device, batch):
    """Up to the size at which its entries take all of the extra work, or too much room."""
    settings, n = dict(budget=3.0), 1
    while (
        select.DENSE_ENTRY_WORK * (n + 1) ** 2 <= select.extra_work(3.0, sizes_of(n + 1, batch, device=device))
        and 4 * (n + 1) ** 2 <= select.MAX_DENSE_BYTES
    ):
        n += 1
    assert n > 100
    found = [plan_for(None, sizes_of(size, batch, device=device), **settings)["correction"] for size in (n, n + 1)]
    assert found == ["dense", "reservoir"]


def test_extra_work_is_that_of_uncorrected_steps():
    sizes = sizes_of(1000, batch=8)
    assert select.extra_work(select.FIXED_COST, sizes) == 0
    assert select.extra_work(select.FIXED_COST + 2, sizes) == pytest.approx(2 * (select.OVERHEAD["cpu"] + 6 * 8 * 1000))
    other, cuda = (select.extra_work(3.0, sizes_of(device=device)) for device in ("mps", "cuda"))
    assert other == cuda  # unknown devices are taken for GPUs


def test_given_slots_are_used_whatever_they_take():
    plan = plan_for(0.9999, sizes_of(10**7, batch=64, slot_numbers=10**6), correction="reservoir", slots=100_000)
    assert 75_000 < ReservoirPlan(*plan["reservoir"]).slots <= 100_000


@pytest.mark.parametrize("slots", [64, 64.0])
def test_whole_numbers_may_be_floats(slots):
    model, _ = twins(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.1, correction="reservoir", slots=slots)
    train(model, optimizer, Stream(), 3)
    plan = optimizer.state_of("group 0")["plan"]
    assert all(isinstance(number, int) for number in plan["reservoir"])


def test_numbers_per_slot():
    """A matrix takes its inputs and outputs, for prediction and target; other tensors all their entries."""
    model = nn.Sequential(nn.Linear(50, 20), nn.Conv1d(3, 4, 5))
    assert slot_numbers(list(model.parameters())) == 2 * (70 + 20 + 60 + 4)
    assert slot_numbers([torch.zeros(1, 50)]) == 2 * 50  # fewer entries than inputs and outputs


# ------------------------------------------------------------------------------------------------------ FewSlotsWarning


def train(model, optimizer, stream, steps=1):
    for _ in range(steps):
        optimizer.backward(*stream.batch(model)())
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("slots", "batch", "beta", "warns"),
    [
        (64, 4, 0.99, False),  # an eighth of 400 samples are 50
        (32, 4, 0.99, True),
        (64, 4, 0.9, False),
        (256, 16, 0.999, True),
        (None, 16, 0.999, False),
        (8, 1, 0.9, False),
        (64, 4, None, False),  # β stops growing early enough
        (4, 8, None, True),  # too few for the shortest memory
    ],
)
def test_few_slots_warn(slots, batch, beta, warns):
    model, _ = twins(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.01, beta=beta, correction="reservoir", slots=slots)
    stream = Stream(batch)
    with pytest.warns(unstale.FewSlotsWarning, match="slots are few for β") if warns else nullcontext():
        optimizer.backward(*stream.batch(model)())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        optimizer.zero_grad()
        train(model, optimizer, stream, 2)  # once is enough


@pytest.mark.parametrize("correction", ["dense", "window", "auto", "diagonal", "none"])
def test_corrections_without_slots_do_not_warn(correction):
    model, _ = twins(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.01, beta=0.9999, correction=correction, horizon=3)
    train(model, optimizer, Stream(64))


def test_advice_about_slots_is_true():
    """Who follows it is not warned again."""
    sizes = sizes_of(batch=16)
    advice = too_few_slots(plan_for(0.999, sizes, correction="reservoir", slots=256), 16)
    assert advice.endswith("Use at least 2,000 slots, or β of at most 0.9922, or leave β out.")
    for settings, beta in ((dict(slots=2000), 0.999), (dict(slots=256), 0.9922), (dict(slots=256), None)):
        assert too_few_slots(plan_for(beta, sizes, correction="reservoir", **settings), 16) is None
    # β was left out, or leaving it out would give no shorter a memory.
    for beta in (None, 0.9):
        advice = too_few_slots(plan_for(beta, sizes, correction="reservoir", slots=8), 16)
        assert advice.endswith("Use at least 20 slots, or β of at most 0.75.")
    advice = too_few_slots(plan_for(None, sizes, correction="reservoir", slots=3), 32)
    assert advice.endswith("Use at least 40 slots.")


# ------------------------------------------------------------------------------------------------------------ growing β


def test_growing_beta():
    assert [growing_beta(step, 1000) for step in (1, 50, 100)] == [0.9] * 3
    assert growing_beta(101, 1000) > 0.9
    assert growing_beta(2000, 1000) == pytest.approx(1 - 1 / 200)
    assert growing_beta(10_000, 1000) == growing_beta(10**7, 1000) == 0.999
    assert growing_beta(10**7, 50) == pytest.approx(0.98)
    assert growing_beta(10**7, 3) == 0.9  # never shorter than at the beginning
    steps = torch.tensor([1.0, 200.0, 4000.0, 1e7])
    torch.testing.assert_close(
        growing_beta(steps, 1000), torch.tensor([growing_beta(float(step), 1000) for step in steps])
    )


@pytest.mark.parametrize("correction", ["auto", "dense", "reservoir"])
def test_beta_grows_where_it_is_left_out(correction):
    """0.9 for 100 steps, then a tenth of the steps so far, up to what the plan allows."""
    model, _ = twins(lambda: mlp(2))
    optimizer = unstale.CorrectedSGD(model, lr=0.01, correction=correction)
    stream, found = Stream(2), []
    assert optimizer.momentum_beta == 0.9
    for _ in range(130):
        found.append(optimizer.momentum_beta)
        train(model, optimizer, stream)
    assert found[:100] == [0.9] * 100
    assert found[100:] == pytest.approx([1 - 10 / step for step in range(101, 131)])
    state = optimizer.state_of("group 0")
    state["step"].fill_(1e6)
    assert optimizer.momentum_beta == pytest.approx(1 - 1 / state["plan"]["max_memory"])
    assert state["plan"]["max_memory"] == select.MAX_MEMORY


@pytest.mark.parametrize("correction", ["none", "diagonal", "blocks", "window", "oracle"])
def test_beta_of_short_memories_does_not_grow(correction):
    model, _ = twins(lambda: mlp(2))
    optimizer = unstale.CorrectedSGD(model, lr=0.01, correction=correction, horizon=2)
    optimizer.backward(Stream(2).batch(model))
    optimizer.step()
    optimizer.state_of("group 0")["step"].fill_(1e5)
    assert optimizer.momentum_beta == 0.9


def test_slots_limit_how_far_beta_grows():
    model, _ = twins(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.01, correction="reservoir", slots=100)
    train(model, optimizer, Stream(16))
    optimizer.state_of("group 0")["step"].fill_(1e6)
    assert optimizer.momentum_beta == pytest.approx(1 - 1 / (8 * 100 / 16))


@pytest.mark.parametrize("kind", [unstale.CorrectedSGD, unstale.CorrectedAdam])
def test_momentum_weighs_gradients_by_the_beta_of_each_step(kind):
    """With a growing β, μ and its share of 1 are sums over the past, by hand; gradients are constant."""
    model = nn.Linear(2, 1, bias=False)
    optimizer = kind(model, lr=0.0, correction="dense")
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    optimizer.backward(model(x).squeeze(-1), 0.9 * model(x + 1).squeeze(-1))
    gradient = model.weight.grad.clone().flatten()
    optimizer.step()
    optimizer.zero_grad()
    state, share = optimizer.state_of("group 0"), 0.1
    state["step"].fill_(300.0)
    for step in range(301, 320):
        optimizer.backward(model(x).squeeze(-1), 0.9 * model(x + 1).squeeze(-1))
        optimizer.step()
        optimizer.zero_grad()
        beta = 1 - 1 / (MEMORY_SHARE * step)
        share = beta * share + (1 - beta)
        torch.testing.assert_close(state["mu"], share * gradient)
        assert state["mean_weight"] == pytest.approx(share, rel=1e-12)


def test_adam_with_a_growing_beta_is_not_biased_towards_zero():
    """Its step is the rate times the sign of a constant gradient, from the first step on, whatever β is."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = unstale.CorrectedAdam(model, lr=0.01, correction="dense", trust=None, eps=0.0)
    nn.init.zeros_(model.weight)
    x = torch.ones(2, 1)
    positions = [0.0]
    for _ in range(300):
        value = model(x).squeeze(-1)
        optimizer.backward(value, value + 1.0)  # the residual is -1 everywhere, and does not change
        optimizer.step()
        optimizer.zero_grad()
        positions.append(model.weight.item())
    moves = torch.tensor(positions).diff()
    torch.testing.assert_close(moves, torch.full((300,), 0.01), rtol=1e-9, atol=1e-12)
    assert optimizer.momentum_beta > 0.93


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_uncorrected_adam_with_default_settings_is_torchs(weight_decay):
    model, twin = twins(mlp)
    optimizer = unstale.CorrectedAdam(model, correction="none", weight_decay=weight_decay)
    theirs = (torch.optim.AdamW if weight_decay else torch.optim.Adam)(twin.parameters(), weight_decay=weight_decay)
    one, two = Stream(), Stream()
    for _ in range(250):  # past the step at which β would grow
        optimizer.backward(*one.batch(model)())
        value, target = two.batch(twin)()
        (0.5 * (value - target.detach()).square()).mean().backward()
        for each in (optimizer, theirs):
            each.step()
            each.zero_grad()
    torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-11, atol=1e-11)


def test_a_given_beta_may_follow_one_that_grew():
    """Schedulers may set β at any time, also to None."""
    model, _ = twins(mlp)
    optimizer, stream = unstale.CorrectedSGD(model, lr=0.01, correction="dense"), Stream()
    train(model, optimizer, stream, 3)
    optimizer.param_groups[0]["beta"] = 0.5
    assert optimizer.momentum_beta == 0.5
    train(model, optimizer, stream, 3)
    optimizer.param_groups[0]["beta"] = None
    assert optimizer.momentum_beta == 0.9
    train(model, optimizer, stream, 3)
    assert parameters_of(model).isfinite().all()


def test_a_changed_beta_is_debiased_by_the_weights_of_the_mean():
    """A scheduler that changes β does not change the scale of the step."""
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = unstale.CorrectedAdam(model, lr=0.0, betas=(0.9, 0.999), correction="diagonal")
    value = torch.ones(2, 1)
    for step in range(60):
        if step == 50:
            optimizer.param_groups[0]["betas"] = (0.999, 0.999)
        optimizer.zero_grad()
        optimizer.backward(model(value).squeeze(-1), 0.5 * model(value).squeeze(-1) + 1)
        optimizer.step()
        state = optimizer.state_of("group 0")
        gradient = state["mu"] / state["mean_weight"]  # constant gradients have themselves as their mean
        torch.testing.assert_close(gradient, model.weight.grad.flatten())


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("samples", [1, 4])
def test_predictions_of_another_network_are_refused_at_once(samples, seed):
    model, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    optimizer = unstale.CorrectedAdam(model, lr=0.1, seed=seed)
    x = torch.randn(samples, 2)
    with pytest.raises(ValueError, match="prediction depends on none of this optimizer's parameters"):
        optimizer.backward(other(x).squeeze(-1), 0.9 * other(x).squeeze(-1))


def test_automatic_slots_never_warn():
    model = torch.nn.Sequential(torch.nn.Linear(8, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = unstale.CorrectedAdam(model, lr=0.1)
    x = torch.randn(512, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.backward(model(x).squeeze(-1), 0.9 * model(x).squeeze(-1))
    assert optimizer.ready_groups()[0].plan["correction"] == "reservoir"


@pytest.mark.parametrize("optimizer", [unstale.CorrectedAdam, unstale.CorrectedRMSprop])
@pytest.mark.parametrize("options", [{}, dict(correction="window"), dict(correction="reservoir", slots=64)], ids=str)
@pytest.mark.parametrize("lr", [1e-4, 1e-2])
def test_values_without_gradients_do_not_explode(optimizer, options, lr):
    """Tabular TD from zero: a sample without an error has no scale, but a correction as soon as its target moves."""
    table = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(table.weight)
    optimizer = optimizer(table, lr=lr, **options)
    states, steps = torch.eye(3), 300
    for step in range(steps):
        state = step % 3
        value, following = (
            table(states[state : state + 1]).squeeze(-1),
            table(states[(state + 1) % 3 :][:1]).squeeze(-1),
        )
        optimizer.zero_grad()
        optimizer.backward(value, 1 + 0 * value if state == 2 else following)
        optimizer.step()
    largest = table.weight.detach().abs().max()
    assert largest < 10 * lr * steps and largest < 1.5


def test_parameters_that_a_batch_does_not_use_take_no_room():
    """An embedding table stays a list of rows when a batch comes that does not look anything up."""
    table, head = nn.Embedding(1000, 8), nn.Linear(8, 1)
    optimizer = unstale.CorrectedAdam(
        [*table.parameters(), *head.parameters()], lr=1e-3, correction="reservoir", slots=50
    )
    for step in range(60):
        features = table(torch.randint(1000, (4,))) if step % 3 else torch.randn(4, 8)
        value = head(features).squeeze(-1)
        optimizer.backward(value, 0.5 * value + 1)
        optimizer.step()
        optimizer.zero_grad()
    stored = [t for piece in optimizer.state_of("group 0")["memory"]["pieces"] for t in piece["tensors"]]
    assert sum(t.numel() for t in stored) < 50 * 200


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.filterwarnings("ignore::unstale.SlowGradientsWarning")
def test_slots_take_at_most_their_bytes_whatever_a_sample_stores(seed, monkeypatch):
    """A recurrent layer stores whole matrices per sample, far more than its shapes suggest."""
    monkeypatch.setattr(select, "MAX_SLOT_BYTES", 1 << 20)
    cell, head = nn.LSTM(8, 32, batch_first=True), nn.Linear(32, 1)
    optimizer = unstale.CorrectedAdam([*cell.parameters(), *head.parameters()], lr=1e-3, seed=seed)
    for _ in range(25):
        value = head(cell(torch.randn(4, 5, 8))[0][:, -1]).squeeze(-1)
        optimizer.backward(value, 0.5 * value + 1)
        optimizer.step()
        optimizer.zero_grad()
    state = optimizer.state_of("group 0")
    stored = [t for piece in state["memory"]["pieces"] for t in piece["tensors"]]
    assert sum(t.numel() * t.element_size() for t in stored) <= 1.1 * (1 << 20)
    assert state["plan"] == optimizer.ready_groups()[0].plan
