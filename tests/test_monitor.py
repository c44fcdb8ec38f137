"""The monitor of torch's optimizers against literal sums over all batches, and training beside it."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from problems import Stream, linear, mlp, parameters_of, twins
from reference import derivatives, flat, gradient_of, per_sample
from test_follow import UPDATES, TargetStream, pairs, polyak, through_data
from torch import nn

import unstale
from unstale._advice import ABOVE_ONE, MEANINGS, advise

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8),
    "dampened": lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.8, dampening=0.6),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.7, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.03, betas=(0.8, 0.99)),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.03, betas=(0.8, 0.99), amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.03, betas=(0.8, 0.99), weight_decay=0.1),
}
LOSSES = {
    "half_squared": lambda x: x**2 / 2,
    "squared": torch.square,
    "huber": lambda x: torch.where(x.abs() <= 1, x**2 / 2, x.abs() - 0.5),
}


class Literal:
    """All batches with their weights in the momentum, gradients and Taylor terms, in plain sums."""

    def __init__(self, model, optimizer, followed=()):
        self.parameters, self.optimizer = list(model.parameters()), optimizer
        self.joint = [*self.parameters, *followed]
        self.batches = []

    def observe(self, batch, loss, scale=1.0):
        """Before the step: the batch as it is now. Its gradient is multiplied by ``scale`` later."""
        prediction, target = batch()
        _, slope, curvature = derivatives(loss, (prediction - target).detach())
        v = per_sample(prediction, self.parameters)
        u = per_sample(prediction, self.joint) - per_sample(target, self.joint)
        self.batches.append(
            dict(batch=batch, loss=loss, scale=scale, target=target.detach(), point=flat(self.joint), weight=None,
                 gradient=v.T @ slope / len(v), taylor=u.T @ (curvature.unsqueeze(1) * v) / len(v))
        )  # fmt: skip

    def step(self):
        """After the step: all weights decay, those of new batches are set."""
        (group,) = self.optimizer.param_groups
        beta = group["betas"][0] if "betas" in group else group["momentum"]
        is_first = all(batch["weight"] is None for batch in self.batches)
        fresh = 1 - beta if "betas" in group else (1.0 if is_first else 1 - group["dampening"])
        for batch in self.batches:
            batch["weight"] = fresh if batch["weight"] is None else batch["weight"] * beta

    def readings(self, last=None):
        """Of the last so many batches."""
        every = self.batches
        mu = sum(b["weight"] * b["scale"] * b["gradient"] for b in every)
        kept, now = every[-last:] if last else every, flat(self.joint)
        eta = -sum(b["weight"] * b["scale"] * b["taylor"].T @ (now - b["point"]) for b in kept)
        change, fresh, drift, error = torch.zeros_like(mu), [], 0.0, 0.0
        for b in kept:
            prediction, target = b["batch"]()
            residual = (prediction - target).detach()
            _, slope, _ = derivatives(b["loss"], residual)
            fresh.append(gradient_of((prediction * slope).mean(), self.parameters))
            change += b["weight"] * b["scale"] * (b["gradient"] - fresh[-1])
            drift += b["weight"] * float((target.detach() - b["target"]).square().mean())
            error += b["weight"] * float(residual.square().mean())
        bound = min(1.0, float(mu.norm() / eta.norm()))
        total, count = sum(b["weight"] for b in kept), len(kept)
        pairs = [fresh[i] @ fresh[j] for i in range(count) for j in range(count) if i != j]
        return {
            "staleness": float(change.norm() / mu.norm()),
            "predicted_staleness": float(eta.norm() / mu.norm()),
            "agreement": cosine(mu, mu - change),
            "corrected_agreement": cosine(mu - bound * eta, mu - change),
            "change": bound * float(eta.norm() / mu.norm()),
            "drift": math.sqrt(drift / total),
            "relative_drift": math.sqrt(drift / error),
            "noise": 1 - float(sum(pairs) / max(1, len(pairs)) / (sum(g @ g for g in fresh) / count)),
            "coverage": total / sum(b["weight"] for b in every),
        }


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


def train(make, optimizer_of, steps, *, loss="half_squared", factor=1.0, as_function=True, clip=None, **options):
    """A plain loop with a monitor and the literal sums beside it."""
    model, _ = twins(make)
    optimizer = optimizer_of(model.parameters())
    monitor, stream = unstale.Monitor(model, optimizer, **options), Stream()
    literal, elementwise = Literal(model, optimizer), LOSSES[loss]
    for step in range(steps):
        batch = stream.batch(model)
        literal.observe(batch, elementwise, factor)
        given = (batch,) if as_function else batch()
        value, target = monitor.observe(*given, loss=loss)
        (factor * elementwise(value - target.detach()).mean()).backward()
        if clip:
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), clip))
            literal.batches[-1]["scale"] *= min(1.0, clip / (norm + 1e-6))
        optimizer.step()
        optimizer.zero_grad()
        literal.step()
        if step == steps // 2:  # as schedulers may do
            for group in optimizer.param_groups:
                group.update({"betas": (0.85, 0.99)} if "betas" in group else {"momentum": 0.85})
    return model, monitor, literal


def check(found, expected, names=None):
    for name in names or expected:
        assert found[name] == pytest.approx(expected[name], rel=1e-8, abs=1e-10), name


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_readings_are_the_literal_ones(name, loss):
    _, monitor, literal = train(mlp, OPTIMIZERS[name], 12, loss=loss, horizon=30)
    found = monitor.read()
    check(found, literal.readings())
    assert found["coverage"] == pytest.approx(1) and found["gradient_match"] == pytest.approx(1)
    assert found["staleness"] > 0.02 and found["drift"] > 0.001
    assert (found["batch"], found["memory"]) == (4, pytest.approx(1 / 0.15))
    assert set(found) == set(MEANINGS) and all(type(value) is float for value in found.values())


@pytest.mark.parametrize("name", ["slow sgd", "adamw"])
def test_a_linear_model_is_predicted_exactly(name):
    """There is nothing to approximate; within the bound, corrected momentum is that of now."""
    optimizers = OPTIMIZERS | {"slow sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.8)}
    _, monitor, _ = train(linear, optimizers[name], 12, horizon=30)
    found = monitor.read()
    assert found["predicted_staleness"] == pytest.approx(found["staleness"], rel=1e-10)
    assert found["change"] == pytest.approx(found["staleness"], rel=1e-10) and 0.01 < found["change"] < 1
    assert found["corrected_agreement"] == pytest.approx(1, abs=1e-12) and found["agreement"] < 0.999


@pytest.mark.parametrize("horizon", [1, 3, None])
def test_horizon(horizon):
    """Older batches count as if they had not changed, and coverage says how much weight they have."""
    _, monitor, literal = train(mlp, OPTIMIZERS["adam"], 14, horizon=horizon)
    found, expected = (
        monitor.read(),
        literal.readings(last=horizon or unstale.paper_horizon(0.8)) if horizon != 1 else {},
    )
    if horizon == 1:
        assert math.isnan(found["noise"]) and 0 < found["coverage"] < 0.2
    check(found, expected)


@pytest.mark.parametrize(("factor", "clip"), [(2.0, None), (0.01, None), (1.0, 0.1), (3.0, 0.5)])
def test_scaled_gradients_are_recognized(factor, clip):
    """A factor of the loss, clipping, or both."""
    _, monitor, literal = train(mlp, OPTIMIZERS["adam"], 10, factor=factor, clip=clip, horizon=30)
    check(monitor.read(), literal.readings())


def test_tensors_measure_what_they_can():
    functions, tensors = (train(mlp, OPTIMIZERS["adam"], 10, as_function=given)[1].read() for given in (True, False))
    needs_functions = ("staleness", "agreement", "corrected_agreement", "drift", "relative_drift", "noise", "cost")
    assert all(math.isnan(tensors[name]) for name in needs_functions)
    check(tensors, functions, set(MEANINGS) - set(needs_functions))


@pytest.mark.parametrize("name", ["dampened", "adam"])
def test_unobserved_steps_only_let_momentum_decay(name):
    """A batch that was not observed counts as one that did not change."""
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS[name](model.parameters())
    monitor, stream, literal = unstale.Monitor(model, optimizer, horizon=30), Stream(), Literal(model, optimizer)
    observed = [False, True, True, False, False, True, False, True, True, False]
    for is_observed in observed:
        batch = stream.batch(model)
        literal.observe(batch, LOSSES["squared"])
        value, target = monitor.observe(batch, loss="squared") if is_observed else batch()
        nn.functional.mse_loss(value, target.detach()).backward()
        optimizer.step()
        optimizer.zero_grad()
        literal.step()
    everything = list(literal.batches)
    for missed in (batch for batch, is_observed in zip(everything, observed, strict=True) if not is_observed):
        missed["taylor"] = torch.zeros_like(missed["taylor"])
    found = monitor.read()
    check(found, literal.readings(), ["predicted_staleness", "change"])
    seen = [batch for batch, is_observed in zip(everything, observed, strict=True) if is_observed]
    weights = sum(b["weight"] for b in seen), sum(b["weight"] for b in everything)
    assert found["coverage"] == pytest.approx(weights[0] / weights[1])
    literal.batches = seen
    check(found, literal.readings(), ["drift", "relative_drift", "noise"])


def test_accumulated_batches_are_one_step():
    """Two halves of a batch read as the whole, but for noise, which is estimated from the halves."""
    found = []
    for parts in ([slice(0, 4)], [slice(0, 2), slice(2, 4)]):
        model, _ = twins(mlp)
        optimizer = OPTIMIZERS["adam"](model.parameters())
        monitor, stream = unstale.Monitor(model, optimizer), Stream()
        for _ in range(6):
            batch = stream.batch(model)
            for part in parts:
                half = lambda batch=batch, part=part: tuple(x[part] for x in batch())  # noqa: E731
                value, target = monitor.observe(half, weight=1 / len(parts))
                (nn.functional.mse_loss(value, target.detach()) / 2 / len(parts)).backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append(monitor.read())
    check(*found, set(MEANINGS) - {"noise", "cost"})


def test_other_losses_lower_the_match():
    """They are part of the momentum, but do not become stale as far as the monitor knows."""
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    monitor, stream = unstale.Monitor(model, optimizer), Stream()
    matches = []
    for strength in (0.0, 0.3, 100.0):
        for _ in range(8):
            value, target = monitor.observe(stream.batch(model))
            other = strength * model(torch.ones(1, 3)).mean() * 1e-2
            (0.5 * (value - target.detach()).square().mean() + other).backward()
            optimizer.step()
            optimizer.zero_grad()
        matches.append(monitor.read()["gradient_match"])
    assert matches[0] == pytest.approx(1) and matches[0] > matches[1] > matches[2]


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_monitor_that_comes_late_knows_what_it_missed(name):
    """Momentum from before counts in the coverage."""
    model, _ = twins(mlp)
    optimizer, stream = OPTIMIZERS[name](model.parameters()), Stream()

    def step(monitor=None):
        value, target = stream.batch(model)() if monitor is None else monitor.observe(stream.batch(model))
        nn.functional.mse_loss(value, target.detach()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(100):
        step()
    monitor = unstale.Monitor(model, optimizer)
    for _ in range(3):
        step(monitor)
    assert monitor.read()["coverage"] == pytest.approx(1 - 0.8**3, rel=1e-6)


class Noisy(nn.Module):
    """Random numbers and a buffer in every forward call."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 1))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.layers(x)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("make", [mlp, Noisy])
