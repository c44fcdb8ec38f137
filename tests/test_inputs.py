"""Every bad input gives an error that names the argument and what to do, and changes no state."""

from __future__ import annotations

import copy
import itertools
import math
import warnings

import pytest
import torch
from problems import Stream, assert_same, mlp, parameters_of, twins
from reference import Reference, block_mask, diagonal_mask
from torch import nn

import unstale
from unstale.diagnostics import skipped_steps

OPTIMIZERS = {
    "sgd": lambda p, lr=0.1, **o: unstale.CorrectedSGD(p, lr=lr, **o),
    "adam": lambda p, lr=0.1, **o: unstale.CorrectedAdam(p, lr=lr, **o),
    "rmsprop": lambda p, lr=0.1, **o: unstale.CorrectedRMSprop(p, lr=lr, **o),
    "tdprop": lambda p, lr=0.1, **o: unstale.CorrectedTDprop(p, lr=lr, **o),
}
CORRECTIONS = ["none", "diagonal", "blocks", "dense", "window", "oracle"]
NAN, INF = math.nan, math.inf

every_base = pytest.mark.parametrize("base", OPTIMIZERS)
every_correction = pytest.mark.parametrize("correction", CORRECTIONS)


def train(model, optimizer, stream, steps=1):
    for _ in range(steps):
        optimizer.backward(stream.batch(model))
        optimizer.step()
        optimizer.zero_grad()


def snapshot(model, optimizer):
    """All that a refused call must leave alone."""
    grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return copy.deepcopy((list(model.parameters()), grads, optimizer.state_dict()))


# ------------------------------------------------------------------------ options

BAD_OPTIONS = [
    (dict(lr=-0.1), "lr must not be negative, got -0.1"),
    (dict(lr=NAN), "lr must not be negative, got nan"),
    (dict(lr=torch.tensor(-1.0)), "lr must not be negative"),
    (dict(weight_decay=-1e-4), "weight_decay must not be negative, got -0.0001"),
    (dict(correction="full"), "correction must be one of 'none', .*'dense', 'window', .*got 'full'"),
    (dict(correction=None), "correction must be one of 'none', .*got None"),
    (dict(recursion="paper"), "recursion must be one of 'displacement', 'literal'; got 'paper'"),
    (dict(on_nonfinite="ignore"), "on_nonfinite must be one of 'raise', 'skip'; got 'ignore'"),
    (dict(trust=0), "trust must be positive, or None for no bound, got 0"),
    (dict(trust=-1.0), "trust must be positive, or None for no bound, got -1.0"),
    (dict(trust=NAN), "trust must be positive, or None for no bound, got nan"),
    (dict(horizon=0), "horizon must be a whole number of at least 1, or None, got 0"),
    (dict(horizon=-3), "horizon must be a whole number of at least 1, or None, got -3"),
    (dict(horizon=2.5), "horizon must be a whole number of at least 1, or None, got 2.5"),
    (dict(horizon=INF), "horizon must be a whole number of at least 1, or None, got inf"),
    (dict(horizon="all"), "horizon must be a whole number of at least 1, or None, got '?all"),
    (dict(correction="blocks", block_size=0), "block_size must be a whole number of at least 1, or None, got 0"),
    (dict(correction="blocks", block_size=1.5), "block_size must be a whole number of at least 1, or None, got 1.5"),
    (dict(block_size=3), "block_size=3 needs correction='blocks', got 'auto'"),
    (dict(correction="dense", block_size=3), "block_size=3 needs correction='blocks', got 'dense'"),
    (dict(refresh=(0,)), r"refresh must list ages in steps of at least 1, got \(0,\)"),
    (dict(refresh=(1.5,)), r"refresh must list ages in steps of at least 1, got \(1.5,\)"),
    (dict(refresh=2), "refresh must list ages in steps of at least 1, got 2"),
    (dict(correction="dense", refresh=(1,)), "refresh needs correction='window' .*got 'dense'"),
    (dict(correction="oracle", refresh=(1,)), "refresh needs correction='window' .*got 'oracle'"),
    (
        dict(correction="window", second_order=True),
        "second_order=True does nothing for correction='window'; use 'dense'",
    ),
    (dict(correction="none", second_order=True), "second_order=True does nothing for correction='none'; use 'dense'"),
    (dict(correction="oracle", second_order=True), "second_order=True does nothing .*'oracle'; use 'dense'"),
]
BAD_BETAS = {
    "sgd": [(dict(beta=value), r"beta must be in \[0, 1\), got") for value in (1.0, -0.1, 1.5, NAN)],
    "rmsprop": [
        (dict(beta=1.0), r"beta must be in \[0, 1\), got 1.0"),
        (dict(alpha=1.0), r"alpha must be in \[0, 1\), got 1.0"),
        (dict(eps=-1e-8), "eps must not be negative, got -1e-08"),
    ],
    "adam": [
        (dict(betas=(1.0, 0.9)), r"betas\[0\] must be in \[0, 1\), got 1.0"),
        (dict(betas=(0.9, 1.0)), r"betas\[1\] must be in \[0, 1\), got 1.0"),
        (dict(betas=(-0.1, 0.9)), r"betas\[0\] must be in \[0, 1\), got -0.1"),
        (dict(betas=(0.9, NAN)), r"betas\[1\] must be in \[0, 1\), got nan"),
        (dict(betas=(0.9,)), r"betas must be (two|a pair).*got \(0.9,\)"),
        (dict(betas=(0.9, 0.99, 0.999)), r"betas must be (two|a pair).*got \(0.9, 0.99, 0.999\)"),
        (dict(betas=0.9), "betas must be (two|a pair).*got 0.9"),
        (dict(eps=-1.0), "eps must not be negative, got -1.0"),
    ],
}
BAD_BETAS["tdprop"] = BAD_BETAS["adam"]
BAD = [
    *((base, options, message) for base in ("sgd", "tdprop") for options, message in BAD_OPTIONS),
    *((base, options, message) for base, rows in BAD_BETAS.items() for options, message in rows),
]
BAD_IDS = [f"{base}-{'-'.join(f'{k}={v}' for k, v in options.items())}" for base, options, _ in BAD]


