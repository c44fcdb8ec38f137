"""Target networks: the correction follows parameters that targets depend on and that are copied or averaged."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
from problems import ConvNet, Stream, image, linear, mlp, parameters_of
from reference import Reference, block_mask
from test_against_reference import OPTIMIZERS, REFERENCES, options_for
from torch import nn

import unstale

pytestmark = pytest.mark.filterwarnings("ignore::unstale.UnusedOptionWarning")

FOLLOWING = ["diagonal", "blocks", "blocks of 7", "dense", "window", "reservoir", "auto"]
FULL = ["dense", "window", "reservoir", "auto"]


def hard_copy(model, target, step):
    if step % 3 == 2:
        target.load_state_dict(model.state_dict())


def polyak(model, target, step, tau=0.2):
    with torch.no_grad():
        for p, average in zip(model.parameters(), target.parameters(), strict=True):
            average.lerp_(p, tau)


def through_data(model, target, step):
    """As many programs have it: autograd's version counters do not see it."""
    for p, average in zip(model.parameters(), target.parameters(), strict=True):
        average.data.mul_(0.9).add_(0.1 * p.data)


UPDATES = {"hard copies": hard_copy, "polyak": polyak, "through .data": through_data}


class TargetStream(Stream):
    """TD batches that bootstrap from a target network, in part or wholly."""

    def __init__(self, *args, own_share=0.0, **options):
        super().__init__(*args, **options)
        self.own_share = own_share

    def batch(self, model, target=None):
        s, s_next = self.draw(self.m, self.generator), self.draw(self.m, self.generator)
        reward = torch.randn(self.m, generator=self.generator)
        terminated = (torch.rand(self.m, generator=self.generator) < self.done).to(reward)

        def evaluate():
            next_value = target(s_next).squeeze(-1)
            if self.own_share:
                next_value = self.own_share * model(s_next).squeeze(-1) + (1 - self.own_share) * next_value
            return model(s).squeeze(-1), unstale.targets.td(reward, next_value, terminated, self.gamma)

        return evaluate


def pairs(make, seed=0, other=None):
    """A model and a target network, twice."""
    torch.manual_seed(seed)
    model, target = make(), (other or make)()
    return (model, target), (copy.deepcopy(model), copy.deepcopy(target))


