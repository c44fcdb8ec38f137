"""What ``torch.optim.Optimizer`` promises, kept by every optimizer under every correction."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from problems import Stream, assert_same, linear, mlp, parameters_of, twins, vector
from reference import Reference, block_mask, diagonal_mask, flat, gradient_of, per_sample
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn.utils import clip_grad_norm_
from torch.optim.optimizer import register_optimizer_step_pre_hook

import unstale
from unstale import _options
from unstale.corrections.blocks import MIN_SAMPLES_TO_MERGE

# Some options are given to all corrections, although not all of them use them.
pytestmark = pytest.mark.filterwarnings("ignore::unstale.UnusedOptionWarning")

OPTIMIZERS = {
    "sgd": lambda p, lr=0.1, **o: unstale.CorrectedSGD(p, lr=lr, beta=0.8, **o),
    "adam": lambda p, lr=0.1, **o: unstale.CorrectedAdam(p, lr=lr, betas=(0.8, 0.99), eps=1e-3, **o),
    "rmsprop": lambda p, lr=0.1, **o: unstale.CorrectedRMSprop(p, lr=lr, beta=0.8, alpha=0.9, eps=1e-2, **o),
    "tdprop": lambda p, lr=0.1, **o: unstale.CorrectedTDprop(p, lr=lr, betas=(0.8, 0.99), eps=1e-2, **o),
}
REFERENCES = {
    "sgd": dict(base="sgd"),
    "adam": dict(base="adam", beta2=0.99, eps=1e-3),
    "rmsprop": dict(base="rmsprop", alpha=0.9, eps=1e-2),
    "tdprop": dict(base="tdprop", beta2=0.99, eps=1e-2),
}
CORRECTIONS = ["none", "diagonal", "blocks", "dense", "window", "reservoir", "oracle"]
SAVED = [name for name in CORRECTIONS if name != "oracle"]  # an oracle's batches are functions: they stay behind

every_base = pytest.mark.parametrize("base", OPTIMIZERS)
every_correction = pytest.mark.parametrize("correction", CORRECTIONS)
every_saved = pytest.mark.parametrize("correction", SAVED)


def reference_for(base, correction, parameters, **options):
    parameters = list(parameters)
    lengths = [p.numel() for p in parameters]
    masks = {
        "none": lambda: torch.zeros(sum(lengths), sum(lengths)),
        "diagonal": lambda: diagonal_mask(parameters),
        "blocks": lambda: block_mask(lengths),
    }
    mask = masks.get(correction, lambda: None)()
    return Reference(parameters, 0.1, 0.8, mask=mask, oracle=correction == "oracle", **REFERENCES[base], **options)


def train(model, optimizer, stream, steps=1):
    for _ in range(steps):
        optimizer.backward(stream.batch(model))
        optimizer.step()
        optimizer.zero_grad()


def grads_of(*modules):
    return [None if p.grad is None else p.grad.clone() for module in modules for p in module.parameters()]


def assert_same_state(one, other):
    """Two states, equal to the last bit. Empty groups are ignored."""
    assert_same(*({**each, "state": {k: v for k, v in each["state"].items() if v != {}}} for each in (one, other)))


def assert_near(one, other, tolerance=1e-10):
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def half_squared(residual):
    return residual.square() / 2


def semi_gradient(batch, loss=half_squared, weight=1.0):
    """The usual loop: a detached target, the mean loss, autograd."""
    prediction, target = batch()
    (weight * loss(prediction - target.detach())).mean().backward()


# ------------------------------------------------------------- correction="none"


class Dampened(torch.optim.Optimizer):
    """``μ ← β μ + (1-β) g``, ``θ ← θ − α μ``, by hand."""

    def __init__(self, params, lr, beta):
        super().__init__(params, dict(lr=lr, beta=beta))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.copy_(group["beta"] * mean + (1 - group["beta"]) * p.grad)
                p.sub_(group["lr"] * mean)


def torch_sgd(params, lr, beta):
    """torch does not dampen its first step. With a buffer of zeros already there, no step is the first."""
    optimizer = torch.optim.SGD(params, lr=lr, momentum=beta, dampening=beta)
    for group in optimizer.param_groups:
        for p in group["params"]:
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return optimizer


ADAM = dict(lr=0.01, betas=(0.9, 0.99), eps=1e-6)
PAIRS = {
    "adam": (lambda p: unstale.CorrectedAdam(p, correction="none", **ADAM), lambda p: torch.optim.Adam(p, **ADAM)),
    "adamw": (
        lambda p: unstale.CorrectedAdam(p, correction="none", weight_decay=0.1, **ADAM),
        lambda p: torch.optim.AdamW(p, weight_decay=0.1, **ADAM),
    ),
    "dampened": (lambda p: unstale.CorrectedSGD(p, 0.1, 0.9, correction="none"), lambda p: Dampened(p, 0.1, 0.9)),
    "sgd": (lambda p: unstale.CorrectedSGD(p, 0.1, 0.9, correction="none"), lambda p: torch_sgd(p, 0.1, 0.9)),
    "rmsprop": (
        lambda p: unstale.CorrectedRMSprop(p, 0.01, beta=0.0, alpha=0.9, eps=1e-6, correction="none"),
        lambda p: torch.optim.RMSprop(p, 0.01, alpha=0.9, eps=1e-6),
    ),
}


@pytest.mark.parametrize("ours", ["loss.backward", "optimizer.backward"])
@pytest.mark.parametrize("pair", PAIRS)
def test_without_correction_it_is_torchs(pair, ours):
    """Without correction the optimizers equal torch's."""
    model, twin = twins(mlp)
    optimizer, theirs = PAIRS[pair][0](model), PAIRS[pair][1](twin.parameters())
    one, two = Stream(), Stream()
    for _ in range(50):
        if ours == "loss.backward":
            semi_gradient(one.batch(model))
        else:
            optimizer.backward(*one.batch(model)())
        semi_gradient(two.batch(twin))
        for each in (optimizer, theirs):
            each.step()
            each.zero_grad()
        assert_near(parameters_of(model), parameters_of(twin), 1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str)
def test_adam_is_torchs_to_rounding_whatever_the_default_dtype(dtype, tolerance):
    """Users leave torch's default dtype at float32. Adam's debiasing of the first steps must not lose digits to it:
    1 - 0.999 has four digits fewer than 0.999. Parameters start at zero, so that they show their steps in full."""
    torch.set_default_dtype(torch.float32)
    ours, theirs = (nn.Parameter(torch.zeros(6, dtype=dtype)) for _ in range(2))
    optimizer, other = unstale.CorrectedAdam([ours], correction="none"), torch.optim.Adam([theirs])
    for step in range(5):
        gradient = torch.linspace(-2, 3, 6, dtype=dtype).roll(step)
        for p, each in ((ours, optimizer), (theirs, other)):
            p.grad = gradient.clone()
            each.step()
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=0)