@pytest.mark.parametrize("where", ["for all", "for a group"])
@pytest.mark.parametrize(("base", "options", "message"), BAD, ids=BAD_IDS)
def test_bad_options(base, options, message, where):
    with pytest.raises((ValueError, TypeError), match=message):
        if where == "for all":
            OPTIMIZERS[base](nn.Linear(2, 1), **options)
        else:
            OPTIMIZERS[base]([{"params": nn.Linear(2, 1)}, {"params": nn.Linear(2, 1), **options}])


@every_base
def test_a_group_that_was_refused_is_not_there(base):
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS[base](model[2:])
    with pytest.raises(ValueError, match="trust must be positive"):
        optimizer.add_param_group({"params": model[:2], "trust": -1.0})
    assert len(optimizer.param_groups) == 1
    train(model, optimizer, Stream(), 2)


@every_base
def test_unknown_keyword(base):
    """The error suggests the closest known argument."""
    with pytest.raises(TypeError, match=r"unknown argument 'corection'.*correction"):
        OPTIMIZERS[base](nn.Linear(2, 1), corection="none")


@pytest.mark.parametrize("option", ["horizon", "block_size"])
def test_a_whole_number_may_be_a_float(option):
    """``horizon=2 / (1 - beta)`` is one."""
    paths = []
    for number in (3, 3.0):
        model, _ = twins(mlp)
        correction = "window" if option == "horizon" else "blocks"
        optimizer = unstale.CorrectedSGD(model, lr=0.1, correction=correction, **{option: number})
        train(model, optimizer, Stream(), 5)
        paths.append(parameters_of(model))
    assert torch.equal(*paths)


# ------------------------------------------------------------------------ batches

ROW = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3)


def values(model):
    return model(ROW).squeeze(-1)


