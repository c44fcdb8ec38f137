"""Diagnostics against loops over remembered batches, computed with the reference."""

from __future__ import annotations

import math

import pytest
import torch
from problems import Stream, linear, mlp, parameters_of, twins
from reference import Reference, block_mask, derivatives, diagonal_mask, flat, gradient_of, half_squared, per_sample

import unstale
from unstale.corrections import describe
from unstale.diagnostics import DriftMonitor, groups, read, skipped_steps
from unstale.momentum import MEMORY_SHARE

# Some options are given to all corrections, although not all of them use them.
pytestmark = pytest.mark.filterwarnings("ignore::unstale.UnusedOptionWarning")

BETA = 0.8
SPARSE = dict(correction="reservoir", slots=4, seed=1)  # nothing of the first batch enters


def huber(residual):
    return torch.where(residual.abs() <= 1, residual**2 / 2, residual.abs() - 0.5)


LOSSES = {"half_squared": half_squared, "squared": torch.square, "huber": huber}


class Kept:
    """A batch as it was when it was used: its target, gradient, Taylor term and parameters."""

    def __init__(self, batch, parameters, loss=half_squared):
        self.batch, self.parameters, self.loss = batch, parameters, loss
        prediction, target = batch()
        _, slope, curvature = derivatives(loss, (prediction - target).detach())
        v = per_sample(prediction, parameters)
        u = v - per_sample(target, parameters)
        self.target = target.detach()
        self.gradient = v.T @ slope / len(v)
        self.taylor = u.T @ (curvature.unsqueeze(1) * v) / len(v)
        self.point = flat(parameters)

    def drift(self):
        """The mean squared change of the target until now."""
        return float((self.batch()[1].detach() - self.target).square().mean())

    def true(self):
        """``∇J(θ)`` at the current parameters."""
        prediction, target = self.batch()
        _, slope, _ = derivatives(self.loss, (prediction - target).detach())
        return gradient_of((prediction * slope).mean(), self.parameters)

    def agreement(self):
        """``cos(g + Zᵀ(θ_t - θ_i), ∇J(θ_t))``."""
        return cosine(self.gradient + self.taylor.T @ (flat(self.parameters) - self.point), self.true())

    def stale_agreement(self):
        return cosine(self.gradient, self.true())


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


def mean(numbers):
    return sum(numbers) / len(numbers)


def observe_training(make, optimizer_of, steps, monitor_of, loss="half_squared"):
    """Train with a monitor, and keep everything beside it."""
    model, _ = twins(make)
    parameters = list(model.parameters())
    optimizer = optimizer_of(model)
    monitor, stream, kept = monitor_of(optimizer), Stream(), []
    for _ in range(steps):
        batch = stream.batch(model)
        kept.append(Kept(batch, parameters, LOSSES[loss]))
        optimizer.backward(batch, loss=loss)
        optimizer.step()
        optimizer.zero_grad()
    return optimizer, monitor, kept


OPTIMIZERS = {
    "sgd": lambda m, **o: unstale.CorrectedSGD(m, lr=0.2, beta=BETA, **o),
    "adam": lambda m, **o: unstale.CorrectedAdam(m, lr=0.05, betas=(BETA, 0.99), **o),
    "rmsprop": lambda m, **o: unstale.CorrectedRMSprop(m, lr=0.02, beta=BETA, **o),
    "tdprop": lambda m, **o: unstale.CorrectedTDprop(m, lr=0.02, betas=(BETA, 0.99), eps=1e-2, **o),
}
CORRECTIONS = ["none", "diagonal", "blocks", "dense", "window", "oracle"]


# ------------------------------------------------------------------------ DriftMonitor