def test_training_does_not_change(name, make):
    """Observed, read, printed and timed at every step, between any two lines, it is the same to the last bit."""
    ends = []
    for is_watched in (True, False):
        model, _ = twins(make)
        optimizer = OPTIMIZERS[name](model.parameters())
        monitor, stream = unstale.Monitor(model, optimizer) if is_watched else None, Stream()
        for _ in range(5):
            batch = stream.batch(model)
            value, target = monitor.observe(batch) if monitor else batch()
            if monitor:
                monitor.read()
            (0.5 * (value - target.detach()).square().mean()).backward()
            if monitor:
                str(monitor)
            optimizer.step()
            if monitor:
                monitor.measure_cost(steps=1, rounds=1)
                monitor.advice()
            optimizer.zero_grad()
        state = [x for p in model.parameters() for x in optimizer.state[p].values() if isinstance(x, torch.Tensor)]
        ends.append([parameters_of(model), *model.buffers(), torch.get_rng_state(), *state])
    assert len(ends[0]) == len(ends[1]) and all(map(torch.equal, *ends))


def test_cost_is_measured_on_request():
    """The durations themselves are not tested."""
    model, monitor, _ = train(mlp, OPTIMIZERS["adam"], 3)
    places = [p.data_ptr() for p in model.parameters()]
    assert math.isnan(monitor.read()["cost"])
    cost = monitor.measure_cost(steps=2, rounds=3)
    assert 0 < cost < math.inf and monitor.read()["cost"] == cost
    assert [p.data_ptr() for p in model.parameters()] == places  # copies were trained
    _, without_functions, _ = train(mlp, OPTIMIZERS["adam"], 3, as_function=False)
    assert math.isnan(without_functions.measure_cost())