BAD_BATCHES = {
    "prediction [m, 1]": (lambda m: (m(ROW), values(m)), r"same shape.*\[4, 1\] and \[4\].*prediction.squeeze\(-1\)"),
    "target [m, 1]": (lambda m: (values(m), m(ROW)), r"same shape.*\[4\] and \[4, 1\].*target.squeeze\(-1\)"),
    "prediction [m, a]": (lambda m: (m(ROW).expand(4, 2), values(m)), r"\[4, 2\] and \[4\].*gather.*expand_as"),
    "target [m, a]": (lambda m: (values(m), m(ROW).expand(4, 2)), r"\[4\] and \[4, 2\].*max\(-1\).values"),
    "prediction [m, 1], target [m, a]": (lambda m: (m(ROW), m(ROW).expand(4, 2)), r"\[4, 1\] and \[4, 2\]"),
    "target [m, m]": (lambda m: (values(m), torch.ones(4) + m(ROW)), r"\[4\] and \[4, 4\].*sum of \[m\] and \[m, 1\]"),
    "[m, 1], target [m, m]": (lambda m: (m(ROW), torch.ones(4) + m(ROW)), r"\[4, 4\].*sum of \[m\] and \[m, 1\]"),
    "[T, B] and [B, T]": (lambda m: (m(ROW).view(1, 4), m(ROW)), r"\[1, 4\] and \[4, 1\]; they are not broadcast"),
    "[T, B, k] and [T, B]": (lambda m: (m(ROW).view(2, 1, 2), m(ROW)[:2]), r"\[2, 1, 2\] and \[2, 1\].*expand_as"),
    "scalar prediction": (lambda m: (values(m)[0], values(m)[1]), r"prediction must have .*\[\].*reshape\(1\)"),
    "lengths": (lambda m: (values(m), values(m)[:3]), r"same shape.*\[4\] and \[3\]"),
    "empty": (lambda m: (values(m)[:0], values(m)[:0]), r"prediction is an empty batch; skip backward\(\)"),
    "no columns": (lambda m: (m(ROW)[:, :0], m(ROW)[:, :0]), r"prediction is an empty batch; skip backward\(\)"),
    "detached": (lambda m: (values(m).detach(), values(m)), r"prediction does not depend.*look swapped.*live output"),
    "both detached": (lambda m: (values(m).detach(), 0.0), r"not depend on any parameter\. The order.*live output"),
    "swapped": (lambda m: (torch.ones(4), values(m)), r"prediction does not depend .*target does: .* look swapped"),
    "integers": (lambda m: (values(m).long(), values(m)), "prediction must be floating point, not torch.int64"),
    "no target": (lambda m: (values(m), None), r"backward\(\) needs a target|target must be a tensor or a number"),
    "words": (lambda m: (values(m), "next"), "target must be a tensor or a number"),
    "prediction no tensor": (lambda m: (1.0, values(m)), "prediction must be a tensor"),
}


@pytest.mark.parametrize("given", ["tensors", "function"])
@pytest.mark.parametrize("bad", BAD_BATCHES)
@pytest.mark.parametrize("correction", ["none", "dense", "oracle"])
def test_bad_batches(correction, bad, given):
    make, message = BAD_BATCHES[bad]
    model, twin = twins(mlp)
    optimizer, other = (OPTIMIZERS["sgd"](m, correction=correction) for m in (model, twin))
    one, two = Stream(), Stream()
    train(model, optimizer, one, 2)
    before = snapshot(model, optimizer)
    with pytest.raises((ValueError, TypeError), match=message):
        if given == "tensors":
            optimizer.backward(*make(model))
        else:
            optimizer.backward(lambda: make(model))
    assert_same(snapshot(model, optimizer), before)
    train(model, optimizer, one, 2)
    train(twin, other, two, 4)
    assert torch.equal(parameters_of(model), parameters_of(twin))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda m: (values(m),), r"backward\(\) needs a target: call backward\(prediction, target\)"),
        (lambda m: (lambda: values(m),), r"function must return the pair \(prediction, target\)"),
        (lambda m: (lambda: None,), r"function must return the pair \(prediction, target\)"),
        (lambda m: (lambda: (values(m), values(m), 1.0),), r"function must return the pair \(prediction, target\)"),
        (lambda m: (lambda: (values(m), values(m)), values(m)), "returns its own target; leave target out"),
        (lambda m: (values(m).tolist(), values(m)), "prediction must be a tensor or a function, not list"),
    ],
    ids=["no target", "one tensor", "nothing", "three", "target twice", "a list"],
)
@pytest.mark.parametrize("correction", ["dense", "oracle"])
def test_batches_given_wrongly(correction, arguments, message):
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](model, correction=correction)
    with pytest.raises(TypeError, match=message):
        optimizer.backward(*arguments(model))
    assert all(p.grad is None for p in model.parameters())