@pytest.mark.parametrize(
    ("base", "loss"), [("sgd", "squared"), ("adam", "huber"), ("rmsprop", "half_squared"), ("tdprop", "huber")]
)
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_drift_and_agreement_are_the_loops(base, correction, loss):
    """It measures the batches and the parameters' path, whatever moved them, and whether it is corrected or not."""
    _, monitor, kept = observe_training(
        mlp, lambda m: OPTIMIZERS[base](m, correction=correction), 7, DriftMonitor, loss
    )
    found = monitor.read()
    weights = [BETA**age for age in range(len(kept))][::-1]
    drifts = [old.drift() for old in kept]
    assert found.batches == len(kept)
    assert found.drift == pytest.approx(mean(drifts), rel=1e-12)
    expected = sum(w * d for w, d in zip(weights, drifts, strict=True)) / sum(weights)
    assert found.weighted_drift == pytest.approx(expected, rel=1e-12)
    assert found.agreement == pytest.approx(mean([old.agreement() for old in kept]), abs=1e-12)
    assert found.stale_agreement == pytest.approx(mean([old.stale_agreement() for old in kept]), abs=1e-12)
    assert found.drift != pytest.approx(found.weighted_drift, rel=1e-3)  # or the test could not tell them apart


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_agreement_is_one_on_a_linear_value_function(correction):
    """Nothing is approximated there. The stale gradients do not agree, or the test could not fail."""
    _, monitor, _ = observe_training(
        linear, lambda m: unstale.CorrectedSGD(m, lr=0.5, beta=BETA, correction=correction), 8, DriftMonitor
    )
    found = monitor.read()
    assert found.agreement == pytest.approx(1, abs=1e-12)
    assert found.stale_agreement < 0.99


def test_agreement_is_less_than_one_on_a_network_after_large_steps():
    """Steps ten times larger carry the expansion out of its range."""
    found = []
    for lr in (0.01, 1.0):
        _, monitor, _ = observe_training(
            mlp, lambda m, lr=lr: unstale.CorrectedSGD(m, lr=lr, beta=BETA), 8, DriftMonitor
        )
        found.append(monitor.read())
    assert found[0].agreement > 0.999
    assert found[1].agreement < 0.99
    assert found[0].stale_agreement < found[0].agreement


@pytest.mark.parametrize(("horizon", "every"), [(None, 1), (4, 1), (1, 1), (6, 2), (5, 2), (None, 3), (7, 3)])
def test_horizon_and_every(horizon, every):
    """Every ``every``-th of the last ``horizon`` batches; the paper's ``2/(1-β)`` by default. Ages count steps."""
    steps = 14
    _, monitor, kept = observe_training(
        mlp, lambda m: OPTIMIZERS["sgd"](m), steps, lambda o: DriftMonitor(o, horizon=horizon, every=every)
    )
    window = horizon or unstale.paper_horizon(BETA)
    assert window < steps or horizon is None
    chosen = [number for number in range(every, steps + 1, every)][-math.ceil(window / every) :]
    found = monitor.read()
    assert found.batches == len(chosen)
    drifts = [kept[number - 1].drift() for number in chosen]
    weights = [BETA ** (steps - number) for number in chosen]
    assert found.drift == pytest.approx(mean(drifts), rel=1e-12)
    expected = sum(w * d for w, d in zip(weights, drifts, strict=True)) / sum(weights)
    assert found.weighted_drift == pytest.approx(expected, rel=1e-12)
    assert found.agreement == pytest.approx(mean([kept[number - 1].agreement() for number in chosen]), abs=1e-12)


@pytest.mark.parametrize("options", [dict(correction=name) for name in ("auto", "none")] + [SPARSE], ids=str)
def test_ages_are_steps_where_gradients_are_accumulated(options):
    """Momentum weighs both halves of a step alike, by β to the steps since."""
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](model, **options)
    monitor, stream, kept = DriftMonitor(optimizer), Stream(), []
    for step in range(4):
        for _ in range(2):
            batch = stream.batch(model)
            kept.append((step, Kept(batch, list(model.parameters()))))
            optimizer.backward(batch, weight=0.5)
        optimizer.step()
        optimizer.zero_grad()
    weights = [BETA ** (3 - step) for step, _ in kept]
    expected = sum(w * old.drift() for w, (_, old) in zip(weights, kept, strict=True)) / sum(weights)
    assert monitor.read().weighted_drift == pytest.approx(expected, rel=1e-12)