def test_settings_changed_between_steps_take_effect():
    """``OneCycleLR`` turns ``betas`` as well as ``lr``, through ``param_groups``, as torch's optimizers allow."""
    model, twin = twins(mlp)
    optimizer, theirs = PAIRS["adam"][0](model), PAIRS["adam"][1](twin.parameters())
    cycles = [torch.optim.lr_scheduler.OneCycleLR(each, max_lr=0.1, total_steps=20) for each in (optimizer, theirs)]
    one, two = Stream(), Stream()
    for _ in range(20):
        semi_gradient(one.batch(model))
        semi_gradient(two.batch(twin))
        for each, cycle in zip((optimizer, theirs), cycles, strict=True):
            each.step()
            each.zero_grad()
            if cycle.last_epoch < 19:
                cycle.step()
        assert optimizer.param_groups[0]["betas"] == theirs.param_groups[0]["betas"]
        assert_near(parameters_of(model), parameters_of(twin), 1e-12)


# ------------------------------------------------------------------------- .grad


def log_cosh(residual):
    return residual.cosh().log()


LOSSES = {
    "default": ((), half_squared),
    "half_squared": (("half_squared",), half_squared),
    "squared": (("squared",), torch.square),
    "mse": (("mse",), lambda r: nn.functional.mse_loss(r, torch.zeros_like(r), reduction="none")),
    "smooth_l1": (("smooth_l1",), lambda r: nn.functional.smooth_l1_loss(r, torch.zeros_like(r), reduction="none")),
    "huber": (("huber",), lambda r: nn.functional.huber_loss(r, torch.zeros_like(r), reduction="none")),
    "a user's": ((log_cosh,), log_cosh),
}
WEIGHTS = {"": 1.0, "a number": 3.0, "one per sample": torch.tensor([0.2, 1.0, 0.0, 2.5], dtype=torch.float64)}


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("loss", LOSSES)
@every_correction
def test_grad_is_the_ordinary_one_and_accumulates(correction, path, loss, weight):
    """Clipping, logging and other optimizers read ``.grad``: it must hold what autograd would have left there."""
    model, twin = twins(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.1, correction=correction)
    one, two = Stream(), Stream()
    given, ordinary = LOSSES[loss]
    for _ in range(2):
        batch = one.batch(model)
        if given:
            mean = optimizer.backward(batch, loss=given[0], weight=WEIGHTS[weight])
        else:
            mean = optimizer.backward(batch, weight=WEIGHTS[weight])
        prediction, target = batch()
        assert_near(mean, ordinary(prediction - target).mean().detach(), 1e-12)  # without weights
        assert not mean.requires_grad
        semi_gradient(two.batch(twin), ordinary, WEIGHTS[weight])
        for got, expected in zip(grads_of(model), grads_of(twin), strict=True):
            assert_near(got, expected, 1e-12)


@pytest.mark.parametrize("clear", ["to none", "to zeros", "by the model", "by hand"])
@every_correction
def test_grad_can_be_cleared_in_every_way(correction, clear):
    """However ``.grad`` is cleared, the next step starts without pending batches."""
    paths = []
    for way in ("to none", clear):
        model, _ = twins(mlp)
        optimizer = unstale.CorrectedSGD(model, lr=0.1, correction=correction)
        stream = Stream()
        for _ in range(5):
            optimizer.backward(stream.batch(model))
            optimizer.step()
            if way == "to none":
                optimizer.zero_grad()
            elif way == "to zeros":
                optimizer.zero_grad(set_to_none=False)
            elif way == "by the model":
                model.zero_grad()
            else:
                for p in model.parameters():
                    p.grad = None
        paths.append(parameters_of(model))
    assert_near(*paths, 1e-13)


class TwoHeads(nn.Module):
    """A trunk and two heads, of which a batch may use one."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        self.left, self.right = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x, side="left"):
        return getattr(self, side)(self.trunk(x))


def on_side(model, side, stream):
    return stream.batch(lambda x: model(x, side))


@every_correction
def test_parameters_out_of_the_graph_have_no_grad_and_stay(correction, path):
    torch.manual_seed(0)
    model = TwoHeads()
    before = copy.deepcopy(model)
    optimizer = unstale.CorrectedSGD(model, lr=0.1, correction=correction, weight_decay=0.1)
    stream = Stream()
    for _ in range(3):
        optimizer.backward(on_side(model, "left", stream))
        assert all(p.grad is None for p in model.right.parameters())
        assert all(p.grad is not None for p in model.left.parameters())
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(parameters_of(model.right), parameters_of(before.right))
    assert not torch.equal(parameters_of(model.left), parameters_of(before.left))


@pytest.mark.parametrize("groups", ["one group", "two groups"])
@every_correction
def test_grad_accumulates_over_batches_that_reach_different_parameters(correction, path, groups):
    """The second call of a step may bring a head that the first left out; so may the second step."""
    torch.manual_seed(0)
    model = TwoHeads()
    twin = copy.deepcopy(model)
    split = [{"params": [*model.trunk.parameters(), *model.left.parameters()]}, {"params": model.right.parameters()}]
    optimizer = unstale.CorrectedSGD(
        split if groups == "two groups" else model.parameters(), lr=0.1, correction=correction
    )
    one, two = Stream(), Stream()
    for sides in (["left"], ["left", "right"], ["right"], ["right", "left"]):
        twin.load_state_dict(model.state_dict())
        twin.zero_grad()
        for side in sides:
            optimizer.backward(on_side(model, side, one))
            semi_gradient(on_side(twin, side, two))
        for got, expected in zip(grads_of(model), grads_of(twin), strict=True):
            assert (got is None) == (expected is None)
            if expected is not None:
                assert_near(got, expected, 1e-12)
        optimizer.step()
        optimizer.zero_grad()


@every_correction
def test_leaves_outside_the_optimizer_get_their_grad(correction, path):
    """Another optimizer's trunk and an input that requires grad are none of ours, but in the prediction's graph.
    A bare leaf of the target is not: the target is held still."""
    torch.manual_seed(0)
    trunk, head = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 1)
    optimizer = unstale.CorrectedSGD(head, lr=0.1, correction=correction)
    x, bonus = torch.randn(5, 3, requires_grad=True), torch.randn(5, requires_grad=True)

    def batch():
        return head(trunk(x)).squeeze(-1), bonus + 0.9 * head(trunk(x + 1)).squeeze(-1)

    semi_gradient(batch)
    expected = [*grads_of(trunk, head), x.grad.clone()]
    trunk.zero_grad(), head.zero_grad()
    x.grad = None
    for times in (1, 2):
        optimizer.backward(batch)
        for got, want in zip([*grads_of(trunk, head), x.grad], expected, strict=True):
            assert_near(got, times * want, 1e-12)
        assert bonus.grad is None


@every_correction
def test_parameter_hooks_fire(correction, path):
    """A hook may change the gradient; the correction then uses the changed gradient."""
    model, twin = twins(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.1, correction=correction)
    plain = unstale.CorrectedSGD(twin, lr=0.1, correction=correction)
    seen, landed = [], []
    for number, p in enumerate(model.parameters()):

        def double(gradient, number=number):
            seen.append(number)
            return 2 * gradient

        p.register_hook(double)
        p.register_post_accumulate_grad_hook(lambda p, number=number: landed.append((number, p.grad.clone())))
    one, two = Stream(), Stream()
    for _ in range(4):
        seen.clear(), landed.clear()
        optimizer.backward(one.batch(model))
        plain.backward(two.batch(twin), weight=2.0)
        assert sorted(seen) == list(range(6))
        for (_, got), want in zip(sorted(landed, key=lambda pair: pair[0]), grads_of(twin), strict=True):
            assert_near(got, want, 1e-12)
        for each in (optimizer, plain):
            each.step()
            each.zero_grad()
        assert_near(parameters_of(model), parameters_of(twin), 1e-12)


# ------------------------------------------------------------------------- state


def forgotten_batches(expected):
    """Past batches are functions and cannot be saved; loading warns."""
    return pytest.warns(UserWarning, match="not part of a state") if expected else nullcontext()


def grouped(model, base, correction, **options):
    """Two groups that differ in everything that may."""
    front, back = list(model)[:2], list(model)[2:]
    return OPTIMIZERS[base](
        [
            {"params": nn.Sequential(*front), "lr": 0.05},
            {"params": nn.Sequential(*back), "trust": 0.5, "weight_decay": 0.1},
        ],
        correction=correction,
        horizon=4,
        **options,
    )


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("steps", [0, 1, 7], ids=["fresh", "one step", "a full window"])
@every_correction
@every_base
def test_saved_and_loaded_training_goes_on_bit_for_bit(base, correction, steps):
    """``weights_only``: a checkpoint is made of tensors and plain containers. The fresh optimizer was made with other
    settings; like torch's, it takes them from the checkpoint."""
    model, _ = twins(mlp)
    optimizer, stream = grouped(model, base, correction), Stream()
    train(model, optimizer, stream, steps)

    saved = through_a_file(dict(model=model.state_dict(), optimizer=optimizer.state_dict()))
    fresh = mlp()
    fresh.load_state_dict(saved["model"])
    resumed = grouped(fresh, base, "diagonal", lr=3.0)
    with forgotten_batches(correction == "oracle" and steps > 0):
        resumed.load_state_dict(saved["optimizer"])

    other = Stream()
    other.generator.set_state(stream.generator.get_state())
    before = parameters_of(fresh)
    for _ in range(10):
        train(model, optimizer, stream)
        train(fresh, resumed, other)
        if correction != "oracle":
            assert torch.equal(parameters_of(model), parameters_of(fresh))
    assert parameters_of(fresh).isfinite().all()
    assert not torch.equal(parameters_of(fresh), before)
    if correction != "oracle":
        assert_same_state(resumed.state_dict(), optimizer.state_dict())