BAD_WEIGHTS = {
    "[m, 1]": (torch.ones(4, 1), r"weight must .*\[4, 1\].*squeeze\(-1\)"),
    "another length": (torch.ones(3), r"weight must .*\[3\]|weight has 3"),
    "[m, a]": (torch.ones(4, 2), r"weight must .*\[4, 2\]"),
    "[1]": (torch.ones(1), r"weight must .*\[1\]"),
}


@pytest.mark.parametrize("bad", BAD_WEIGHTS)
@pytest.mark.parametrize("correction", ["none", "dense"])
def test_bad_weights(correction, bad):
    """``[m, 1]`` would broadcast to ``[m, m]`` without an error."""
    weight, message = BAD_WEIGHTS[bad]
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](model, correction=correction)
    with pytest.raises(ValueError, match=message):
        optimizer.backward(lambda: (values(model), 0.9 * values(model)), weight=weight)
    assert all(p.grad is None for p in model.parameters())


BAD_LOSSES = {
    "a mean": (lambda r: r.square().mean(), r"loss must be elementwise.*\(4,\).*\(\).*[Ll]eave out its reduction"),
    "a column": (lambda r: r.square().unsqueeze(-1), r"loss must be elementwise.*\(4,\).*\(4, 1\)"),
    "unknown": (
        "l2",
        r"loss='l2' is not known; .*'half_squared', 'huber', 'mse', 'smooth_l1', 'squared'\] or a function",
    ),
    "a loss of torch": (nn.MSELoss(), "losses of two arguments do not fit.*loss='mse', 'huber' and 'smooth_l1'"),
    "old values of another shape": (
        unstale.losses.clipped_value(torch.ones(4, 1), 0.2),
        r"old_value must have the shape of the prediction, \[4\], but has shape \[4, 1\]",
    ),
    "detached": (lambda r: r.detach().square(), "loss must be .*differentiable"),
    "a number": (lambda r: 1.0, "loss must "),
}


@pytest.mark.parametrize("bad", BAD_LOSSES)
@pytest.mark.parametrize("correction", ["none", "dense"])
def test_bad_losses(correction, bad):
    loss, message = BAD_LOSSES[bad]
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](model, correction=correction)
    with pytest.raises((ValueError, TypeError), match=message):
        optimizer.backward(lambda: (values(model), 0.9 * values(model)), loss=loss)
    assert all(p.grad is None for p in model.parameters())


@every_base
@pytest.mark.parametrize("correction", CORRECTIONS[1:])
def test_step_before_backward(base, correction):
    """``loss.backward()`` fills ``.grad`` but gives the correction nothing to work with."""
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS[base](model, correction=correction)
    before = parameters_of(model)
    with pytest.raises(RuntimeError, match=r"step\(\) came before backward\(\): call optimizer.backward\("):
        optimizer.step()
    values(model).mean().backward()
    with pytest.raises(RuntimeError, match=r"step\(\) came before backward\(\)"):
        optimizer.step()
    assert torch.equal(parameters_of(model), before)
    optimizer.zero_grad()
    train(model, optimizer, Stream(), 2)
    with pytest.raises(RuntimeError, match=r"step\(\) came before backward\(\)"):
        optimizer.step()


class Joined:
    """Several batches as one, whose mean loss is the sum of their mean losses."""

    def __init__(self, batches, sizes):
        self.batches = batches
        self.factors = torch.cat([torch.full((m,), sum(sizes) / m) for m in sizes])

    def __call__(self):
        predictions, targets = zip(*(batch() for batch in self.batches), strict=True)
        return torch.cat(predictions), torch.cat(targets)