def test_a_constant_target_does_not_drift():
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](model)
    monitor = DriftMonitor(optimizer)
    x = torch.randn(4, 3)
    with pytest.warns(unstale.ConstantTargetWarning):
        optimizer.backward(lambda: (model(x).squeeze(-1), 1.0))
    optimizer.step()
    found = monitor.read()
    assert (found.drift, found.weighted_drift) == (0.0, 0.0)
    assert 0.9 < found.agreement < 1


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_monitor_changes_nothing(correction):
    """Watched and read at every step, even between ``backward`` and ``step``, training is the same to the last bit."""
    paths = []
    for watched in (True, False):
        model, _ = twins(mlp)
        optimizer = OPTIMIZERS["adam"](model, correction=correction)
        monitor, stream = DriftMonitor(optimizer, every=2) if watched else None, Stream()
        for step in range(5):
            optimizer.backward(stream.batch(model))
            if monitor is not None and step:
                grads = [p.grad.clone() for p in model.parameters()]
                monitor.read()
                assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
            optimizer.step()
            optimizer.zero_grad()
        paths.append(parameters_of(model))
    assert torch.equal(*paths)


@pytest.mark.parametrize("correction", ["none", "dense", "window"])
def test_the_whole_model_is_watched_group_by_group(correction):
    """The agreement is of all parameters together, also those of groups that are corrected apart."""
    _, monitor, kept = observe_training(
        mlp,
        lambda m: unstale.CorrectedSGD(
            [{"params": m[:2]}, {"params": m[2:]}], lr=0.2, beta=BETA, correction=correction
        ),
        6,
        DriftMonitor,
    )
    found = monitor.read()
    assert found.agreement == pytest.approx(mean([old.agreement() for old in kept]), abs=1e-12)
    assert found.drift == pytest.approx(mean([old.drift() for old in kept]), rel=1e-12)


def test_batches_given_as_tensors_cannot_be_remembered():
    """They still count as steps: the next function is as old as it is."""
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](model)
    monitor, stream = DriftMonitor(optimizer), Stream()

    def step(as_function):
        batch = stream.batch(model)
        kept = Kept(batch, list(model.parameters()))
        optimizer.backward(batch) if as_function else optimizer.backward(*batch())
        optimizer.step()
        optimizer.zero_grad()
        return kept

    with pytest.raises(RuntimeError, match=r"nothing was remembered.*batch as a function .*\(prediction, target\)"):
        monitor.read()
    step(False)
    with pytest.raises(RuntimeError, match="nothing was remembered"):
        monitor.read()
    first = step(True)
    step(False), step(False)
    last = step(True)
    found = monitor.read()
    assert found.batches == 2
    expected = (BETA**3 * first.drift() + last.drift()) / (BETA**3 + 1)
    assert found.weighted_drift == pytest.approx(expected, rel=1e-12)


def test_close():
    """A closed monitor no longer looks, and keeps what it saw; another one is not disturbed."""
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](model)
    closed, other, stream = DriftMonitor(optimizer), DriftMonitor(optimizer), Stream()
    for step in range(4):
        if step == 2:
            closed.close()
        optimizer.backward(stream.batch(model))
        optimizer.step()
        optimizer.zero_grad()
    assert closed.read().batches == 2
    assert other.read().batches == 4