@every_saved
def test_loading_rolls_back_an_optimizer_in_use(correction):
    """Loading an older state replaces everything, also what is not saved."""
    model, _ = twins(mlp)
    optimizer, stream = grouped(model, "adam", correction), Stream()
    train(model, optimizer, stream, 5)
    state = stream.generator.get_state()
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    paths = []
    for _ in range(2):
        stream.generator.set_state(state)
        train(model, optimizer, stream, 6)
        paths.append(parameters_of(model))
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
    assert torch.equal(*paths)


@every_correction
def test_loading_copies(correction):
    """Two optimizers that share a state dict must not share tensors: one would train the other."""
    model, twin = twins(mlp)
    optimizer = grouped(model, "adam", correction, on_nonfinite="skip")
    train(model, optimizer, Stream(), 3)
    optimizer.backward(lambda: (model(torch.full((4, 3), torch.nan)).squeeze(-1), model(torch.ones(4, 3)).squeeze(-1)))
    optimizer.step()  # counted as skipped
    optimizer.zero_grad()
    loaded = grouped(twin, "adam", correction, on_nonfinite="skip")
    with forgotten_batches(correction == "oracle"):
        loaded.load_state_dict(optimizer.state_dict())
    before = copy.deepcopy(loaded.state_dict())

    def spoil(value):
        for key in value:
            if isinstance(value[key], torch.Tensor):
                value[key].zero_()
            elif isinstance(value[key], dict):
                spoil(value[key])
            elif isinstance(value[key], int):
                value[key] += 1
            elif isinstance(value[key], list) and value[key] and isinstance(value[key][0], dict):
                for part in value[key]:
                    spoil(part)
            elif isinstance(value[key], list):
                for place, part in enumerate(value[key]):
                    value[key][place] = part + 1 if isinstance(part, int) else part.zero_()

    for state in optimizer.state.values():
        spoil(state)
    assert_same_state(loaded.state_dict(), before)


@every_saved
def test_state_of_half_precision_parameters_is_loaded_at_full_precision(correction):
    """torch casts a parameter's state to the parameter's dtype as it loads; momentum in bfloat16 would be lost."""
    model = mlp().bfloat16()
    optimizer, stream = grouped(model, "adam", correction), Stream(draw=half_vector)
    train(model, optimizer, stream, 5)
    fresh = copy.deepcopy(model)
    resumed = grouped(fresh, "adam", correction)
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    assert_same_state(resumed.state_dict(), optimizer.state_dict())
    mu = resumed.state["group 0"]["mu"]
    assert mu.dtype == torch.float32
    assert not torch.equal(mu, mu.bfloat16().float())  # it had digits to lose


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
@every_correction
@every_base
def test_copies_go_on_alike_and_apart(base, correction, way):
    model, _ = twins(mlp)
    optimizer, stream = grouped(model, base, correction), Stream()
    train(model, optimizer, stream, 3)
    duplicate = copy.deepcopy if way == "deepcopy" else (lambda pair: pickle.loads(pickle.dumps(pair)))
    warned = pytest.warns(UserWarning, match="past batches") if correction == "oracle" else nullcontext()
    with warned:
        model_2, optimizer_2 = duplicate((model, optimizer))
    other = Stream()
    other.generator.set_state(stream.generator.get_state())
    before = parameters_of(model)
    train(model_2, optimizer_2, other, 5)
    assert torch.equal(parameters_of(model), before)
    assert not torch.equal(parameters_of(model_2), before)
    train(model, optimizer, stream, 5)
    if correction != "oracle":
        assert torch.equal(parameters_of(model), parameters_of(model_2))


@every_base
def test_state_dict_hooks_and_repr(base):
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS[base](model)
    calls = []
    optimizer.register_state_dict_pre_hook(lambda o: calls.append("saving"))
    optimizer.register_state_dict_post_hook(lambda o, state: calls.append("saved"))
    optimizer.register_load_state_dict_pre_hook(lambda o, state: calls.append("loading"))
    optimizer.register_load_state_dict_post_hook(lambda o: calls.append("loaded"))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["saving", "saved", "loading", "loaded"]
    assert type(optimizer).__name__ in repr(optimizer)


# ------------------------------------------------- schedulers, closures and hooks

SCHEDULES = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=3, gamma=0.5),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=12, cycle_momentum=False),
}