def test_cost_leaves_other_networks_alone():
    """The prediction depends on a trunk that another optimizer trains: its ``.grad`` is not touched."""
    trunk, head, stream = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1), Stream()
    model = torch.nn.Sequential(trunk, torch.nn.Tanh(), head)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.1)
    monitor = unstale.Monitor(head, optimizer)
    value, target = monitor.observe(stream.batch(model))
    (value - target.detach()).square().mean().backward()
    optimizer.step()
    before = trunk.weight.grad.clone()
    trunk.bias.grad = None
    monitor.measure_cost(steps=1, rounds=1)
    assert torch.equal(trunk.weight.grad, before) and trunk.bias.grad is None


def test_cost_refuses_hooks_that_step():
    model, monitor, _ = train(mlp, OPTIMIZERS["adam"], 3)
    model[0].weight.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(RuntimeError, match="hooks that run after"):
        monitor.measure_cost()


def test_nothing_observed_is_not_a_number():
    model, _ = twins(mlp)
    monitor = unstale.Monitor(model, OPTIMIZERS["adam"](model.parameters()))
    found = monitor.read()
    assert {name for name, value in found.items() if not math.isnan(value)} == {"memory", "coverage"}
    assert found["coverage"] == 0.0 and monitor.advice().startswith("Too early to say: 0% of the momentum")
    assert str(monitor).count("not measured") == len(MEANINGS) - 2