def test_a_monitor_still_watches_after_a_state_was_loaded():
    """A monitor keeps working after an older state is loaded."""
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](model)
    monitor, stream = DriftMonitor(optimizer), Stream()
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.backward(stream.batch(model))
    optimizer.step()
    assert monitor.read().batches == 1
    monitor.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [(dict(every=0), "every must"), (dict(every=-1), "every must"), (dict(every=1.5), "every must"),
     (dict(horizon=0), "horizon must"), (dict(horizon=-2), "horizon must"), (dict(horizon=2.5), "horizon must")],
    ids=str,
)  # fmt: skip
def test_bad_options(options, message):
    optimizer = OPTIMIZERS["sgd"](mlp())
    with pytest.raises(ValueError, match=message):
        DriftMonitor(optimizer, **options)


# --------------------------------------------------------------------------- read


def staleness_of(reference, span=slice(None)):
    """``‖η‖ / ‖μ‖`` of the last step, before any bound, from what the reference remembers."""
    t = len(reference.gradients)
    weights = [(1 - BETA) * BETA ** (t - 1 - i) for i in range(t)]
    mu = sum(w * g for w, g in zip(weights, reference.gradients, strict=True))
    now = reference.points[-1]
    if reference.oracle:
        eta = mu - reference.mu_hat
    else:
        moved = zip(weights, reference.taylors, reference.points, strict=True)
        eta = -sum(w * z.T @ (now - point) for w, z, point in moved)
    return float(eta[span].norm() / mu[span].norm())


@pytest.mark.parametrize("trust", [None, 0.1], ids=["free", "bounded"])
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_staleness_is_the_references(correction, trust):
    """Of the correction as it was found, not as the bound left it; with the steps and those that were bounded."""
    model, twin = twins(mlp)
    parameters = list(twin.parameters())
    n = sum(p.numel() for p in parameters)
    mask = {
        "none": torch.zeros(n, n),
        "diagonal": diagonal_mask(parameters),
        "blocks": block_mask([p.numel() for p in parameters]),
    }.get(correction)
    optimizer = OPTIMIZERS["sgd"](model, correction=correction, trust=trust, horizon=50)
    reference = Reference(parameters, 0.2, BETA, mask=mask, trust=trust, oracle=correction == "oracle")
    one, two = Stream(), Stream()
    bounded = 0
    for step in range(1, 9):
        optimizer.backward(one.batch(model))
        optimizer.step()
        optimizer.zero_grad()
        reference.step(two.batch(twin))
        (found,) = groups(optimizer)
        expected = staleness_of(reference)
        bounded += trust is not None and correction != "oracle" and expected > trust
        is_bounded = trust is not None and correction not in ("none", "oracle")
        if correction == "none":  # nothing is measured
            assert math.isnan(found.staleness)
        else:
            assert found.staleness == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert found.steps == step
        assert found.bounded_share == pytest.approx(bounded / step if is_bounded else math.nan, nan_ok=True)
        assert found.correction == correction
    assert (found.staleness > 0.01) == (correction != "none")
    if trust is not None and correction in ("dense", "window"):
        assert 0 < bounded < 8


def test_groups_are_read_one_by_one():
    model, twin = twins(mlp)
    sizes = [sum(p.numel() for p in part.parameters()) for part in (model[:2], model[2:])]
    optimizer = OPTIMIZERS["sgd"](
        [{"params": model[:2]}, {"params": model[2:], "correction": "none"}], correction="dense", trust=None
    )
    mask = block_mask(sizes)
    mask[sizes[0] :] = 0
    reference = Reference(twin.parameters(), 0.2, BETA, mask=mask)
    one, two = Stream(), Stream()
    for _ in range(5):
        optimizer.backward(one.batch(model))
        optimizer.step()
        optimizer.zero_grad()
        reference.step(two.batch(twin))
    first, second = groups(optimizer)
    assert first.staleness == pytest.approx(staleness_of(reference, slice(0, sizes[0])), rel=1e-9)
    assert math.isnan(second.staleness) and math.isnan(second.bounded_share) and second.steps == 5
    assert (first.correction, second.correction) == ("dense", "none")