@pytest.mark.parametrize(("schedule", "lr"), [("StepLR", "a tensor"), ("OneCycleLR", "a number")])
@every_correction
@every_base
def test_lr_schedulers(base, correction, schedule, lr):
    """The displacement is what was made, at whatever rate: the double sum at the rates of a torch optimizer."""
    model, twin = twins(mlp)
    optimizer = OPTIMIZERS[base](
        model, lr=0.1 if lr == "a number" else torch.tensor(0.1), correction=correction, trust=None, horizon=50
    )
    reference = reference_for(base, correction, twin.parameters())
    plain = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    one, two = Stream(), Stream()
    scheduler, expected = SCHEDULES[schedule](optimizer), SCHEDULES[schedule](plain)
    for _ in range(6):
        rate = plain.param_groups[0]["lr"]
        assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(rate, rel=1e-14)
        train(model, optimizer, one)
        reference.step(two.batch(twin), rate)
        assert_near(parameters_of(model), parameters_of(twin))
        plain.step()
        scheduler.step(), expected.step()


@every_correction
@every_base
def test_closures(base, correction):
    """``step`` calls a closure with gradients on, once, and returns what it returns."""
    model, twin = twins(mlp)
    optimizer, other = OPTIMIZERS[base](model, correction=correction), OPTIMIZERS[base](twin, correction=correction)
    one, two = Stream(), Stream()
    for _ in range(4):
        calls = []

        def closure(calls=calls):
            optimizer.zero_grad()
            calls.append(optimizer.backward(one.batch(model)))
            return calls[0]

        with torch.no_grad():
            returned = optimizer.step(closure)
        assert len(calls) == 1 and returned is calls[0]
        train(twin, other, two)
    assert torch.equal(parameters_of(model), parameters_of(twin))


@every_base
def test_step_hooks(base):
    """Hooks run before and after every step, global ones too."""
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS[base](model)
    seen = []
    everywhere = register_optimizer_step_pre_hook(lambda o, a, k: seen.append("global"))
    optimizer.register_step_pre_hook(lambda o, a, k: seen.append(parameters_of(model)))
    optimizer.register_step_post_hook(lambda o, a, k: seen.append(parameters_of(model)))
    before = parameters_of(model)
    train(model, optimizer, Stream(), 2)
    everywhere.remove()
    assert len(seen) == 6 and seen[0] == seen[3] == "global"
    assert torch.equal(seen[1], before)
    assert not torch.equal(seen[2], before)
    assert torch.equal(seen[4], seen[2])
    assert torch.equal(seen[5], parameters_of(model))


# ------------------------------------------------------------------------- groups


class Alone:
    """The groups of an optimizer, each with an optimizer of its own: every group is corrected separately."""

    def __init__(self, *parts):
        self.parts = list(parts)  # module, optimizer

    def train(self, batch):
        for module, optimizer in self.parts:
            for other, _ in self.parts:
                other.requires_grad_(other is module)
            optimizer.backward(batch)
        for module, _ in self.parts:
            module.requires_grad_(True)
        moved = []
        for module, optimizer in self.parts:  # each sees the others where they were: an oracle looks at all of them
            before = copy.deepcopy(module.state_dict())
            optimizer.step()
            optimizer.zero_grad()
            moved.append(copy.deepcopy(module.state_dict()))
            module.load_state_dict(before)
        for (module, _), after in zip(self.parts, moved, strict=True):
            module.load_state_dict(after)


GROUPS = {
    "lr": (dict(lr=0.05), dict(lr=0.2)),
    "trust": (dict(trust=0.05), dict(trust=None)),
    "weight decay": (dict(weight_decay=0.3), {}),
    "horizon": (dict(horizon=2), dict(horizon=5)),
    "correction": (dict(correction="diagonal"), dict(correction="dense")),
    "none in one": (dict(correction="none"), dict(correction="window", horizon=50)),
    "oracle first": (dict(correction="oracle", horizon=50), dict(correction="blocks")),
    "oracle last": (dict(correction="diagonal"), dict(correction="oracle", horizon=50)),
    "refresh last": (dict(correction="none"), dict(correction="window", refresh=(1, 2), horizon=50)),
}


@pytest.mark.parametrize("options", GROUPS)
@every_base
def test_groups_with_options_of_their_own(base, options):
    """A group among others behaves as it does alone."""
    model, twin = twins(mlp)
    parts, twin_parts = (model[:2], model[2:]), (twin[:2], twin[2:])
    general = dict(correction="window") if options == "horizon" else {}
    optimizer = OPTIMIZERS[base](
        [{"params": part, **own} for part, own in zip(parts, GROUPS[options], strict=True)], **general
    )
    alone = Alone(
        *(
            (part, OPTIMIZERS[base](part, **general, **own))
            for part, own in zip(twin_parts, GROUPS[options], strict=True)
        )
    )
    one, two = Stream(), Stream()
    for _ in range(8):
        train(model, optimizer, one)
        alone.train(two.batch(twin))
        assert_near(parameters_of(model), parameters_of(twin), 1e-12)


@pytest.mark.parametrize("moment", ["after a step", "after a backward"])
@every_correction
@every_base
def test_a_group_added_later(base, correction, moment):
    """The new group starts with the next batch, and the old one, its memory and its batch included, does not
    notice."""
    model, twin = twins(mlp)
    optimizer = OPTIMIZERS[base](model[2:], correction=correction)
    alone = Alone((twin[2:], OPTIMIZERS[base](twin[2:], correction=correction)))
    one, two = Stream(), Stream()
    front = parameters_of(model[:2])
    for _ in range(3):
        train(model, optimizer, one)
        alone.train(two.batch(twin))
    assert torch.equal(parameters_of(model[:2]), front)
    model.zero_grad(), twin.zero_grad()

    def add():
        optimizer.add_param_group({"params": model[:2], "lr": 0.02})

    if moment == "after a backward":
        optimizer.backward(one.batch(model))
        model[:2].zero_grad()
        add()
        optimizer.step()
        optimizer.zero_grad()
        alone.train(two.batch(twin))
        assert_near(parameters_of(model), parameters_of(twin), 1e-12)
        return
    add()
    alone.parts.insert(0, (twin[:2], OPTIMIZERS[base](twin[:2], correction=correction, lr=0.02)))
    for _ in range(3):
        train(model, optimizer, one)
        alone.train(two.batch(twin))
        assert_near(parameters_of(model), parameters_of(twin), 1e-12)
    assert not torch.equal(parameters_of(model[:2]), front)