def test_batches_that_are_not_finite_are_not_remembered():
    """Their steps count as unobserved."""
    model, monitor, literal = train(mlp, OPTIMIZERS["adam"], 4)
    batch = Stream(seed=1).batch(model)
    literal.observe(batch, LOSSES["half_squared"])
    monitor.observe(model(X).squeeze(-1), math.nan * model(X).squeeze(-1))
    value, target = batch()
    (0.5 * (value - target.detach()).square().mean()).backward()
    literal.optimizer.step()
    literal.step()
    found, expected = monitor.read(), literal.readings()
    missed = literal.batches[-1]["weight"]
    assert found["coverage"] == pytest.approx(1 - missed / sum(b["weight"] for b in literal.batches))
    assert found["gradient_match"] == pytest.approx(1) and found["staleness"] < expected["staleness"]


def test_a_step_without_gradients_changes_nothing():
    """Torch's optimizers leave momentum alone then."""
    model, monitor, literal = train(mlp, OPTIMIZERS["sgd"], 4)
    before = monitor.read()
    monitor.observe(model(X).squeeze(-1), model(X).squeeze(-1))
    literal.optimizer.step()
    check(monitor.read(), before, set(MEANINGS) - {"cost"})


def test_targets_are_remembered_as_they_were():
    """Also if their tensor is written to afterwards."""
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["adam"](model.parameters())
    monitor, target = unstale.Monitor(model, optimizer), torch.zeros(4)
    with pytest.warns(unstale.ConstantTargetWarning):
        value, _ = monitor.observe(lambda: (model(X).squeeze(-1), target))
    value.sum().backward()
    optimizer.step()
    target += 0.5
    assert monitor.read()["drift"] == pytest.approx(0.5)