class JoinedReference(Reference):
    def evaluate(self, batch):
        prediction, target, slope, curvature = super().evaluate(batch)
        return prediction, target, slope * batch.factors, curvature * batch.factors


@pytest.mark.parametrize(
    "sizes", [[(3, 5)], [(3, 5), (5, 3), (2, 1, 3), (8,)]], ids=["the same in every step", "changing"]
)
@pytest.mark.parametrize("base", ["sgd", "adam"])
@pytest.mark.parametrize("correction", [*CORRECTIONS, "reservoir"])
def test_batches_of_different_sizes_in_one_step(correction, base, sizes):
    """Gradients add up: a step on the sum of the mean losses."""
    model, twin = twins(mlp)
    parameters = list(twin.parameters())
    n = sum(p.numel() for p in parameters)
    masks = {
        "none": torch.zeros(n, n),
        "diagonal": diagonal_mask(parameters),
        "blocks": block_mask([p.numel() for p in parameters]),
    }
    options = dict(slots=4000) if correction == "reservoir" else {}
    options |= dict(horizon=100) if correction in ("window", "oracle") else {}
    if base == "sgd":
        optimizer = unstale.CorrectedSGD(model, lr=0.1, beta=0.8, correction=correction, **options)
    else:
        optimizer = unstale.CorrectedAdam(model, lr=0.1, betas=(0.8, 0.99), eps=1e-3, correction=correction, **options)
    reference = JoinedReference(
        parameters, 0.1, 0.8, mask=masks.get(correction), trust=1.0, oracle=correction == "oracle",
        base=base, beta2=0.99, eps=1e-3,
    )  # fmt: skip
    if correction == "reservoir":  # generations of 8 samples, so that all samples of a step enter
        optimizer.backward(Stream(m=8).batch(model))
        optimizer.zero_grad()
    one, two = Stream(), Stream()
    for _, step_sizes in zip(range(8), itertools.cycle(sizes), strict=False):
        batches = []
        for one.m in step_sizes:
            optimizer.backward(one.batch(model))
            two.m = one.m
            batches.append(two.batch(twin))
        optimizer.step()
        optimizer.zero_grad()
        reference.step(Joined(batches, step_sizes))
        torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-10, atol=1e-10)
    if correction == "reservoir":  # nothing was left out
        samples, every, newest, pool = optimizer.state_of("group 0")["plan"]["reservoir"]
        assert (samples, every) == (8, 1) and newest + pool >= 8


@every_base
@pytest.mark.parametrize("options", [dict(correction="oracle"), dict(correction="window", refresh=(1,))], ids=str)
def test_tensors_where_a_function_is_needed(base, options):
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS[base](model, **options)
    with pytest.raises(TypeError, match=r"give backward\(\) the batch as a function .*not the tensors"):
        optimizer.backward(values(model), 0.9 * values(model))
    assert all(p.grad is None for p in model.parameters())
    train(model, optimizer, Stream(), 2)