@pytest.mark.parametrize(
    "given",
    [
        lambda m: m,
        lambda m: m.parameters(),
        lambda m: list(m.named_parameters()),
        lambda m: [{"params": m}],
        lambda m: [{"params": list(m.named_parameters())}],
        lambda m: list(m),
        lambda m: (m[:2], m[2:]),
        lambda m: (part for part in (m[:2], m[2:])),
        lambda m: [m[0].weight, m[0].bias, *m[1:]],
        lambda m: [*m, m, *m.parameters()],
        lambda m: [{"params": [m[:2], *m[2:].parameters()]}],
        lambda m: {"a": m[:2], "b": m[2:]}.values(),
    ],
    ids=["module", "parameters", "named", "group of a module", "group of named", "list of modules", "tuple of modules",
         "generator of modules", "modules and parameters", "the same several times", "group of both", "values"],
)  # fmt: skip
@every_base
def test_parameters_may_be_given_in_every_way(base, given):
    model, twin = twins(mlp)
    optimizer, other = OPTIMIZERS[base](given(model)), OPTIMIZERS[base](twin)
    train(model, optimizer, Stream(), 5)
    train(twin, other, Stream(), 5)
    assert_near(parameters_of(model), parameters_of(twin), 1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda m: {"a": m[:2], "b": m[2:]}, r"dictionary of modules; use a list of them, list\(params.values\(\)\)"),
        (lambda m: [{"params": {"a": m}}], "dictionary of modules"),
        (lambda m: [[m[:2]], m[2:]], "one flat list of modules"),
    ],
)
def test_containers_of_modules_that_are_refused(given, message):
    model, _ = twins(mlp)
    with pytest.raises(TypeError, match=message):
        unstale.CorrectedSGD(given(model), lr=0.1)


def test_modules_with_a_common_part_have_it_once():
    trunk = nn.Linear(3, 4)
    critics = [nn.Sequential(trunk, nn.Tanh(), nn.Linear(4, 1)) for _ in range(2)]
    optimizer = unstale.CorrectedSGD(critics, lr=0.1)
    (group,) = optimizer.param_groups
    assert [id(p) for p in group["params"]] == [
        id(p) for p in (*trunk.parameters(), *critics[0][2].parameters(), *critics[1][2].parameters())
    ]
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    values, following = (torch.cat([critic(z) for critic in critics], -1) for z in (x, y))
    optimizer.backward(values, 0.9 * following)
    optimizer.step()
    optimizer.add_param_group({"params": [nn.Linear(3, 1), nn.Linear(3, 1)]})
    assert len(optimizer.param_groups[1]["params"]) == 4
    with pytest.raises(ValueError, match="more than one parameter group"):
        unstale.CorrectedSGD([{"params": critics[:1]}, {"params": critics[1:]}], lr=0.1)


@pytest.mark.parametrize(
    "bad, error",
    [
        (torch.zeros(2), TypeError),
        ([{"params": {torch.zeros(2)}}], TypeError),
        ([], ValueError),
        (None, TypeError),
        ([nn.Linear(1, 1), "weight"], TypeError),
    ],
)
def test_what_torch_refuses_as_parameters_is_refused(bad, error):
    with pytest.raises(error):
        unstale.CorrectedSGD(bad, lr=0.1)


USELESS = {
    "budget and none": (dict(correction="none", budget=3.0), "budget=3.0 has no effect with correction='none'"),
    "seed and none": (dict(correction="none", seed=7), "seed=7 has no effect with correction='none'"),
    "seed and dense": (dict(correction="dense", seed=7), "seed=7 has no effect with correction='dense'"),
    "budget and window": (dict(correction="window", budget=3.0), "It is for 'reservoir', 'auto'"),
    "horizon and dense": (dict(correction="dense", horizon=9), "horizon=9 .*'dense'.*'window', 'oracle', 'auto'"),
    "trust and oracle": (dict(correction="oracle", trust=0.5), "trust=0.5 has no effect"),
    "recursion and none": (dict(correction="none", recursion="literal"), "recursion='literal' has no effect"),
    "budget and slots": (dict(budget=3.0, slots=256), "budget=3.0 has no effect, because slots=256 are given"),
}


@pytest.mark.parametrize("where", ["for all", "for a group", "for a group added later"])
@pytest.mark.parametrize("options", USELESS)
def test_options_without_effect_warn(options, where):
    given, message = USELESS[options]
    with pytest.warns(unstale.UnusedOptionWarning, match=message) as caught:
        if where == "for all":
            unstale.CorrectedSGD(nn.Linear(2, 1), lr=0.1, **given)
        elif where == "for a group":
            unstale.CorrectedSGD([{"params": nn.Linear(2, 1)}, {"params": nn.Linear(2, 1), **given}], lr=0.1)
        else:
            optimizer = unstale.CorrectedSGD(nn.Linear(2, 1), lr=0.1)
            optimizer.add_param_group({"params": nn.Linear(2, 1), **given})
    assert len(caught) == 1 and caught[0].filename == __file__


def test_options_with_an_effect_somewhere_do_not_warn():
    """Options of the whole optimizer are for the groups that use them; defaults are no wish."""
    warnings.simplefilter("error")
    one, two = nn.Linear(2, 1), nn.Linear(2, 1)
    groups = [{"params": one, "correction": "none"}, {"params": two, "correction": "window"}]
    optimizer = unstale.CorrectedSGD(groups, lr=0.1, horizon=5, trust=0.5)
    unstale.CorrectedSGD([{"params": one, "correction": "blocks"}, {"params": two}], lr=0.1, block_size=2)
    unstale.CorrectedSGD(
        one, lr=0.1, correction="none", **{k: v for k, v in _options.DEFAULTS.items() if k != "correction"}
    )
    unstale.CorrectedSGD(one, lr=0.1, correction="none", trust=None)
    again = unstale.CorrectedSGD([dict(group) for group in optimizer.param_groups], lr=0.1)
    again.load_state_dict(optimizer.state_dict())
    other = unstale.CorrectedSGD(one, lr=0.1, correction="none")
    other.load_state_dict(unstale.CorrectedSGD(two, lr=0.1, horizon=5, correction="window").state_dict())
    assert other.param_groups[0]["correction"] == "window" and other.param_groups[0]["horizon"] == 5


@pytest.mark.parametrize("groups", ["one group", "three groups"])
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair != "adamw"])
def test_no_gradient_is_a_gradient_of_zero(pair, groups):
    """Momentum is a mean over batches, also those without a gradient for a parameter: it moves as with torch's
    optimizers if its ``.grad`` were zeros."""
    torch.manual_seed(0)
    model = TwoHeads()
    twin = copy.deepcopy(model)

    def split(m):
        if groups == "one group":
            return list(m.parameters())
        return [{"params": list(part.parameters())} for part in (m.trunk, m.left, m.right)]

    optimizer, theirs = (make(split(m)) for make, m in zip(PAIRS[pair], (model, twin), strict=True))
    one, two = Stream(), Stream()
    for side in ("left", "right", "right", "left", "right", "left"):
        optimizer.backward(on_side(model, side, one))
        semi_gradient(on_side(twin, side, two))
        for p in twin.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        for each in (optimizer, theirs):
            each.step()
            each.zero_grad()
        assert_near(parameters_of(model), parameters_of(twin), 1e-12)


# ------------------------------------------------------- what happens in between


