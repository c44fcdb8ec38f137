"""Damaged states: they are refused and change nothing, or they are harmless."""

import copy
import io
import warnings

import pytest
import torch
from fuzz_inputs import ANY_NUMBER, REFUSED, any_tensor, attempt, fuzzed
from hypothesis import given
from hypothesis import strategies as st
from problems import Stream, assert_same, mlp
from torch import nn

import unstale

BASES = {"CorrectedSGD": {}, "CorrectedAdam": {}, "CorrectedRMSprop": {}, "CorrectedTDprop": {}}
CORRECTIONS = {
    "none": {},
    "diagonal": {},
    "blocks": {},
    "dense": {},
    "window": dict(horizon=3),
    "refreshed": dict(correction="window", horizon=4, refresh=(1, 2)),
    "reservoir": dict(slots=8),
    "oracle": dict(horizon=2),
    "auto": {},
}


class Training:
    """A small network with an optimizer, some steps into training; with ``follows``, also a target network."""

    def __init__(self, base, correction, follows, steps, embeds=False):
        torch.manual_seed(0)
        first = [nn.Embedding(5, 3), nn.Flatten(0, 1)] if embeds else []
        self.model = nn.Sequential(*first, mlp(width=3))
        options = {"correction": correction, **CORRECTIONS[correction]}
        options |= dict(lr=0.01, **(dict(beta=0.8) if base in ("CorrectedSGD", "CorrectedRMSprop") else {}))
        halves = [{"params": list(self.model.parameters())[:3]}, {"params": list(self.model.parameters())[3:]}]
        self.optimizer = getattr(unstale, base)(halves if not follows else self.model, **options)
        self.target = self.model
        if follows:
            self.target = copy.deepcopy(self.model)
            self.optimizer.follow(self.target)
        self.embeds = embeds
        self.stream = Stream(draw=self._draw)
        self.train(steps)

    def _draw(self, m, generator):
        if self.embeds:
            return torch.randint(5, (m, 1), generator=generator)
        return torch.randn(m, 3, generator=generator)

    def train(self, steps):
        for _ in range(steps):
            s, s_next = (self._draw(self.stream.m, self.stream.generator) for _ in range(2))

            def batch(s=s, s_next=s_next):
                return self.model(s).squeeze(-1), 1 + 0.9 * self.target(s_next).squeeze(-1)

            self.optimizer.backward(batch)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def everything(self):
        return copy.deepcopy((list(self.model.parameters()), self.optimizer.state_dict(), self.optimizer.defaults))


@st.composite
def paths(draw, value):
    """Keys that lead to some part of nested containers."""
    found = []
    while isinstance(value, dict | list) and value and (not found or draw(st.integers(0, 4))):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        found.append(draw(st.sampled_from(keys)))
        value = value[found[-1]]
    return found


@st.composite
def damages(draw, value):
    """Something odd in place of a part of a state."""
    if isinstance(value, torch.Tensor) and draw(st.integers(0, 3)):
        flat = value.clone().reshape(-1)
        spoil = draw(st.sampled_from(["entry", "shape", "shorter", "dtype", "sparse", "meta"]))
        if spoil == "entry" and flat.numel():
            odd = [float("nan"), float("inf"), -float("inf"), -1.0] if flat.is_floating_point() else [-1, 99, 2**40]
            if flat.dtype in (torch.int64, torch.float64, torch.float32):
                flat[draw(st.integers(0, flat.numel() - 1))] = draw(st.sampled_from(odd))
            return flat.reshape(value.shape)
        if spoil == "shape":
            return value.unsqueeze(-1) if draw(st.booleans()) else flat
        if spoil == "shorter":
            return value[:-1] if value.ndim else value.expand(2)
        if spoil == "dtype":
            return value.to(draw(st.sampled_from([torch.float16, torch.int64, torch.bool, torch.complex128])))
        if spoil == "sparse" and value.ndim:
            return value.to_sparse()
        return value.to("meta")
    return draw(st.one_of(ANY_NUMBER, any_tensor, st.text(max_size=5), st.just([]), st.just({}), st.just([value])))


@fuzzed(80)
@given(st.data())
def test_damaged_states_are_refused_as_a_whole(data):
    base, correction = data.draw(st.sampled_from(sorted(BASES))), data.draw(st.sampled_from(sorted(CORRECTIONS)))
    follows, embeds = data.draw(st.booleans()), data.draw(st.booleans())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = Training(base, correction, follows, 2, embeds), Training(base, correction, follows, 7, embeds)
        state = copy.deepcopy(theirs.optimizer.state_dict())
        path = data.draw(paths(state))
        place = state
        for key in path[:-1]:
            place = place[key]
        if path and isinstance(place, dict) and data.draw(st.integers(0, 3)) == 0:
            del place[path[-1]]
        elif path:
            place[path[-1]] = data.draw(damages(place[path[-1]]))
        else:
            state = data.draw(damages(state))
        before = ours.everything()
        if attempt(lambda: ours.optimizer.load_state_dict(state)) is REFUSED:
            assert_same(ours.everything(), before)
            return
        # Then it was nothing that matters: training goes on.
        attempt(lambda: ours.train(3), FloatingPointError, MemoryError)