@pytest.mark.parametrize("target", ["a detached tensor", "a number", "a frozen network's"])
@every_base
def test_a_constant_target_warns_once(base, target):
    """It is valid, but often an unintended ``detach()``. The warning comes once and points at the user's line."""
    targets = {
        "a detached tensor": lambda m: values(m).detach(),
        "a number": lambda m: 1.0,
        "a frozen network's": lambda m: values(copy.deepcopy(m).requires_grad_(False)),
    }
    for _ in range(2):  # once for every optimizer
        model, _ = twins(mlp)
        optimizer = OPTIMIZERS[base](model)
        with pytest.warns(unstale.ConstantTargetWarning, match="pass the bootstrap value live: no detach") as caught:
            optimizer.backward(values(model), targets[target](model))
        assert len(caught) == 1
        assert caught[0].filename == __file__
        optimizer.step()
        optimizer.zero_grad()
        for _ in range(2):  # warnings are errors here
            optimizer.backward(values(model), targets[target](model))
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("correction", ["diagonal", "dense", "window", "reservoir", "auto"])
def test_a_target_of_another_network_warns_once(correction):
    """It is not detached, but nothing of it is followed: what happens is what happens with a constant target."""
    model, twin = twins(mlp)
    other, _ = twins(mlp, seed=1)
    optimizer, plain = (OPTIMIZERS["sgd"](m, correction=correction) for m in (model, twin))
    with pytest.warns(unstale.UnfollowedTargetWarning, match="comes from another network") as caught:
        optimizer.backward(values(model), values(other))
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", unstale.ConstantTargetWarning)
        plain.backward(values(twin), values(other).detach())
        for _ in range(4):  # warnings are errors here, but for the constant target
            for net, each in ((model, optimizer), (twin, plain)):
                each.step()
                each.zero_grad()
                warnings.simplefilter("error" if each is optimizer else "ignore", unstale.ConstantTargetWarning)
                each.backward(values(net), values(other) if each is optimizer else values(other).detach())
    assert torch.equal(parameters_of(model), parameters_of(twin))
    assert all(p.grad is None for p in other.parameters())


@pytest.mark.parametrize("correction", ["none", "oracle"])
def test_a_target_of_another_network_is_no_matter_without_an_expansion(correction):
    model, _ = twins(mlp)
    other, _ = twins(mlp, seed=1)
    optimizer = OPTIMIZERS["sgd"](model, correction=correction)
    optimizer.backward(lambda: (values(model), values(other)))  # warnings are errors here
    optimizer.step()
    if correction == "none":
        OPTIMIZERS["tdprop"](model, correction="none").backward(values(model), values(other))


@pytest.mark.parametrize("given", ["tensors", "function", "keywords"])
@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("moment", ["at first", "later"])
@pytest.mark.parametrize("correction", [*CORRECTIONS, "reservoir", "auto"])
def test_swapped_arguments_are_refused(correction, moment, m, given):
    """Trained would be the other network, toward this one's values."""
    model, _ = twins(mlp)
    other, _ = twins(mlp, seed=1)
    optimizer = OPTIMIZERS["sgd"](model, correction=correction, on_nonfinite="raise")
    x = ROW[:m]
    if correction == "oracle" and given != "function":
        pytest.skip("an oracle needs functions")
    if moment == "later":
        if correction in ("none", "oracle", "reservoir", "auto"):
            pytest.skip("only the first batch is looked at, or those that are chosen")
        train(model, optimizer, Stream(m), 2)
    prediction, target = other(x).squeeze(-1), model(x).squeeze(-1)
    with pytest.raises(ValueError, match=r"target depends on this optimizer's parameters but.*look swapped"):
        if given == "keywords":
            optimizer.backward(prediction=prediction, target=target)
        elif given == "tensors":
            optimizer.backward(prediction, target)
        else:
            optimizer.backward(lambda: (prediction, target))
    assert all(p.grad is None for p in model.parameters())


def test_a_live_target_does_not_warn():
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](model)
    train(model, optimizer, Stream(done=1.0), 2)  # every sample terminates, but the graph is there
    optimizer.backward_log_likelihood(nn.functional.logsigmoid(values(model)))


# --------------------------------------------------------------------- not finite


def poisoned(model, where, number):
    """A TD batch with one bad number in it."""
    bad = torch.zeros(4)
    bad[2] = number

    def batch():
        prediction, reward, following = values(model), torch.ones(4), model(ROW + 1).squeeze(-1)
        if where == "prediction":
            prediction = prediction + bad
        elif where == "reward":
            reward = reward + bad
        else:
            following = following + bad
        return prediction, unstale.targets.td(reward, following, torch.zeros(4), 0.9)

    return batch


every_poison = pytest.mark.parametrize("number", [NAN, INF, -INF])
everywhere = pytest.mark.parametrize("where", ["prediction", "target", "reward"])