@every_correction
@every_base
def test_parameters_moved_by_hand(base, correction):
    """The displacement form follows every change of the parameters, also by other code."""
    model, twin = twins(mlp)
    optimizer = OPTIMIZERS[base](model, correction=correction, trust=None, horizon=50)
    reference = reference_for(base, correction, twin.parameters())
    one, two = Stream(), Stream()
    generator = torch.Generator().manual_seed(1)
    for _ in range(8):
        train(model, optimizer, one)
        reference.step(two.batch(twin))
        with torch.no_grad():
            for p, q in zip(model.parameters(), twin.parameters(), strict=True):
                push = 0.1 * torch.randn(p.shape, generator=generator)
                p.add_(push), q.add_(push)
        assert_near(parameters_of(model), parameters_of(twin))


def scaled(batch, factor):
    """The batch with its loss ½δ² multiplied: prediction and target by the root."""
    return lambda: tuple(factor**0.5 * part for part in batch())


def clip_by(way, parameters, bound):
    """Clip in one of the usual ways, and return the factor."""
    parameters = list(parameters)
    if way == "torch":
        return min(1.0, bound / (float(clip_grad_norm_(parameters, bound)) + 1e-6))
    factor = min(1.0, bound / float(flat([p.grad for p in parameters]).norm()))
    for p in parameters:
        if way == "through .data":  # does not raise the tensor's version
            p.grad.data.mul_(factor)
        else:
            p.grad = p.grad * factor
    return factor


@pytest.mark.parametrize("way", ["torch", "through .data", "replaced"])
@every_correction
@every_base
def test_clipping_scales_the_taylor_term_alike(base, correction, way):
    """A clipped gradient is the gradient of a scaled loss, and that loss has a scaled ``Z``."""
    model, twin = twins(mlp)
    optimizer = OPTIMIZERS[base](model, correction=correction, trust=None, horizon=50)
    reference = reference_for(base, correction, twin.parameters())
    one, two = Stream(), Stream()
    factors = []
    for step in range(6):
        optimizer.backward(one.batch(model))
        factors.append(clip_by(way, model.parameters(), 0.3 if step % 3 else 1e3))
        optimizer.step()
        optimizer.zero_grad()
        reference.step(scaled(two.batch(twin), factors[-1]))
        assert_near(parameters_of(model), parameters_of(twin))
    assert min(factors) < 0.5 and max(factors) == 1.0


def test_other_loss_on_a_single_parameter_is_not_taken_for_clipping():
    """One entry fits any factor: the Taylor term stays that of the batch."""
    taylor_terms = []
    for other in (0.0, 0.5):
        torch.manual_seed(0)
        model = linear(inputs=1)
        optimizer = unstale.CorrectedSGD(model, lr=0.1, correction="dense")
        optimizer.backward(Stream(MIN_SAMPLES_TO_MERGE, draw=partial(vector, inputs=1)).batch(model))
        model.weight.grad.mul_(1 + other)
        optimizer.step()
        (zeta,) = optimizer.state_of("group 0")["memory"]["zeta"]
        taylor_terms.append(zeta)
    assert taylor_terms[0].abs().sum() > 0 and torch.equal(*taylor_terms)


@pytest.mark.parametrize("first", ["critic", "actor"])
@pytest.mark.parametrize("correction", CORRECTIONS[1:])
def test_clipping_with_an_actor_on_the_trunk(correction, first):
    """The trunk's gradient is the actor's as well, uncorrected; both are clipped together."""
    torch.manual_seed(0)
    trunk, critic, actor = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 1), nn.Linear(4, 2)
    model = nn.Sequential(trunk, critic)
    twin, twin_actor = copy.deepcopy((model, actor))
    parameters = list(twin.parameters())
    optimizer = unstale.CorrectedSGD(model, lr=0.3, beta=0.8, correction=correction, trust=None, horizon=50)
    lengths = [p.numel() for p in parameters]
    mask = {"diagonal": diagonal_mask(parameters), "blocks": block_mask(lengths)}.get(correction, 1.0)
    one, two, states = Stream(), Stream(), Stream(seed=1)
    mu, past = torch.zeros(sum(lengths)), []
    for _ in range(6):
        x = states.draw(4, states.generator)
        losses = {
            "critic": lambda: optimizer.backward(one.batch(model)),
            "actor": lambda x=x: actor(trunk(x)).log_softmax(-1)[:, 0].mean().backward(),
        }
        for name in sorted(losses, key=lambda name: name != first):
            losses[name]()
        # Where the actor's gradient was added after backward(), clipping cannot be inferred: do it explicitly.
        bound = 0.2
        clip = optimizer.clip_grad_norm_ if first == "critic" else partial(clip_grad_norm_, model.parameters())
        factor = bound / (clip(bound) + 1e-6)
        assert factor < 0.9
        optimizer.step()
        optimizer.zero_grad(), actor.zero_grad()

        # The double sum, by hand. ``semi`` is the critic's gradient, ``extra`` the actor's.
        def semi(batch):
            prediction, target = batch()
            return gradient_of(((prediction - target).detach() * prediction).mean(), parameters)

        batch, now = two.batch(twin), flat(parameters)
        prediction, target = batch()
        v = per_sample(prediction, parameters)
        u = v - per_sample(target, parameters)
        extra = gradient_of(twin_actor(twin[0](x)).log_softmax(-1)[:, 0].mean(), parameters)
        mu = 0.8 * mu + 0.2 * factor * (semi(batch) + extra)
        past.append((factor, batch, semi(batch), u.T @ v / len(v) * mask, now))
        eta = torch.zeros_like(mu)
        for age, (scale, old, gradient, taylor, point) in enumerate(reversed(past)):
            stale = gradient - semi(old) if correction == "oracle" else -taylor.T @ (now - point)
            eta += 0.2 * 0.8**age * scale * stale
        nn.utils.vector_to_parameters(now - 0.3 * (mu - eta), parameters)
        assert_near(parameters_of(model), parameters_of(twin))


@every_correction
@every_base
def test_accumulated_halves_are_the_whole(base, correction, path):
    """Two batches in one step are one batch of all their samples."""
    model, twin = twins(mlp)
    optimizer = OPTIMIZERS[base](model, correction=correction)
    whole = OPTIMIZERS[base](twin, correction=correction)
    one, two = Stream(m=6), Stream(m=6)
    train(model, optimizer, one), train(twin, whole, two)  # after which a reservoir expects six samples per step
    for _ in range(5):
        batch = one.batch(model)
        for part in (slice(0, 3), slice(3, 6)):
            optimizer.backward(lambda batch=batch, part=part: tuple(x[part] for x in batch()), weight=0.5)
        optimizer.step()
        optimizer.zero_grad()
        train(twin, whole, two)
        assert_near(parameters_of(model), parameters_of(twin))


@pytest.mark.parametrize("set_to_none", [True, False], ids=["to none", "to zeros"])
@every_correction
def test_a_batch_that_was_cleared_has_never_been(correction, set_to_none):
    """``backward`` without ``step``, then ``zero_grad``: nothing remains, to the last bit."""
    model, twin = twins(mlp)
    optimizer, other = (unstale.CorrectedSGD(m, lr=0.1, correction=correction, horizon=3) for m in (model, twin))
    one, two = Stream(), Stream()
    for step in range(6):
        if step % 2:
            before = copy.deepcopy(optimizer.state_dict())
            optimizer.backward(Stream(seed=9, m=2).batch(model))
            optimizer.zero_grad(set_to_none)
            assert_same_state(optimizer.state_dict(), before)
        train(model, optimizer, one)
        train(twin, other, two)
        assert torch.equal(parameters_of(model), parameters_of(twin))