def test_close():
    """A closed monitor no longer sees steps."""
    model, monitor, literal = train(mlp, OPTIMIZERS["adam"], 4)
    monitor.close()
    before = monitor.read()["coverage"]
    monitor.observe(batch := Stream().batch(model))
    batch()[0].sum().backward()
    literal.optimizer.step()
    assert monitor.read()["coverage"] == before


# ------------------------------------------------------------------------------------------------- refused inputs


def groups_of(model, **second):
    return [{"params": model[0].parameters()}, {"params": model[2:].parameters(), **second}]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda m: torch.optim.RMSprop(m.parameters()), TypeError, "SGD, Adam and AdamW, not of RMSprop"),
        (lambda m: torch.optim.NAdam(m.parameters()), TypeError, "not of NAdam"),
        (lambda m: unstale.CorrectedAdam(m), TypeError, r"not of CorrectedAdam.*diagnostics\.read"),
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.1), ValueError, "this SGD has no momentum"),
        (lambda m: torch.optim.Adam(m.parameters(), betas=(0.0, 0.9)), ValueError, "this Adam has no momentum"),
        (lambda m: torch.optim.Adam(m.parameters(), maximize=True), ValueError, "maximize=True"),
        (lambda m: torch.optim.Adam(m[:2].parameters()), ValueError, r"4 of 6 trainable .*'2\.weight'.*part of the"),
        (lambda m: torch.optim.Adam(groups_of(m, betas=(0.5, 0.9))), ValueError, "different momentum"),
        (lambda m: torch.optim.Adam([p.requires_grad_(False) for p in m.parameters()]), ValueError, "no trainable"),
    ],
)  # fmt: skip
def test_refused_optimizers(make, error, message):
    model = mlp()
    with pytest.raises(error, match=message):
        unstale.Monitor(model, make(model))


def test_a_part_of_what_an_optimizer_trains_can_be_watched():
    critic, actor = mlp(), mlp()
    optimizer = torch.optim.Adam([{"params": critic.parameters()}, {"params": actor.parameters(), "betas": (0.5, 0.9)}])
    assert unstale.Monitor(critic, optimizer).read()["memory"] == pytest.approx(10)
    assert unstale.Monitor(actor, optimizer).read()["memory"] == pytest.approx(2)


@pytest.mark.parametrize("horizon", [0, -1, 2.5])
def test_refused_horizons(horizon):
    model = mlp()
    with pytest.raises(ValueError, match="horizon must be a whole number"):
        unstale.Monitor(model, OPTIMIZERS["adam"](model.parameters()), horizon=horizon)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda m, other: (m(X).squeeze(-1),), TypeError, r"observe\(\) needs a target"),
        (lambda m, other: (m(X), torch.zeros(4)), ValueError, "same shape"),
        (lambda m, other: (torch.zeros(4), m(X).squeeze(-1)), ValueError, "look swapped"),
        (lambda m, other: (other(X).squeeze(-1), m(X).squeeze(-1)), ValueError, "none of this optimizer's parameters"),
        (lambda m, other: (lambda: m(X),), TypeError, "must return the pair"),
    ],
)
def test_refused_batches(arguments, error, message):
    model, other = twins(mlp)
    monitor = unstale.Monitor(model, OPTIMIZERS["adam"](model.parameters()))
    with pytest.raises(error, match=message):
        monitor.observe(*arguments(model, other))


X = torch.ones(4, 3, dtype=torch.float64)


def test_slow_gradients_are_named_once():
    model, _ = twins(lambda: nn.Sequential(nn.Linear(3, 4), nn.Bilinear(4, 4, 1)))
    optimizer = OPTIMIZERS["adam"](model.parameters())
    monitor = unstale.Monitor(model, optimizer)
    with pytest.warns(unstale.SlowGradientsWarning) as caught:
        for _ in range(2):
            hidden = model[0](X)
            value = model[1](hidden, hidden).squeeze(-1)
            monitor.observe(value, 0.9 * value)
    assert len(caught) == 1