@every_poison
@everywhere
@every_correction
def test_nonfinite_raises_and_has_never_been(correction, where, number):
    """Alone in its step, and after a good batch in the same step, whose gradient stays."""
    model, twin = twins(mlp)
    optimizer, other = (OPTIMIZERS["adam"](m, correction=correction) for m in (model, twin))
    one, two = Stream(), Stream()
    for step in range(6):
        if step in (0, 2):
            before = snapshot(model, optimizer)
            with pytest.raises(FloatingPointError, match=r"prediction, target or weight is not finite.*'skip'"):
                optimizer.backward(poisoned(model, where, number))
            assert_same(snapshot(model, optimizer), before)
        optimizer.backward(one.batch(model))
        if step in (1, 3):
            before = snapshot(model, optimizer)
            with pytest.raises(FloatingPointError):
                optimizer.backward(poisoned(model, where, number))
            assert_same(snapshot(model, optimizer), before)
        optimizer.step()
        optimizer.zero_grad()
        train(twin, other, two)
        assert torch.equal(parameters_of(model), parameters_of(twin))
    assert skipped_steps(optimizer) == 0


@every_poison
@everywhere
@every_correction
def test_nonfinite_is_skipped_and_counted(correction, where, number):
    """The step is left out whole, a good batch in it included, and the count is saved."""
    model, twin = twins(mlp)
    optimizer, other = (OPTIMIZERS["adam"](m, correction=correction, on_nonfinite="skip") for m in (model, twin))
    one, two = Stream(), Stream()
    for step in range(6):
        if step in (0, 2, 3):
            before = snapshot(model, optimizer)
            if step == 3:
                optimizer.backward(Stream(seed=9).batch(model))
            optimizer.backward(poisoned(model, where, number))
            optimizer.step()
            optimizer.zero_grad()
            after = snapshot(model, optimizer)
            assert_same(after[0], before[0])
        train(model, optimizer, one)
        train(twin, other, two)
        assert torch.equal(parameters_of(model), parameters_of(twin))
    assert skipped_steps(optimizer) == 3
    assert skipped_steps(other) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # past batches of an oracle are not saved
        other.load_state_dict(optimizer.state_dict())
    assert skipped_steps(other) == 3


@pytest.mark.parametrize("correction", [*CORRECTIONS, "reservoir"])
def test_a_step_with_one_bad_batch_is_skipped_whole(correction):
    """Also if good batches come before and after it, and whether their samples enter or not."""
    model, _ = twins(mlp)
    options = dict(slots=4, seed=1) if correction == "reservoir" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", unstale.FewSlotsWarning)
        optimizer = unstale.CorrectedSGD(model, lr=0.1, correction=correction, on_nonfinite="skip", **options)
        stream = Stream()
        for step in range(6):
            before = parameters_of(model)
            optimizer.backward(stream.batch(model))
            if step % 2:
                optimizer.backward(poisoned(model, "reward", NAN))
            optimizer.backward(stream.batch(model))
            optimizer.step()
            optimizer.zero_grad()
            assert torch.equal(parameters_of(model), before) == bool(step % 2)
    assert skipped_steps(optimizer) == 3


@pytest.mark.parametrize("mode", ["raise", "skip"])
@pytest.mark.parametrize("weight", [NAN, INF, torch.tensor([1.0, 1.0, NAN, 1.0])], ids=["nan", "inf", "one nan"])
def test_nonfinite_weights_are_refused_too(weight, mode):
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](model, on_nonfinite=mode)
    before = parameters_of(model)
    if mode == "raise":
        with pytest.raises(FloatingPointError, match="weight is not finite"):
            optimizer.backward(values(model), 0.9 * values(model), weight=weight)
    else:
        optimizer.backward(values(model), 0.9 * values(model), weight=weight)
        optimizer.step()
        assert skipped_steps(optimizer) == 1
    assert torch.equal(parameters_of(model), before)


# --------------------------------------------------------- samples that are mixed


def normed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))
    model(torch.randn(20, 3)).mean().backward()  # running statistics that are not the initial ones
    model.zero_grad()
    return model