# ---------------------------------------------------------------------- precision


def scaler_step(scaler, optimizer):
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def scale_of(scaler):
    """``scaler.get_scale()``, as a tensor: a scaler refuses to step before it has scaled something."""
    return scaler.scale(torch.ones(()))


@every_correction
@every_base
def test_grad_scaler_changes_nothing(base, correction):
    """Scaled up in ``backward``, unscaled in ``.grad``, and the Taylor term with it."""
    model, twin = twins(mlp)
    optimizer, plain = OPTIMIZERS[base](model, correction=correction), OPTIMIZERS[base](twin, correction=correction)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
    one, two = Stream(), Stream()
    for _ in range(8):
        optimizer.backward(one.batch(model), weight=scale_of(scaler))
        scaler_step(scaler, optimizer)
        train(twin, plain, two)
        assert_near(parameters_of(model), parameters_of(twin))
    assert scaler.get_scale() == 2.0**16  # it did change underway


@every_correction
@every_base
def test_a_step_that_the_scaler_skips_has_never_been(base, correction):
    model, twin = twins(mlp)
    optimizer, plain = OPTIMIZERS[base](model, correction=correction), OPTIMIZERS[base](twin, correction=correction)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    one, two = Stream(), Stream()
    for step in range(6):
        if step == 3:
            before, memory = parameters_of(model), copy.deepcopy(optimizer.state_dict())
            optimizer.backward(Stream(seed=9).batch(model), weight=scale_of(scaler))
            next(model.parameters()).grad.view(-1)[0] = torch.inf
            scaler_step(scaler, optimizer)
            assert scaler.get_scale() == 2.0**11
            assert torch.equal(parameters_of(model), before)
            assert_same_state(optimizer.state_dict(), memory)
        optimizer.backward(one.batch(model), weight=scale_of(scaler))
        scaler_step(scaler, optimizer)
        train(twin, plain, two)
        assert_near(parameters_of(model), parameters_of(twin))


@every_correction
def test_a_scale_that_is_too_large_is_the_scalers_affair(correction):
    """A scaler finds its scale by overflowing, which must not be refused as a non-finite loss."""
    model, twin = (m.float() for m in twins(mlp))
    optimizer, plain = (OPTIMIZERS["sgd"](m, lr=1e-3, correction=correction) for m in (model, twin))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    one, two = Stream(draw=float_vector), Stream(draw=float_vector)
    for _ in range(4):
        batch, before = scaled(one.batch(model), 100.0), parameters_of(model)
        while torch.equal(parameters_of(model), before):
            optimizer.backward(batch, weight=scale_of(scaler))
            scaler_step(scaler, optimizer)
        plain.backward(scaled(two.batch(twin), 100.0))
        plain.step()
        plain.zero_grad()
    assert 1.0 < scaler.get_scale() < 2.0**127
    assert_near(parameters_of(model), parameters_of(twin), 1e-5)


def half_vector(m, generator):
    return torch.randn(m, 3, generator=generator).bfloat16()


def float_vector(m, generator):
    return torch.randn(m, 3, generator=generator).float()


@every_correction
@every_base
def test_a_bfloat16_model_trains(base, correction, path):
    torch.manual_seed(0)
    model = mlp(16).bfloat16()
    optimizer = OPTIMIZERS[base](model, lr=0.5 if base == "sgd" else 0.05, correction=correction, horizon=4)
    batch = Stream(m=16, gamma=0.5, draw=half_vector).batch(model)
    losses = []
    for _ in range(60):
        losses.append(float(optimizer.backward(batch)))
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.6 * losses[0]
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())


class Mixed(nn.Module):
    """A float32 trunk under a float64 head."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).float()
        self.head = nn.Linear(4, 1).double()

    def forward(self, x):
        return self.head(self.trunk(x.float()).double())


@pytest.mark.parametrize("groups", ["one group", "two groups"])
@every_correction
@pytest.mark.parametrize("base", ["sgd", "tdprop"])
def test_float32_and_float64_parameters_together(base, correction, path, groups):
    """Each group is followed in its own precision, a mixed one in the larger; paths stay float32's rounding away
    from the same model in float64."""
    torch.manual_seed(0)
    model = Mixed()
    twin = nn.Sequential(copy.deepcopy(model.trunk).double(), copy.deepcopy(model.head))

    def split(*parts):
        if groups == "one group":
            return [p for part in parts for p in part.parameters()]
        return [{"params": list(part.parameters())} for part in parts]

    optimizer = OPTIMIZERS[base](split(model.trunk, model.head), correction=correction)
    plain = OPTIMIZERS[base](split(twin[0], twin[1]), correction=correction)
    train(model, optimizer, Stream(), 6)
    train(twin, plain, Stream(), 6)
    assert [p.dtype for p in model.parameters()] == [torch.float32] * 2 + [torch.float64] * 2
    if groups == "two groups":
        assert [optimizer.state[f"group {i}"]["mu"].dtype for i in (0, 1)] == [torch.float32, torch.float64]
    assert_near(torch.cat([p.detach().flatten().double() for p in model.parameters()]), parameters_of(twin), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every_correction
def test_weights_and_targets_of_another_precision(correction, dtype):
    """Rewards and importance weights come from numpy, in float64; the gradient is the network's all the same."""
    model, twin = (m.float() for m in twins(mlp))
    optimizer = OPTIMIZERS["sgd"](model, correction=correction)
    reward, weight = torch.randn(4, dtype=dtype), torch.rand(4, dtype=dtype)
    x, y = torch.randn(2, 4, 3, dtype=torch.float32)
    for _ in range(2):
        optimizer.backward(lambda: (model(x).squeeze(-1), reward + 0.9 * model(y).squeeze(-1)), weight=weight)
    for _ in range(2):
        target = reward + 0.9 * twin(y).squeeze(-1)
        semi_gradient(lambda target=target: (twin(x).squeeze(-1), target.float()), weight=weight.float())
    for got, expected in zip(grads_of(model), grads_of(twin), strict=True):
        assert_near(got, expected, 1e-5)
    optimizer.step()