@pytest.mark.parametrize("correction", sorted(CORRECTIONS))
@pytest.mark.parametrize("follows", [False, True])
def test_every_entry_of_a_state_is_missed(correction, follows):
    """Whatever is left out of a group's state, or put there, or made longer, is noticed before anything is loaded."""
    warnings.simplefilter("ignore")
    training = Training("CorrectedAdam", correction, follows, 7)
    other = Training("CorrectedAdam", correction, follows, 2)
    before = other.everything()
    whole = training.optimizer.state_dict()
    for name, group in whole["state"].items():
        for key in [*group, "unknown"]:
            changes = [{k: v for k, v in group.items() if k != key}] if key in group else [{**group, key: 0}]
            if isinstance(group.get(key), torch.Tensor):
                changes += [{**group, key: group[key].unsqueeze(0)}, {**group, key: group[key] * torch.nan}]
            for changed in changes:
                with pytest.raises(ValueError, match="this state_dict is damaged"):
                    other.optimizer.load_state_dict({**whole, "state": {**whole["state"], name: changed}})
    assert_same(other.everything(), before)
    other.optimizer.load_state_dict(whole)


def test_positions_of_slots_are_checked():
    training = Training("CorrectedSGD", "reservoir", False, 30)
    for name, wrong in (("newest", -1), ("pool", 10**6), ("pool", 0)):
        state = copy.deepcopy(training.optimizer.state_dict())
        state["state"]["group 0"]["memory"][name].fill_(wrong)
        with pytest.raises(ValueError, match="do not name every slot once"):
            training.optimizer.load_state_dict(state)


@fuzzed(40)
@given(st.data())
def test_damaged_files_of_states(data):
    """torch.load refuses damaged files or returns something; what it returns is checked as any state."""
    training = Training("CorrectedSGD", "window", False, 4)
    file = io.BytesIO()
    torch.save(training.optimizer.state_dict(), file)
    content = bytearray(file.getvalue())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    before = training.everything()
    try:
        state = torch.load(io.BytesIO(content), weights_only=True)
    except Exception:
        return  # torch's business
    if attempt(lambda: training.optimizer.load_state_dict(state)) is REFUSED:
        assert_same(training.everything(), before)


def test_entries_of_types_that_no_check_expects_are_refused():
    training = Training("CorrectedAdam", "dense", follows=False, steps=3)
    before = copy.deepcopy(training.optimizer.state_dict())
    for change in (
        lambda state: state["state"]["group 0"].update(mu_norm=torch.zeros((), dtype=torch.complex64)),
        lambda state: state["state"]["group 0"]["memory"].update(buffer=None),
        lambda state: state["param_groups"][0].update(lr=torch.zeros((), device="meta")),
        lambda state: state["param_groups"][0].update(trust=10**400),
    ):
        damaged = copy.deepcopy(before)
        change(damaged)
        with pytest.raises(ValueError, match="this state_dict is damaged"):
            training.optimizer.load_state_dict(damaged)
    assert_same(training.optimizer.state_dict(), before)


def test_a_loaded_state_shares_nothing_with_the_checkpoint():
    training = Training("CorrectedSGD", "window", follows=False, steps=3)
    saved = copy.deepcopy(training.optimizer.state_dict())
    for piece in saved["state"]["group 0"]["memory"]["pieces"]:
        piece["tensors"] = tuple(piece["tensors"])
    before = copy.deepcopy(saved)
    training.optimizer.load_state_dict(saved)
    training.train(2)
    assert_same(saved, before)


def test_norms_that_overflowed_can_be_loaded():
    training = Training("CorrectedSGD", "dense", follows=False, steps=3)
    saved = copy.deepcopy(training.optimizer.state_dict())
    saved["state"]["group 0"]["mu_norm"].fill_(torch.inf)
    training.optimizer.load_state_dict(saved)


def test_a_schedule_may_end_below_zero():
    training = Training("CorrectedSGD", "dense", follows=False, steps=3)
    training.optimizer.param_groups[0]["lr"] = -1e-12
    training.optimizer.load_state_dict(training.optimizer.state_dict())
    assert training.optimizer.param_groups[0]["lr"] == -1e-12