@pytest.mark.parametrize("correction", ["diagonal", "blocks", "dense", "window"])
def test_batch_norm_in_training_mode_is_refused(correction, path):
    """Per-sample gradients are not defined there. After following the error's advice, training works."""
    model = normed()
    optimizer = OPTIMIZERS["sgd"](model.parameters(), correction=correction)
    fresh = copy.deepcopy(model).eval()
    stream = Stream()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"batch normalization in training mode.*eval\(\).*LayerNorm"):
            optimizer.backward(stream.batch(model))
        assert all(p.grad is None for p in model.parameters())
    model.eval()
    for statistic, value in fresh.named_buffers():
        model.get_buffer(statistic).copy_(value)
    train(model, optimizer, Stream(), 3)
    train(fresh, OPTIMIZERS["sgd"](fresh.parameters(), correction=correction), Stream(), 3)
    assert torch.equal(parameters_of(model), parameters_of(fresh))


@pytest.mark.parametrize("correction", ["diagonal", "blocks", "dense", "window", "oracle"])
def test_batch_norm_in_evaluation_mode_works(correction, path):
    """``.grad`` is autograd's, and so the layer is a fixed affine map, whose scale and bias train."""
    model = normed().eval()
    twin = copy.deepcopy(model)
    optimizer = OPTIMIZERS["sgd"](model.parameters(), correction=correction)
    one, two = Stream(), Stream()
    for _ in range(3):
        optimizer.backward(one.batch(model))
        twin.load_state_dict(model.state_dict())
        twin.zero_grad()
        prediction, target = two.batch(twin)()
        ((prediction - target.detach()).square() / 2).mean().backward()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-12, atol=1e-12)
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(model[1].weight, torch.ones(5))


@pytest.mark.parametrize("correction", ["none", "oracle"])
def test_batch_norm_is_welcome_where_no_sample_is_told_apart(correction):
    model = normed()
    optimizer = OPTIMIZERS["sgd"](model, correction=correction)
    before = parameters_of(model)
    train(model, optimizer, Stream(), 3)
    assert not torch.equal(parameters_of(model), before)


class Centred(nn.Module):
    """Subtracts the mean of the batch: mixes samples without a batch norm."""

    def forward(self, x):
        return x - x.mean(0)


@pytest.mark.parametrize("correction", ["diagonal", "blocks", "dense", "window"])
def test_a_model_that_mixes_rows_is_told_so_once_and_is_still_right(correction):
    """No error: the gradient of each prediction exists, if not that of each row. It is only slower."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), Centred(), nn.Tanh(), nn.Linear(5, 1))
    twin = copy.deepcopy(model)
    optimizer = OPTIMIZERS["sgd"](model, correction=correction)
    parameters = list(twin.parameters())
    masks = {"diagonal": diagonal_mask(parameters), "blocks": block_mask([p.numel() for p in parameters])}
    reference = Reference(parameters, 0.1, 0.9, mask=masks.get(correction), trust=1.0)
    one, two = Stream(), Stream()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, optimizer, one, 4)
    (warning,) = caught
    assert warning.category is unstale.SlowGradientsWarning and warning.filename == __file__
    assert "MeanBackward1" in str(warning.message) or "SubBackward0" in str(warning.message)
    assert "4 backward passes" in str(warning.message)
    for _ in range(4):
        reference.step(two.batch(twin))
    torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("base", [unstale.CorrectedAdam, unstale.CorrectedRMSprop, unstale.CorrectedTDprop])
@pytest.mark.parametrize("correction", ["none", "dense"])
def test_gradients_whose_squares_overflow_are_refused_or_skipped(base, correction):
    """A running mean of squares that is infinite once would never recover."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1, dtype=torch.float32)
    optimizer = base(model, lr=0.01, correction=correction, on_nonfinite="skip")
    before = model.weight.clone()
    for weight, moves in ((1e21, False), (1.0, True), (1.0, True)):
        s, s_next = torch.randn(2, 4, 3, dtype=torch.float32)
        optimizer.backward(model(s).squeeze(-1), 1 + model(s_next).squeeze(-1), weight=weight)
        optimizer.step()
        optimizer.zero_grad()
        assert model.weight.isfinite().all()
        assert torch.equal(model.weight, before) != moves
        before = model.weight.clone()