# -------------------------------------------------------------------------------------------------- target networks


def train_with_target(make, update, steps=12, follow=True):
    """A plain loop with a target network, a monitor and the literal sums beside it."""
    (model, target), _ = pairs(make)
    optimizer = OPTIMIZERS["adam"](model.parameters())
    monitor, stream = unstale.Monitor(model, optimizer, horizon=30), TargetStream()
    if follow:
        monitor.follow(target)
    literal = Literal(model, optimizer, target.parameters() if follow else ())
    for step in range(steps):
        batch = stream.batch(model, target)
        literal.observe(batch, LOSSES["half_squared"])
        value, level = monitor.observe(batch)
        (0.5 * (value - level.detach()).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        literal.step()
        update(model, target, step)
    return model, target, monitor, literal


@pytest.mark.parametrize("update", UPDATES)
def test_followed_networks_read_as_the_literal_ones(update):
    _, target, monitor, literal = train_with_target(mlp, UPDATES[update])
    check(monitor.read(), literal.readings())
    assert all(p.grad is None for p in target.parameters())


def test_a_followed_network_is_predicted_exactly_if_values_are_linear():
    _, _, monitor, _ = train_with_target(linear, polyak)
    found = monitor.read()
    assert found["predicted_staleness"] == pytest.approx(found["staleness"], rel=1e-10)
    assert found["corrected_agreement"] == pytest.approx(1, abs=1e-12) and found["agreement"] < 1 - 1e-5
    with pytest.warns(unstale.UnfollowedTargetWarning, match=r"monitor\.follow\(target_network\)") as caught:
        _, _, monitor, _ = train_with_target(linear, polyak, follow=False)
    assert len(caught) == 1  # of twelve batches
    assert monitor.read()["corrected_agreement"] < 1 - 1e-5


def test_a_constant_target_warns_once():
    model, _ = twins(mlp)
    monitor = unstale.Monitor(model, OPTIMIZERS["adam"](model.parameters()))
    with pytest.warns(unstale.ConstantTargetWarning, match=r"half of the staleness is predicted.*no detach") as caught:
        for level in (torch.zeros(4), model(X).squeeze(-1).detach(), 0.0):
            monitor.observe(model(X).squeeze(-1), level)
    assert len(caught) == 1


def test_cost_is_that_of_following():
    """The corrected optimizer that is timed follows the same network, so it has no reason to warn."""
    _, target, monitor, _ = train_with_target(mlp, polyak, steps=2)
    followed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unstale.CorrectedAdam, "follow", lambda _, network: followed.extend(network))
        monitor.measure_cost(steps=1, rounds=1)
    assert list(map(id, followed)) == list(map(id, target.parameters()))


def test_a_replaced_network_is_named_and_can_be_followed_again():
    """The displacement of the new network is that of the old one's values."""
    ours, theirs = (train_with_target(mlp, polyak, steps=5) for _ in range(2))
    replaced = copy.deepcopy(ours[1])
    stream = TargetStream(seed=3)
    with pytest.warns(unstale.UnfollowedTargetWarning, match="the followed network was replaced"):
        ours[2].observe(stream.batch(ours[0], replaced))
    literal = ours[3]
    literal.optimizer.step()  # without gradients: the batch is not remembered
    ours[2].follow(replaced)
    for model, target, monitor, each in ((ours[0], replaced, *ours[2:]), theirs):
        stream = TargetStream(seed=4)
        for _ in range(3):
            value, level = monitor.observe(stream.batch(model, target))
            (0.5 * (value - level.detach()).square().mean()).backward()
            each.optimizer.step()
            each.optimizer.zero_grad()
            polyak(model, target, 0)
    check(ours[2].read(), theirs[2].read(), ["predicted_staleness", "change", "coverage"])