def masks(correction, parameters):
    """The entries of Z that a correction has, for the parameters and for a copy of them."""
    lengths = [p.numel() for p in parameters]
    n = sum(lengths)
    square = {
        "diagonal": lambda: torch.eye(n),
        "blocks": lambda: block_mask(lengths),
        "blocks of 7": lambda: block_mask([7] * (n // 7) + ([n % 7] if n % 7 else [])),
    }.get(correction)
    return None if square is None else torch.cat([square()] * 2)


def compare(ours, theirs, optimizer, reference, update, steps=9, tolerance=1e-10, **stream):
    (model, target), (twin, twin_target) = ours, theirs
    one, two = TargetStream(**stream), TargetStream(**stream)
    start = parameters_of(model)
    for step in range(steps):
        optimizer.backward(one.batch(model, target))
        optimizer.step()
        optimizer.zero_grad()
        update(model, target, step)
        reference.step(two.batch(twin, twin_target))
        update(twin, twin_target, step)
        torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=tolerance, atol=tolerance)
    assert (parameters_of(model) - start).abs().max() > 1000 * tolerance
    assert all(p.grad is None for p in target.parameters())


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("correction", FULL)
@pytest.mark.parametrize("base", ["sgd", "adam"])
def test_linear_values_give_the_oracle(base, correction, update):
    """Nothing is approximated: the path is that of past batches evaluated again, with the target network as it is."""
    ours, theirs = pairs(linear)
    optimizer = OPTIMIZERS[base](ours[0], 0.9, trust=None, horizon=50, **options_for(correction))
    optimizer.follow(ours[1])
    reference = Reference(theirs[0].parameters(), 0.1, 0.9, oracle=True, **REFERENCES[base])
    compare(ours, theirs, optimizer, reference, UPDATES[update], steps=25)


@pytest.mark.parametrize("update", ["hard copies", "polyak"])
def test_the_oracle_follows_anyway(update):
    ours, theirs = pairs(mlp)
    optimizer = OPTIMIZERS["sgd"](ours[0], 0.9, correction="oracle", horizon=50)
    optimizer.follow(ours[1])
    reference = Reference(theirs[0].parameters(), 0.1, 0.9, oracle=True)
    compare(ours, theirs, optimizer, reference, UPDATES[update])


@pytest.mark.parametrize("correction", FOLLOWING)
@pytest.mark.parametrize("base", OPTIMIZERS)
def test_follows_the_double_sum(base, correction, path):
    ours, theirs = pairs(mlp)
    optimizer = OPTIMIZERS[base](ours[0], 0.8, trust=None, horizon=100, **options_for(correction))
    optimizer.follow(ours[1])
    reference = Reference(
        theirs[0].parameters(), 0.1, 0.8, mask=masks(correction, list(theirs[0].parameters())),
        followed=theirs[1].parameters(), **REFERENCES[base],
    )  # fmt: skip
    compare(ours, theirs, optimizer, reference, hard_copy)


@pytest.mark.parametrize("m", [1, 5])
@pytest.mark.parametrize("own_share", [0.0, 0.5], ids=["target network alone", "mixed with the model's own values"])
@pytest.mark.parametrize("correction", FOLLOWING)
def test_single_samples_and_mixed_targets(correction, own_share, m):
    ours, theirs = pairs(mlp)
    optimizer = OPTIMIZERS["adam"](ours[0], 0.9, trust=None, horizon=100, **options_for(correction))
    optimizer.follow(ours[1])
    mask = masks(correction, list(theirs[0].parameters()))
    reference = Reference(
        theirs[0].parameters(), 0.1, 0.9, mask=mask, followed=theirs[1].parameters(), **REFERENCES["adam"]
    )
    compare(ours, theirs, optimizer, reference, polyak, m=m, own_share=own_share)


@pytest.mark.parametrize("correction", FULL)
def test_target_networks_of_another_shape(correction):
    ours, theirs = pairs(mlp, other=lambda: mlp(width=7))
    optimizer = OPTIMIZERS["sgd"](ours[0], 0.9, trust=None, horizon=100, **options_for(correction))
    optimizer.follow(ours[1])
    reference = Reference(theirs[0].parameters(), 0.1, 0.9, followed=theirs[1].parameters())

    def shrink(model, target, step):
        with torch.no_grad():
            for p in target.parameters():
                p.mul_(0.9)

    compare(ours, theirs, optimizer, reference, shrink)


@pytest.mark.parametrize("correction", ["diagonal", "dense", "window", "reservoir"])
def test_networks_of_images(correction, path):
    ours, theirs = pairs(ConvNet)
    optimizer = OPTIMIZERS["sgd"](ours[0], 0.9, trust=None, horizon=100, **options_for(correction))
    optimizer.follow(ours[1])
    mask = masks(correction, list(theirs[0].parameters()))
    reference = Reference(theirs[0].parameters(), 0.1, 0.9, mask=mask, followed=theirs[1].parameters())
    compare(ours, theirs, optimizer, reference, polyak, steps=4, draw=image)


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(40, 15), nn.Linear(15, 1)

    def forward(self, index):
        return self.head(self.table(index))


@pytest.mark.parametrize("correction", ["diagonal", "dense", "window", "reservoir"])
def test_embeddings(correction):
    def draw(m, generator):
        return torch.randint(40, (m,), generator=generator)

    ours, theirs = pairs(Embedded)
    optimizer = OPTIMIZERS["sgd"](ours[0], 0.9, trust=None, horizon=100, **options_for(correction))
    optimizer.follow(ours[1])
    mask = masks(correction, list(theirs[0].parameters()))
    reference = Reference(theirs[0].parameters(), 0.1, 0.9, mask=mask, followed=theirs[1].parameters())
    compare(ours, theirs, optimizer, reference, polyak, steps=6, draw=draw, m=40)


@pytest.mark.parametrize("correction", FOLLOWING)
@pytest.mark.parametrize("base", ["sgd", "adam", "rmsprop"])  # TDprop's denominator has the optimized parameters alone
def test_a_copy_made_at_every_step_is_the_model_itself(base, correction):
    """With φ = θ at every batch, displacements and gradients are those of a target of the model itself."""
    (model, target), (twin, _) = pairs(mlp)
    target.load_state_dict(model.state_dict())
    optimizer, plain = (
        OPTIMIZERS[base](m, 0.9, trust=None, horizon=100, **options_for(correction)) for m in (model, twin)
    )
    optimizer.follow(target)
    one, two = TargetStream(), Stream()
    for _ in range(8):
        for each, batch in ((optimizer, one.batch(model, target)), (plain, two.batch(twin))):
            each.backward(*batch())
            each.step()
            each.zero_grad()
        target.load_state_dict(model.state_dict())
    torch.testing.assert_close(parameters_of(model), parameters_of(twin), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("correction", ["window", "dense"])
def test_batches_of_several_kinds(correction):
    """A target that is constant, of the model, or of the target network; different sizes; two batches in a step."""
    ours, theirs = pairs(lambda: mlp(width=24))
    optimizer = OPTIMIZERS["sgd"](ours[0], 0.9, trust=None, horizon=100, correction=correction)
    optimizer.follow(ours[1])
    reference = Reference(theirs[0].parameters(), 0.1, 0.9, followed=theirs[1].parameters())
    g = torch.Generator().manual_seed(0)
    for step in range(9):
        x, y = torch.randn(4 + step, 3, generator=g), torch.randn(4 + step, 3, generator=g)

        def batch(model, target, rows=slice(None), x=x, y=y, step=step):
            bootstrap = [target(y), model(y), target(y).detach()][step % 3]
            return (model(x)[rows] / 2).squeeze(-1), (0.9 * bootstrap[rows]).squeeze(-1)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", unstale.ConstantTargetWarning)
            for rows, share in ((slice(0, 3), 3), (slice(3, None), step + 1)):
                optimizer.backward(*batch(*ours, rows), weight=share / (4 + step))
        optimizer.step()
        optimizer.zero_grad()
        polyak(*ours, step)
        reference.step(lambda batch=batch: batch(*theirs))
        polyak(*theirs, step)
        torch.testing.assert_close(parameters_of(ours[0]), parameters_of(theirs[0]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("correction", ["window", "dense", "diagonal"])
def test_twin_critics_with_two_target_networks(correction):
    ours, theirs = pairs(lambda: nn.ModuleList([mlp(), mlp()]))
    optimizer = OPTIMIZERS["sgd"](list(ours[0]), 0.9, trust=None, horizon=100, correction=correction)
    if correction == "diagonal":
        with pytest.raises(ValueError, match="all its networks in one call"):
            optimizer.follow(ours[1][0])
        optimizer.follow(list(ours[1]))
    else:
        for network in ours[1]:
            optimizer.follow(network)
    mask = masks(correction, list(theirs[0].parameters()))
    reference = Reference(theirs[0].parameters(), 0.1, 0.9, mask=mask, followed=theirs[1].parameters())
    g = torch.Generator().manual_seed(0)
    for step in range(6):
        x, y = torch.randn(4, 3, generator=g), torch.randn(4, 3, generator=g)

        def batch(critics, targets, x=x, y=y):
            value = torch.cat([critic(x) for critic in critics], -1)
            smaller = torch.cat([target(y) for target in targets], -1).min(-1, keepdim=True).values
            return value, (1 + 0.9 * smaller).expand_as(value)

        optimizer.backward(*batch(*ours))
        optimizer.step()
        optimizer.zero_grad()
        polyak(*ours, step)
        reference.step(lambda batch=batch: tuple(part.flatten() for part in batch(*theirs)))
        polyak(*theirs, step)
    torch.testing.assert_close(parameters_of(ours[0]), parameters_of(theirs[0]), rtol=1e-10, atol=1e-10)


def test_groups_take_their_own_part_of_a_copy():
    """The full correction of a group takes the whole target network; the diagonal of another takes its own layers."""
    ours, theirs = pairs(mlp)
    model, twin = ours[0], theirs[0]
    groups = [{"params": model[:2], "correction": "dense"}, {"params": model[2:], "correction": "diagonal"}]
    optimizer = OPTIMIZERS["sgd"](groups, 0.9, trust=None)
    optimizer.follow(ours[1])
    n = sum(p.numel() for p in twin.parameters())
    first = sum(p.numel() for p in twin[:2].parameters())
    own, copied = torch.zeros(n, n), torch.zeros(n, n)
    own[:first, :first] = copied[:, :first] = 1.0
    own[first:, first:] = copied[first:, first:] = torch.eye(n - first)
    reference = Reference(twin.parameters(), 0.1, 0.9, mask=torch.cat([own, copied]), followed=theirs[1].parameters())
    compare(ours, theirs, optimizer, reference, polyak)


@pytest.mark.parametrize("correction", ["window", "auto"])
def test_refreshed_windows(correction):
    """Refreshed at every age, a window is the oracle, also for target networks."""
    ours, theirs = pairs(mlp)
    optimizer = OPTIMIZERS["sgd"](
        ours[0], 0.9, correction=correction, trust=None, horizon=20, refresh=tuple(range(1, 20))
    )
    optimizer.follow(ours[1])
    reference = Reference(theirs[0].parameters(), 0.1, 0.9, oracle=True)
    compare(ours, theirs, optimizer, reference, hard_copy)


def test_second_derivatives():
    """Of the prediction, which does not depend on the target network: ``ζ`` has the exact Taylor term on one side."""
    ours, theirs = pairs(lambda: nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)))
    optimizer, plain = (
        OPTIMIZERS["sgd"](m, 0.9, correction="dense", trust=None, second_order=True) for m, _ in (ours, theirs)
    )
    for (model, target), each in ((ours, optimizer), (theirs, plain)):
        target.load_state_dict(model.state_dict())
        if each is optimizer:
            each.follow(target)
    one, two = TargetStream(), Stream()
    for _ in range(6):
        for each, batch in ((optimizer, one.batch(*ours)), (plain, two.batch(theirs[0]))):
            each.backward(*batch())
            each.step()
            each.zero_grad()
        ours[1].load_state_dict(ours[0].state_dict())
    torch.testing.assert_close(parameters_of(ours[0]), parameters_of(theirs[0]), rtol=1e-10, atol=1e-10)


# ------------------------------------------------------------------------------------------------- warnings and errors


def test_following_silences_the_warning_that_names_it():
    (model, target), _ = pairs(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    with pytest.warns(unstale.UnfollowedTargetWarning, match=r"optimizer\.follow\(target_network\)"):
        optimizer.backward(*TargetStream().batch(model, target)())
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    optimizer.follow(target)
    optimizer.backward(*TargetStream().batch(model, target)())  # warnings are errors here


def test_a_target_need_not_depend_on_all_that_is_followed():
    """REDQ draws two of its target critics for every batch; the actions come from a third network."""
    (model, target), (other, actor) = pairs(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    optimizer.follow([target, other])
    prediction, target_value = TargetStream().batch(model, target)()
    optimizer.backward(prediction, target_value + 0 * sum(p.sum() for p in actor.parameters()))


def test_parameters_are_followed_once():
    (model, target), _ = pairs(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    optimizer.follow([*target.parameters(), *target.parameters()])
    assert [id(p) for p in optimizer.followed] == [id(p) for p in target.parameters()]
    with pytest.raises(ValueError, match="params has parameters of a followed network"):
        optimizer.add_param_group({"params": target.parameters()})
    with pytest.raises(ValueError, match="this one has none"):
        optimizer.follow(torch.nn.ReLU())


def test_a_skipped_step_is_not_a_first_step():
    (model, target), _ = pairs(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.1, on_nonfinite="skip")
    prediction, target_value = TargetStream().batch(model, target)()
    optimizer.backward(prediction, target_value * float("nan"))
    optimizer.step()
    optimizer.zero_grad()
    optimizer.follow(target)


def test_a_followed_network_without_a_graph_warns():
    (model, target), _ = pairs(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    optimizer.follow(target)
    prediction, target_value = TargetStream().batch(model, target)()
    with pytest.warns(unstale.ConstantTargetWarning, match="no detach"):
        optimizer.backward(prediction, target_value.detach())


def test_a_third_network_is_still_not_followed():
    (model, target), (other, _) = pairs(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    optimizer.follow(target)
    with pytest.warns(unstale.UnfollowedTargetWarning, match="neither this optimizer's nor followed"):
        optimizer.backward(*TargetStream().batch(model, other)())


@pytest.mark.parametrize("own_share", [0.0, 0.5], ids=["target network alone", "mixed with the model's own values"])
@pytest.mark.parametrize("m", [1, 4])
def test_a_replaced_network_is_named_once(m, own_share):
    (model, target), _ = pairs(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.1, correction="dense")
    optimizer.follow(target)
    stream = TargetStream(m=m, own_share=own_share, done=0.0)
    trained(optimizer, model, target, stream, 2)
    with pytest.warns(unstale.UnfollowedTargetWarning, match=r"replaced.*load_state_dict.*optimizer\.follow") as caught:
        trained(optimizer, model, copy.deepcopy(model), stream, 3)
    assert len(caught) == 1


@pytest.mark.parametrize("correction", FOLLOWING)
def test_a_replacement_can_be_followed(correction):
    """Replaced by a copy and followed again, a network is followed as one whose values are loaded."""
    ours, theirs = pairs(mlp)
    optimizers = [OPTIMIZERS["adam"](m, 0.9, **options_for(correction)) for m, _ in (ours, theirs)]
    monitors = [unstale.diagnostics.DriftMonitor(optimizer) for optimizer in optimizers]
    networks = [ours[1], theirs[1]]
    streams = [TargetStream(), TargetStream()]
    for optimizer, network in zip(optimizers, networks, strict=True):
        optimizer.follow(network)
    for step in range(9):
        for (model, _), network, optimizer, stream in zip((ours, theirs), networks, optimizers, streams, strict=True):
            optimizer.backward(stream.batch(model, network))
            optimizer.step()
            optimizer.zero_grad()
        if step % 3 == 2:
            networks[0] = copy.deepcopy(ours[0])
            optimizers[0].follow(networks[0])
            networks[1].load_state_dict(theirs[0].state_dict())
    torch.testing.assert_close(parameters_of(ours[0]), parameters_of(theirs[0]), rtol=0, atol=0)
    assert monitors[0]._params.point().equal(monitors[1]._params.point())


def test_replacements_that_do_not_fit_are_refused():
    (model, target), (other, _) = pairs(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    optimizer.follow(target)
    optimizer.backward(*TargetStream().batch(model, target)())
    with pytest.raises(RuntimeError, match="its batches are pending"):
        optimizer.follow(other)
    optimizer.step()
    for wrong in (mlp(width=7), [target, other]):
        with pytest.raises(RuntimeError, match="of the same shapes in the same order"):
            optimizer.follow(wrong)
    optimizer.follow(other)
    plain = unstale.CorrectedSGD(other, lr=0.1)
    plain.backward(*Stream().batch(other)())
    plain.step()
    with pytest.raises(RuntimeError, match="past batches were not followed"):
        plain.follow(target)


@pytest.mark.parametrize("parameters", [nn.Module.parameters, nn.Module.named_parameters])
def test_a_followed_network_is_not_optimized_as_well(parameters):
    (model, target), _ = pairs(mlp)
    optimizer = unstale.CorrectedSGD(model.named_parameters(), lr=0.1)
    optimizer.follow(target)
    with pytest.raises(ValueError, match="params has parameters of a followed network"):
        optimizer.add_param_group({"params": list(parameters(target))})


def test_what_cannot_be_followed_is_refused():
    (model, target), _ = pairs(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    with pytest.raises(ValueError, match="parameters of its own"):
        optimizer.follow(model)
    with pytest.raises(TypeError, match="takes a module"):
        optimizer.follow("target")
    with pytest.raises(ValueError, match="requires_grad=False"):
        optimizer.follow(copy.deepcopy(target).requires_grad_(False))
    with pytest.raises(ValueError, match="recursion='displacement'"):
        unstale.CorrectedSGD(model, lr=0.1, recursion="literal").follow(target)
    for correction in ("diagonal", "blocks"):
        small = unstale.CorrectedSGD(model, lr=0.1, correction=correction)
        with pytest.raises(ValueError, match="follows a copy of the optimizer's parameters only"):
            small.follow(mlp(width=7))
        small.follow(target)  # after the error, nothing is left of the other network
        small.backward(*TargetStream().batch(model, target)())
    optimizer.follow(target)
    optimizer.follow(target)  # twice is once
    assert len(optimizer.followed) == len(list(target.parameters()))
    optimizer.backward(*TargetStream().batch(model, target)())
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"before the first backward\(\)"):
        optimizer.follow(mlp(width=7))
    target[0].requires_grad_(False)
    optimizer.zero_grad()
    with pytest.raises(ValueError, match="requires_grad=False"):
        optimizer.backward(*TargetStream().batch(model, target)())


def test_a_network_that_changes_within_a_step_is_refused():
    (model, target), _ = pairs(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.1)
    optimizer.follow(target)
    optimizer.backward(*TargetStream().batch(model, target)())
    optimizer.backward(*TargetStream().batch(model, target)())  # it did not change
    through_data(model, target, 0)
    with pytest.raises(RuntimeError, match=r"Update it after step\(\)"):
        optimizer.backward(*TargetStream().batch(model, target)())


def test_shared_layers_are_the_optimizers():
    """A target network that shares a trunk with the model has only its head followed."""
    torch.manual_seed(0)
    trunk, head, other = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer = unstale.CorrectedSGD([trunk, head], lr=0.1)
    optimizer.follow(nn.Sequential(trunk, nn.Tanh(), other))
    assert list(map(id, optimizer.followed)) == list(map(id, other.parameters()))


# ------------------------------------------------------------------------------------------------------------- state


def trained(optimizer, model, target, stream, steps):
    for step in range(steps):
        optimizer.backward(*stream.batch(model, target)())
        optimizer.step()
        optimizer.zero_grad()
        polyak(model, target, step)


@pytest.mark.parametrize("way", ["state dict", "deepcopy", "pickle"])
@pytest.mark.parametrize("correction", FOLLOWING)
def test_states_continue_where_they_were_saved(correction, way):
    (model, target), _ = pairs(mlp)
    optimizer = OPTIMIZERS["adam"](model, 0.9, **options_for(correction))
    optimizer.follow(target)
    stream = TargetStream()
    trained(optimizer, model, target, stream, 5)
    if way == "state dict":
        file = io.BytesIO()
        torch.save([model.state_dict(), target.state_dict(), optimizer.state_dict()], file)
        file.seek(0)
        saved = torch.load(file)
        (again, again_target), _ = pairs(mlp, seed=1)
        again.load_state_dict(saved[0])
        again_target.load_state_dict(saved[1])
        other = OPTIMIZERS["adam"](again, 0.9, **options_for(correction))
        other.follow(again_target)
        other.load_state_dict(saved[2])
    else:
        duplicate = copy.deepcopy if way == "deepcopy" else (lambda parts: pickle.loads(pickle.dumps(parts)))
        again, again_target, other = duplicate((model, target, optimizer))
    same = TargetStream()
    same.generator.set_state(stream.generator.get_state())
    trained(optimizer, model, target, stream, 5)
    trained(other, again, again_target, same, 5)
    assert torch.equal(parameters_of(model), parameters_of(again))


def test_states_that_follow_something_else_are_refused():
    (model, target), (twin, _) = pairs(mlp)
    optimizer, plain = unstale.CorrectedSGD(model, lr=0.1), unstale.CorrectedSGD(twin, lr=0.1)
    optimizer.follow(target)
    for one, other in ((optimizer, plain), (plain, optimizer)):
        with pytest.raises(ValueError, match=r"Call optimizer\.follow\(target_network\) before load_state_dict\(\)"):
            one.load_state_dict(other.state_dict())
    old = plain.state_dict()
    del old["unstale"]["followed"]  # as before networks could be followed
    plain.load_state_dict(old)


# --------------------------------------------------------------------------------------------------- plans and readings


def test_the_plan_counts_followed_parameters():
    (model, target), _ = pairs(lambda: mlp(width=22))  # 617 parameters
    for follows, chosen in ((False, "a 617×617 matrix"), (True, "a 617×1,234 matrix")):
        optimizer = unstale.CorrectedSGD(model, lr=0.1)
        if follows:
            optimizer.follow(target)
            optimizer.backward(*TargetStream().batch(model, target)())
        else:
            optimizer.backward(*Stream().batch(model)())
        assert chosen in repr(optimizer)
    assert "reservoir" in repr(optimizer)  # 617² entries are within the budget, twice as many are not


def test_a_monitor_follows_too():
    """On linear values corrected gradients are those at the current parameters, with the target network as it is."""
    (model, target), _ = pairs(linear)
    optimizer = unstale.CorrectedSGD(model, lr=0.3, correction="window")
    monitor = unstale.diagnostics.DriftMonitor(optimizer, horizon=10)
    optimizer.follow(target)
    stream = TargetStream()
    for step in range(8):
        optimizer.backward(stream.batch(model, target))
        optimizer.step()
        optimizer.zero_grad()
        hard_copy(model, target, step)
    reading = monitor.read()
    assert reading.agreement == pytest.approx(1, abs=1e-10)
    assert reading.stale_agreement < 1 - 1e-6 and reading.drift > 0