def test_reading_before_the_first_step():
    """Nothing is measured: NaN, not 0."""
    optimizer = OPTIMIZERS["sgd"](mlp())
    (found,) = groups(optimizer)
    assert math.isnan(found.staleness) and math.isnan(found.bounded_share)
    assert found[2:] == (0, "auto", BETA, "")
    assert skipped_steps(optimizer) == 0


@pytest.mark.parametrize("options", [{}, dict(trust=None), dict(correction="none"), SPARSE], ids=str)
def test_read_is_a_flat_dictionary_of_floats(options):
    """Its numbers are those of the groups; the names do not change from before the first step to after it."""
    model, _ = twins(mlp)
    optimizer, stream = OPTIMIZERS["sgd"](model, **options), Stream()
    before = read(optimizer)
    for _ in range(4):
        optimizer.backward(stream.batch(model))
        optimizer.step()
        optimizer.zero_grad()
    found, (group,) = read(optimizer), groups(optimizer)
    assert all(type(value) is float for value in (*before.values(), *found.values()))
    assert list(before) == list(found)
    expected = {
        "staleness": group.staleness, "bounded_share": group.bounded_share, "beta": BETA, "memory": 1 / (1 - BETA),
        "steps": 4.0, "skipped_steps": 0.0,
    }  # fmt: skip
    assert found == pytest.approx(expected, nan_ok=True)
    is_corrected = options.get("correction") != "none"
    assert math.isnan(before["staleness"]) and math.isfinite(found["staleness"]) == is_corrected
    assert math.isfinite(found["bounded_share"]) == (is_corrected and options.get("trust", 1) is not None)


def test_read_numbers_several_groups():
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["sgd"]([{"params": model[:2]}, {"params": model[2:], "correction": "none", "beta": 0.5}])
    optimizer.backward(Stream().batch(model))
    optimizer.step()
    found = read(optimizer)
    names = ["staleness", "bounded_share", "beta", "memory", "steps"]
    assert list(found) == [f"{name}/{number}" for number in (0, 1) for name in names] + ["skipped_steps"]
    assert (found["beta/0"], found["beta/1"], found["steps/1"]) == (BETA, 0.5, 1.0)
    assert found["staleness/0"] == 0.0 and math.isnan(found["staleness/1"])


def test_reading_changes_nothing():
    """Read at every step or never, training and its state are the same to the last bit."""
    paths = []
    for is_read in (True, False):
        model, _ = twins(mlp)
        optimizer, stream = OPTIMIZERS["adam"](model), Stream()
        for _ in range(5):
            optimizer.backward(stream.batch(model))
            if is_read:
                read(optimizer)
            optimizer.step()
            optimizer.zero_grad()
        paths.append(parameters_of(model))
    assert torch.equal(*paths)


def test_a_target_of_another_network_drifts_when_that_network_changes():
    """Its drift is measured although it has no gradient."""
    model, frozen = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](model)
    monitor, x = DriftMonitor(optimizer), torch.randn(4, 3)

    def batch():
        with torch.no_grad():
            target = 1 + 0.9 * frozen(x).squeeze(-1)
        return model(x).squeeze(-1), target

    with pytest.warns(unstale.ConstantTargetWarning):
        optimizer.backward(batch)
    before = batch()[1]
    optimizer.step()
    assert monitor.read().drift == 0.0
    frozen.load_state_dict(model.state_dict())
    assert monitor.read().drift == pytest.approx(float((batch()[1] - before).square().mean()), rel=1e-12)
    assert monitor.read().drift > 1e-6