def test_what_a_monitor_cannot_follow_is_refused():
    model, target, monitor, _ = train_with_target(mlp, polyak, steps=2)
    with pytest.raises(RuntimeError, match=r"before the first observe\(\).*of the same shapes"):
        monitor.follow(mlp(width=7))
    with pytest.raises(ValueError, match="parameters of its own"):
        monitor.follow(model)
    monitor.observe(TargetStream().batch(model, target))
    with pytest.raises(RuntimeError, match="its batches are pending"):
        monitor.follow(target)
    through_data(model, target, 0)
    with pytest.raises(RuntimeError, match=r"two calls of observe\(\).*after step\(\)"):
        monitor.observe(TargetStream().batch(model, target))
    late = unstale.Monitor(model, OPTIMIZERS["adam"](model.parameters()))
    late.follow([target])
    target[0].requires_grad_(False)
    with pytest.raises(ValueError, match="requires_grad=False"):
        late.observe(TargetStream().batch(model, target))


# --------------------------------------------------------------------------------------------------------- advice

READING = dict.fromkeys(MEANINGS, math.nan) | {
    "staleness": 0.7, "predicted_staleness": 0.6, "agreement": 0.5, "corrected_agreement": 0.99, "change": 0.6,
    "drift": 0.1, "relative_drift": 0.5, "noise": 0.9, "memory": 10.0, "batch": 16.0, "coverage": 0.87,
    "gradient_match": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "Momentum is stale and gradients are noisy (staleness 0.7): try unstale.CorrectedAdam"),
        ({"cost": 1.83}, "at 1.8 times the time of a step"),
        ({"staleness": 0.01}, "Momentum is fresh, but gradients are noisy (staleness 0.01): try unstale"),
        ({"staleness": math.nan}, "(staleness 0.6): try unstale"),
        ({"coverage": 0.2}, "Too early to say: 20% of the momentum was observed"),
        ({"gradient_match": 0.1}, "little of what is in .grad"),
        ({"relative_drift": 0.0}, "Targets do not move over the memory of Adam: keep it"),
        ({"noise": 0.2}, "Only 20% of a gradient is noise"),
        ({"batch": 256.0}, "Batches of 256 average much noise away: keep Adam and anneal"),
        ({"corrected_agreement": 0.4}, "the correction does not follow it (agreement 0.40, without it 0.50)"),
        (dict.fromkeys(["staleness", "agreement", "corrected_agreement", "drift", "relative_drift", "noise"], math.nan),
         "(staleness 0.6): try unstale.CorrectedAdam"),
    ],
)  # fmt: skip
def test_advice(changed, expected):
    found = advise(READING | changed, "Adam")
    assert expected in found
    assert found.endswith(".") and "\n" not in found and "nan" not in found


def test_advice_waits_until_the_memory_is_full():
    make = lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.99))  # noqa: E731
    assert train(mlp, make, 3)[1].advice().startswith("Too early to say")
    assert not train(mlp, make, 12)[1].advice().startswith("Too early to say")


def test_advice_asks_for_follow_where_targets_move_with_another_network():
    (model, target), _ = pairs(mlp)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    monitor, stream = unstale.Monitor(model, optimizer), TargetStream()
    for _ in range(12):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", unstale.UnfollowedTargetWarning)
            prediction, value = monitor.observe(stream.batch(model, target))
        optimizer.zero_grad()
        (0.5 * (prediction - value.detach()) ** 2).mean().backward()
        optimizer.step()
        polyak(model, target, 0)
    assert "call follow(target_network)" in monitor.advice()


def test_table_explains_readings_above_one():
    _, monitor, _ = train(mlp, lambda p: torch.optim.SGD(p, lr=0.8, momentum=0.8), 12)
    reading = monitor.read()
    above = [name for name in ABOVE_ONE if reading[name] > 1]
    assert above
    lines = str(monitor).splitlines()
    assert lines[0] == "Momentum of SGD, 10 steps remembered" and lines[-1] == monitor.advice()
    for name in MEANINGS:
        (number,) = [number for number, line in enumerate(lines) if line.split()[0] == name]
        assert (lines[number + 1].strip() == f"above 1: {ABOVE_ONE.get(name)}") == (name in above)
    assert max(map(len, lines[:-1])) <= 130