# --------------------------------------------------------------------- torch.compile


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo's, of an oracle
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch.compile of older versions
@pytest.mark.parametrize(
    ("base", "correction"),
    [
        ("sgd", "none"),
        ("rmsprop", "diagonal"),
        ("sgd", "blocks"),
        ("tdprop", "dense"),
        ("adam", "buffered dense"),
        ("adam", "window"),
        ("rmsprop", "reservoir"),
        ("adam", "oracle"),
    ],
)
def test_a_compiled_step_is_not_compiled_again_and_again(base, correction):
    """The first steps make the state, the next find it there; then nothing that a step can see changes."""
    model, twin = twins(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
    options = dict(correction=correction.removeprefix("buffered "))
    optimizer, plain = OPTIMIZERS[base](model, **options), OPTIMIZERS[base](twin, **options)
    counter = CompileCounter()
    torch._dynamo.reset()
    step = torch.compile(optimizer.step, backend=counter)
    # A matrix gets few samples at a time from a buffer, which is first merged in steps 10 and 20.
    batch, settled, steps = (4, 20, 42) if correction == "buffered dense" else (MIN_SAMPLES_TO_MERGE, 2, 10)
    one, two = Stream(batch), Stream(batch)
    counts = []
    for _ in range(steps):
        optimizer.backward(one.batch(model))
        step()
        optimizer.zero_grad()
        counts.append(counter.frame_count)
        train(twin, plain, two)
        assert_near(parameters_of(model), parameters_of(twin), 1e-12)
    assert counts[2] > 0
    assert counts[settled:] == [counts[settled]] * (steps - settled)
    torch._dynamo.reset()


def test_explicit_clipping_reaches_every_group():
    """Trunk and head in groups of their own, an actor's gradient on all of the trunk, everything clipped at once."""
    model, twin = twins(mlp)
    groups = [{"params": model[:3]}, {"params": model[3:]}]
    optimizer = unstale.CorrectedSGD(groups, lr=0.1, correction="dense", trust=None)
    same = [{"params": twin[:3]}, {"params": twin[3:]}]
    plain = unstale.CorrectedSGD(same, lr=0.1, correction="dense", trust=None)
    one, two, states = Stream(), Stream(), torch.randn(6, 3, generator=torch.Generator().manual_seed(3))
    for _ in range(6):
        optimizer.backward(*one.batch(model)())
        model[:3](states).square().mean().backward()
        total = float(optimizer.clip_grad_norm_(0.05))
        factor = min(1.0, 0.05 / (total + 1e-6))
        plain.backward(*two.batch(twin)(), weight=factor)
        (twin[:3](states).square().mean() * factor).backward()
        for each in (optimizer, plain):
            each.step()
            each.zero_grad()
        assert_near(parameters_of(model), parameters_of(twin), 1e-9)


@pytest.mark.parametrize("way", ["clip_grad_norm_", "scale_grad_"])
def test_explicit_scaling_of_a_single_sample(way):
    """Its factor is never inferred, because another loss of the same prediction would look the same."""
    model, twin = twins(mlp)
    optimizer, plain = (unstale.CorrectedSGD(each, lr=0.1, correction="dense", trust=None) for each in (model, twin))
    one, two = Stream(m=1), Stream(m=1)
    for _ in range(6):
        optimizer.backward(*one.batch(model)())
        factor = 0.25
        if way == "scale_grad_":
            optimizer.scale_grad_(factor)
        else:
            factor = min(1.0, 0.05 / (float(optimizer.clip_grad_norm_(0.05)) + 1e-6))
        plain.backward(*two.batch(twin)(), weight=factor)
        for each in (optimizer, plain):
            each.step()
            each.zero_grad()
        assert_near(parameters_of(model), parameters_of(twin), 1e-9)


def test_an_oracle_weighs_batches_as_they_were_weighed():
    """β may change from step to step; what is remembered decays by the β of each."""
    model, twin = twins(linear)
    oracle = unstale.CorrectedSGD(model, lr=0.1, correction="oracle", horizon=50)
    dense = unstale.CorrectedSGD(twin, lr=0.1, correction="dense", trust=None)
    one, two = Stream(), Stream()
    for step in range(12):
        for each in (oracle, dense):
            each.param_groups[0]["beta"] = 0.5 + 0.4 * (step % 3) / 2
        train(model, oracle, one)
        train(twin, dense, two)
    assert_near(parameters_of(model), parameters_of(twin), 1e-12)


@every_base
def test_groups_that_nothing_reaches_or_that_are_frozen(base):
    """Frozen parameters do not move, with or without weight decay."""
    model, _ = twins(mlp)
    idle, frozen = nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False)
    frozen.weight.grad = torch.zeros_like(frozen.weight)
    groups = [{"params": model}, {"params": idle}, {"params": frozen}]
    optimizer = OPTIMIZERS[base](groups, correction="dense", weight_decay=0.1)
    before = parameters_of(nn.ModuleList([idle, frozen]))
    train(model, optimizer, Stream())
    train(model, optimizer, Stream())
    assert torch.equal(parameters_of(nn.ModuleList([idle, frozen])), before)


def test_tdprop_needs_its_samples_even_without_correction():
    model, _ = twins(mlp)
    optimizer = unstale.CorrectedTDprop(model, correction="none")
    model(torch.ones(2, 3)).sum().backward()
    with pytest.raises(RuntimeError, match=r"step\(\) came before backward\(\)"):
        optimizer.step()


@pytest.mark.parametrize("correction", ["diagonal", "window"])
def test_a_prediction_of_another_network_is_refused(correction):
    model, twin = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](model, correction=correction)
    x = torch.ones(2, 3)
    with pytest.raises(ValueError, match="depends on none of this optimizer's parameters"):
        optimizer.backward(twin(x).squeeze(-1), 0.9 * twin(x).squeeze(-1))
    with pytest.warns(unstale.UnfollowedTargetWarning):
        optimizer.backward(model(x).squeeze(-1), 0.9 * twin(x).squeeze(-1))  # a target may


def test_states_of_other_optimizers_are_refused():
    model, _ = twins(mlp)
    other = torch.optim.Adam(model.parameters())
    with pytest.raises(ValueError, match="has no 'unstale' entry and cannot be loaded"):
        unstale.CorrectedAdam(model).load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    "before, after",
    [(torch.float32, torch.float64), (torch.float64, torch.float32), (torch.float32, torch.bfloat16)],
    ids=["wider", "narrower", "half"],
)
def test_a_model_converted_on_the_way_is_refused(before, after):
    model, _ = twins(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    model.to(before)  # before the first batch: allowed
    x = torch.ones(2, 3, dtype=before)
    optimizer.backward(model(x).squeeze(-1), 0.9 * model(x).squeeze(-1))
    optimizer.step()
    optimizer.zero_grad()
    model.to(after)
    x = x.to(after)
    with pytest.raises(RuntimeError, match=f"in {before} and are now on cpu in {after}.*before its optimizer takes"):
        optimizer.backward(model(x).squeeze(-1), 0.9 * model(x).squeeze(-1))


def test_a_solved_problem_is_not_stale():
    """μ = η = 0: nothing is stale, and nothing was bounded."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    for _ in range(3):
        value = model(torch.ones(4, 2)).squeeze(-1)
        optimizer.backward(value, 0.9 * model(torch.ones(4, 2)).squeeze(-1))
        optimizer.step()
        optimizer.zero_grad()
    (group,) = unstale.diagnostics.groups(optimizer)
    assert (group.staleness, group.bounded_share) == (0.0, 0.0)


def test_on_nonfinite_is_for_the_whole_optimizer():
    with pytest.raises(ValueError, match="on_nonfinite is for the whole optimizer"):
        unstale.CorrectedSGD([{"params": mlp(), "on_nonfinite": "skip"}], lr=0.1)