def test_read_says_what_beta_is_and_what_was_chosen():
    """Also of a state that was loaded, before its next batch."""
    model, twin = twins(mlp)
    optimizer, stream = unstale.CorrectedSGD(model, lr=0.01, correction="reservoir", slots=100), Stream()
    assert groups(optimizer)[0].beta == 0.9
    for _ in range(2):
        optimizer.backward(stream.batch(model))
        optimizer.step()
        optimizer.zero_grad()
    optimizer.state_of("group 0")["step"].fill_(1000.0)
    resumed = unstale.CorrectedSGD(twin, lr=0.01, correction="reservoir", slots=100)
    resumed.load_state_dict(optimizer.state_dict())
    for each in (optimizer, resumed):
        (found,) = groups(each)
        assert found.beta == each.momentum_beta == pytest.approx(1 - 1 / (MEMORY_SHARE * 1001))
        assert found.chosen == describe(optimizer.state_of("group 0")["plan"], None)
        assert (
            found.chosen.startswith("reservoir of 99 slots, 3 new samples every 10 steps")
            and "β grows to 0.995" in found.chosen
        )


def test_groups_have_their_own_beta_and_choice():
    model, _ = twins(mlp)
    optimizer = unstale.CorrectedSGD(
        [{"params": model[:2], "beta": 0.7, "correction": "window"}, {"params": model[2:]}], lr=0.1, beta=0.8
    )
    optimizer.backward(Stream().batch(model))
    assert [found.chosen for found in groups(optimizer)] == ["", ""]  # no step has been made
    optimizer.step()
    first, second = groups(optimizer)
    assert (first.beta, second.beta) == (0.7, 0.8)
    assert first.chosen == f"window of {unstale.corrections.default_horizon(0.7)} batches"
    assert second.chosen.startswith("dense (a ") and "within the budget" in second.chosen


def chosen_lines(optimizer):
    return [line.strip() for line in repr(optimizer).splitlines() if line.startswith(("    chosen:", "    group "))]


def test_repr_says_what_was_chosen():
    """Nothing before the first batch; then what was decided, also after loading."""
    model, twin = twins(mlp)
    optimizer, resumed = (unstale.CorrectedAdam(m, lr=0.01) for m in (model, twin))
    assert chosen_lines(optimizer) == []
    assert "correction: auto" in repr(optimizer)
    optimizer.backward(Stream().batch(model))
    (line,) = chosen_lines(optimizer)
    optimizer.step()
    assert chosen_lines(optimizer) == [line] == [f"chosen: {groups(optimizer)[0].chosen}"]
    assert line.startswith("chosen: dense") and "β grows to" in line and "matrix is within the budget" in line
    assert repr(optimizer).splitlines()[-1] == ")"
    resumed.load_state_dict(optimizer.state_dict())
    assert chosen_lines(resumed) == [line]


def test_repr_has_a_line_for_every_group():
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](
        [
            {"params": model[:2], "correction": "diagonal"},
            {"params": model[2:4], "correction": "none"},
            {"params": model[4:], "correction": "window", "horizon": 3},
        ]
    )
    assert chosen_lines(optimizer) == []
    optimizer.backward(Stream().batch(model))
    assert chosen_lines(optimizer) == ["group 0: diagonal", "group 2: window of 3 batches"]  # nothing to decide in 1


@pytest.mark.parametrize(("size", "expected"), [(3, "dense"), (40, "window")])
def test_read_says_what_auto_came_to(size, expected):
    model, _ = twins(lambda: mlp(size))
    optimizer = OPTIMIZERS["sgd"](model, correction="auto")
    optimizer.backward(Stream().batch(model))
    optimizer.step()
    assert groups(optimizer)[0].correction == expected


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_skipped_steps_are_counted_and_not_steps(correction):
    """They are in no group's count, and a monitor has not seen them."""
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](model, correction=correction, on_nonfinite="skip")
    monitor, stream = DriftMonitor(optimizer), Stream()
    for step in range(5):
        batch = stream.batch(model)
        spoil = math.nan if step in (1, 3) else 1.0
        optimizer.backward(lambda batch=batch, spoil=spoil: (batch()[0], batch()[1] * spoil))
        optimizer.step()
        optimizer.zero_grad()
        assert skipped_steps(optimizer) == (step >= 1) + (step >= 3)
    assert groups(optimizer)[0].steps == 3
    assert monitor.read().batches == 3
