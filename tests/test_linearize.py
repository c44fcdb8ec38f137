"""Per-sample gradients, for every layer kind and every way of writing a TD loop, against a loop over samples."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from reference import flat, gradient_of, per_sample
from torch import nn

import unstale
from unstale._flat_params import FlatParams
from unstale.per_sample.gradients import Linearization
from unstale.per_sample.linearize import linearize, trace_batch


def linearized(prediction, target, parameters):
    found = linearize(trace_batch(prediction, target), [FlatParams(list(parameters))])
    m = len(prediction)
    generator = torch.Generator().manual_seed(3)
    slope, curvature = torch.randn(m, generator=generator), torch.randn(m, generator=generator)
    return Linearization(found.gradients[0], slope, curvature)


def irregular_parameters(prediction, target, parameters):
    """How many parameters need vector-Jacobian products."""
    return len(linearize(trace_batch(prediction, target), [FlatParams(list(parameters))]).irregular)


def check(prediction, target, parameters, kinds=None, irregular=None):
    """Compare every method of a batch with matrices from a loop over samples."""
    parameters = list(parameters)
    batch = linearized(prediction, target, parameters)
    v = per_sample(prediction, parameters)
    u = v - (0 if target is None else per_sample(target, parameters))
    got_v, got_u = batch.matrices()
    close = dict(rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(got_v, v, **close)
    torch.testing.assert_close(got_u, u, **close)
    direction = torch.randn(v.shape[1], generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(batch.shift(direction), u @ direction, **close)
    torch.testing.assert_close(batch.gradient(batch.slope), batch.slope @ v, **close)
    taylor = torch.einsum("k,ki,kj->ij", batch.curvature, u, v)
    torch.testing.assert_close(batch.diagonal(), taylor.diagonal(), **close)
    per = len(v) * batch.curvature.square() @ (u * v).square()
    torch.testing.assert_close(batch.squared_diagonal(), per, **close)
    swapped = Linearization(tuple(piece.of_residual() for piece in batch.pieces), batch.slope, batch.curvature)
    torch.testing.assert_close(swapped.gradient(batch.slope), batch.slope @ u, **close)
    if kinds is not None:
        assert {piece.kind for piece in batch.pieces} == kinds
    if irregular is not None:
        assert irregular_parameters(prediction, target, parameters) == irregular


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def values(model, x):
    """One number per row, through every output."""
    return torch.sin(model(x)).flatten(1).sum(1)


sizes = st.integers(1, 4)


@given(m=sizes, inputs=sizes, outputs=sizes, middle=st.lists(st.integers(1, 3), max_size=2), bias=st.booleans(),
       large=st.booleans(), constant=st.booleans())  # fmt: skip
def test_linear(m, inputs, outputs, middle, bias, large, constant):
    inputs, outputs = (inputs + 30, outputs + 30) if large else (inputs, outputs)
    torch.manual_seed(m)
    model = nn.Linear(inputs, outputs, bias=bias)
    x, y = torch.randn(m, *middle, inputs), torch.randn(m, *middle, inputs)
    target = None if constant else 0.9 * values(model, y)
    check(values(model, x), target, model.parameters())


@given(
    m=sizes, channels=st.sampled_from([(2, 2, 1), (4, 6, 2), (3, 3, 3), (8, 12, 1)]), kernel=st.integers(1, 3),
    stride=st.integers(1, 2), padding=st.sampled_from([0, 1, "same", "valid"]), dilation=st.integers(1, 2),
    mode=st.sampled_from(["zeros", "reflect", "circular", "replicate"]), dims=st.sampled_from([1, 2]),
)  # fmt: skip
def test_convolution(m, channels, kernel, stride, padding, dilation, mode, dims):
    inputs, outputs, groups = channels
    stride = 1 if padding == "same" else stride
    torch.manual_seed(m)
    layer = (nn.Conv1d, nn.Conv2d)[dims - 1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that even kernels with padding="same" copy
        model = layer(inputs, outputs, kernel, stride, padding, dilation, groups=groups, padding_mode=mode)
        shape = (m, inputs) + (6,) * dims
        check(values(model, torch.randn(shape)), 0.9 * values(model, torch.randn(shape)), model.parameters())


@given(m=sizes, rows=st.integers(2, 40), width=st.integers(1, 20), length=st.integers(1, 3), pad=st.booleans())
def test_embedding(m, rows, width, length, pad):
    torch.manual_seed(m)
    model = nn.Embedding(rows, width, padding_idx=1 if pad else None)
    index, other = torch.randint(rows, (m, length)), torch.randint(rows, (m, length))
    check(values(model, index), 0.9 * values(model, other), model.parameters())


@given(
    m=sizes,
    shape=st.lists(st.integers(2, 4), min_size=1, max_size=2),
    middle=st.lists(sizes, max_size=1),
    bias=st.booleans(),
)
def test_layer_norm(m, shape, middle, bias):
    torch.manual_seed(m)
    model = nn.LayerNorm(shape, bias=bias)
    x, y = torch.randn(m, *middle, *shape), torch.randn(m, *middle, *shape)
    check(values(model, x), 0.9 * values(model, y), model.parameters())


def test_large_layers_stay_factored():
    model = nn.Sequential(nn.Embedding(50, 40), nn.Flatten(), nn.Linear(80, 60), nn.Tanh(), nn.Linear(60, 1))
    x, y = torch.randint(50, (3, 2)), torch.randint(50, (3, 2))
    check(model(x).squeeze(-1), model(y).squeeze(-1), model.parameters(), kinds={"lookup", "outer", "matrix"})


def test_modules_that_are_not_known_go_by_any_graph():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4, batch_first=True)
            self.norm = nn.GroupNorm(2, 4)
            self.bilinear = nn.Bilinear(4, 4, 5)
            self.scale = nn.Parameter(torch.randn(5))
            self.head = nn.Linear(5, 1)

        def forward(self, x):
            h = self.norm(self.lstm(x)[0][:, -1])
            return self.head(self.bilinear(h, h) * self.scale)

    torch.manual_seed(0)
    model = Odd()
    x, y = torch.randn(3, 2, 3), torch.randn(3, 2, 3)
    check(model(x).squeeze(-1), 0.9 * model(y).squeeze(-1), model.parameters())


def test_tied_and_repeated_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(40, 30)
            self.mix = nn.Linear(30, 30)

        def forward(self, index):
            h = self.mix(torch.tanh(self.mix(self.embed(index))))  # the same layer twice
            return F.linear(h, self.embed.weight).logsumexp(-1)  # and the table again, as a bare weight

    torch.manual_seed(0)
    model = Tied()
    x, y = torch.randint(40, (3,)), torch.randint(40, (3,))
    check(model(x), 0.5 * model(y), model.parameters())


def test_reparametrised_and_subclassed_layers_are_not_mistaken_for_plain_ones():
    class Doubled(nn.Linear):
        def forward(self, x):
            return F.linear(x, 2 * self.weight, self.bias)

    torch.manual_seed(0)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    model = nn.Sequential(Doubled(3, 4), nn.Tanh(), normed, nn.Tanh(), nn.Linear(4, 1))
    x, y = torch.randn(3, 3), torch.randn(3, 3)
    check(model(x).squeeze(-1), model(y).squeeze(-1), model.parameters())


def test_a_model_that_mixes_rows_is_found_out():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x):
            h = self.a(x)
            return self.b(torch.tanh(h - h.mean(0)))

    torch.manual_seed(0)
    model = Centred()
    x, y = torch.randn(5, 3), torch.randn(5, 3)
    check(model(x).squeeze(-1), model(y).squeeze(-1), model.parameters(), irregular=2)  # all below the mean


# --------------------------------------------------------------- ways of writing the same thing


class Agent(nn.Module):
    def __init__(self, actions=3):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 30), nn.Tanh())
        self.q = nn.Linear(30, actions)
        self.value = nn.Linear(30, 1)
        self.advantage = nn.Linear(30, actions)

    def forward(self, x):
        return self.q(self.trunk(x))

    def v(self, x):
        return self.value(self.trunk(x)).squeeze(-1)

    def dueling(self, x):
        h = self.trunk(x)
        a = self.advantage(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


@pytest.fixture
def agent():
    torch.manual_seed(1)
    return Agent()


@pytest.fixture
def data():
    g = generator(5)
    m = 5
    return dict(
        s=torch.randn(m, 4, generator=g), n=torch.randn(m, 4, generator=g), r=torch.randn(m, generator=g),
        d=torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0]), a=torch.randint(3, (m,), generator=g),
        b=torch.randint(3, (m,), generator=g),
    )  # fmt: skip


def two_calls(agent, s, n, r, d, **_):
    return agent.v(s), r + 0.9 * (1 - d) * agent.v(n)


def one_call(agent, s, n, r, d, **_):
    value, next_value = agent.v(torch.cat([s, n])).chunk(2)
    return value, r + 0.9 * (1 - d) * next_value


def stacked(agent, s, n, r, d, **_):
    both = agent.value(agent.trunk(torch.stack([s, n], 1).reshape(-1, 4))).reshape(-1, 2)
    return both[:, 0], r + 0.9 * (1 - d) * both[:, 1]


def shuffled(agent, s, n, r, d, **_):
    order = torch.randperm(10)
    both = agent.v(torch.cat([s, n])[order])[order.argsort()]
    return both[:5], r + 0.9 * (1 - d) * both[5:]


def masked(agent, s, n, r, d, **_):
    live = d == 0
    next_value = torch.zeros(5)
    next_value[live] = agent.v(n[live])
    return agent.v(s), r + 0.9 * next_value


def called_through_submodules(agent, s, n, r, d, **_):
    return agent.value(agent.trunk(s)).reshape(-1), r + 0.9 * (1 - d) * agent.value(agent.trunk(n)).reshape(-1)


def one_sample_at_a_time(agent, s, n, r, d, **_):
    value = torch.cat([agent.value(agent.trunk(x)) for x in s])
    return value, r + 0.9 * (1 - d) * torch.stack([agent.v(x[None])[0] for x in n])


VALUE_STYLES = [
    two_calls, one_call, stacked, shuffled, masked, called_through_submodules, one_sample_at_a_time,
]  # fmt: skip


@pytest.mark.parametrize("style", VALUE_STYLES)
def test_value_styles_agree(agent, data, style):
    expected = linearized(*two_calls(agent, **data), agent.parameters()).matrices()
    got = linearized(*style(agent, **data), agent.parameters()).matrices()
    for one, two in zip(got, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-11, atol=1e-11)
    check(*style(agent, **data), agent.parameters())


def gathered(agent, s, n, r, d, a, b):
    q = agent(s).gather(1, a[:, None]).squeeze(1)
    return q, r + 0.9 * (1 - d) * agent(n).gather(1, b[:, None]).squeeze(1)


def indexed(agent, s, n, r, d, a, b):
    rows = torch.arange(5)
    return agent(s)[rows, a], r + 0.9 * (1 - d) * agent(n)[rows, b]


def one_hot(agent, s, n, r, d, a, b):
    q, q_next = agent(torch.cat([s, n])).split(5)
    return (q * F.one_hot(a, 3)).sum(1), r + 0.9 * (1 - d) * (q_next * F.one_hot(b, 3)).sum(1)


@pytest.mark.parametrize("style", [gathered, indexed, one_hot])
def test_action_value_styles_agree(agent, data, style):
    expected = linearized(*gathered(agent, **data), agent.parameters()).matrices()
    got = linearized(*style(agent, **data), agent.parameters()).matrices()
    for one, two in zip(got, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-11, atol=1e-11)
    check(*style(agent, **data), agent.parameters())


def test_other_targets(agent, data):
    s, n, r, d, a, b = (data[k] for k in "snrdab")
    q = agent(s).gather(1, a[:, None]).squeeze(1)
    policy = torch.softmax(torch.randn(5, 3), 1)
    frozen = copy.deepcopy(agent).requires_grad_(False)
    other = Agent()
    targets = {
        "q-learning": unstale.targets.q_learning(r, agent(n), d, 0.9),
        "double": unstale.targets.q_learning(r, agent(n), d, 0.9, select=agent(n)),
        "expected sarsa": unstale.targets.expected_sarsa(r, agent(n), policy, d, 0.9),
        "dueling": unstale.targets.sarsa(r, agent.dueling(n), b, d, 0.9),
        "another head": unstale.targets.td(r, agent.v(n), d, 0.9),
        "another network": unstale.targets.td(r, other.v(n), d, 0.9),
        "least of two": unstale.targets.td(r, torch.minimum(agent.v(n), other.v(n)), d, 0.9),
        "frozen": None,
        "squashed": torch.tanh(r + agent.v(n) ** 2),
    }
    assert not frozen.v(n).requires_grad
    parameters = [*agent.parameters(), *other.parameters()]
    for target in targets.values():
        check(q, target, parameters)
    check(agent.dueling(s).amax(1), targets["dueling"], parameters)


@pytest.mark.parametrize("kind", ["v", "q", "conv"])
def test_row_sharing_targets(kind):
    """A trajectory is one call; under TD(λ) every later row serves every earlier sample."""
    torch.manual_seed(0)
    steps = 6
    agent = Agent()
    if kind == "conv":
        net = nn.Sequential(nn.Conv2d(1, 30, 2), nn.Tanh(), nn.Flatten(), nn.Linear(30, 1))
        values = net(torch.randn(steps + 1, 1, 2, 2)).squeeze(-1)
        parameters = net.parameters()
    elif kind == "q":
        values = agent(torch.randn(steps + 1, 4))[torch.arange(steps + 1), torch.randint(3, (steps + 1,))]
        parameters = agent.parameters()
    else:
        values, parameters = agent.v(torch.randn(steps + 1, 4)), agent.parameters()
    parameters = list(parameters)
    none = torch.zeros(steps, dtype=torch.bool)
    ended = none.clone()
    ended[2] = True
    reward = torch.randn(steps)
    for terminated in (none, ended):
        for lam in (0.0, 0.7, 1.0):
            target = unstale.targets.td_lambda(reward, values[1:], terminated, none, 0.9, lam)
            check(values[:-1], target, parameters)
        check(values[:-1], unstale.targets.n_step(reward, values[1:], terminated, none, 0.9, 3), parameters)


def test_rows_that_serve_along_several_directions_go_by_any_graph():
    """Q-learning on one trajectory: a row serves its own action, and its best one as a target."""
    torch.manual_seed(0)
    agent = Agent()
    q = agent(torch.randn(7, 4))
    prediction = q[:-1].gather(1, torch.randint(3, (6, 1))).squeeze(1)
    check(prediction, 1 + 0.9 * q[1:].amax(1), agent.parameters())
    mixed = q[:-1] @ torch.randn(3, 6)  # every sample looks at every row, along its own direction
    check(mixed.diagonal() + mixed.sum(0), 0.5 * mixed.sum(1), agent.parameters())


def test_rows_may_change_owners_from_step_to_step():
    """The same shapes, indexed differently every time: nothing that was learned of the rows may be reused blindly."""
    torch.manual_seed(0)
    agent = Agent()
    states = torch.randn(9, 4)
    for seed in range(6):
        chosen = torch.randperm(9, generator=generator(seed))[:8]
        values = agent.v(states)
        check(values[chosen[:4]], 0.9 * values[chosen[4:]], agent.parameters())


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("style", ["two calls", "one call", "shuffled"])
def test_what_terminal_samples_hide_is_seen_later(m, style):
    """While every sample is terminal the target's rows are of no consequence, and could be anybody's."""
    torch.manual_seed(0)
    agent = Agent()
    s, n = torch.randn(m, 4), torch.randn(m, 4)
    order = torch.randperm(2 * m)
    for not_done in (torch.zeros(m), torch.ones(m), torch.arange(m) % 2.0, torch.ones(m)):
        if style == "two calls":
            value, next_value = agent.v(s), agent.v(n)
        else:
            rows = order if style == "shuffled" else torch.arange(2 * m)
            value, next_value = agent.v(torch.cat([s, n])[rows])[rows.argsort()].split(m)
        check(value, 0.9 * not_done * next_value, agent.parameters())


def test_frozen_parameters_have_no_gradient():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 1))
    model[2].weight.requires_grad_(False)
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    batch = linearized(model(x).squeeze(-1), model(y).squeeze(-1), model.parameters())
    trainable = [p for p in model.parameters() if p.requires_grad]
    expected = per_sample(model(x).squeeze(-1), trainable)
    kept = torch.cat([torch.full((p.numel(),), p.requires_grad) for p in model.parameters()])
    v, _ = batch.matrices()
    torch.testing.assert_close(v[:, kept], expected)
    assert not v[:, ~kept].any()


@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(3, 1), lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))]
)
def test_second_order_taylor_term_is_the_jacobian_of_the_semi_gradient(make):
    """With ``second_order`` Z is exact: the derivative of the semi-gradient, target moving along."""
    torch.manual_seed(0)
    model = make()
    s, n, r = torch.randn(4, 3), torch.randn(4, 3), torch.randn(4)
    parameters = FlatParams(list(model.parameters()), vectors_first=True).parameters  # the order of the state's vectors

    def semi_gradient():
        value, target = model(s).squeeze(-1), r + 0.9 * model(n).squeeze(-1)
        prediction_only = torch.autograd.grad((value * (value - target).detach()).mean(), parameters)
        return flat(prediction_only)

    start, step = flat(parameters), 1e-6
    columns = []
    for j in range(len(start)):
        ends = []
        for sign in (1, -1):
            nn.utils.vector_to_parameters(start + sign * step * torch.eye(len(start))[j], parameters)
            ends.append(semi_gradient())
        columns.append((ends[0] - ends[1]) / (2 * step))
    nn.utils.vector_to_parameters(start, parameters)
    jacobian = torch.stack(columns, 1)  # ∂g_i / ∂θ_j = Zᵀ

    for correction, shape in (("dense", lambda z: z), ("diagonal", torch.diagonal)):
        optimizer = unstale.CorrectedSGD(model, lr=0.0, beta=0.0, correction=correction, second_order=True)
        optimizer.backward(model(s).squeeze(-1), r + 0.9 * model(n).squeeze(-1))
        optimizer.step()
        optimizer.zero_grad()
        zeta = optimizer.state["group 0"]["memory"]["zeta"]
        got = zeta[0][0] if correction == "dense" else zeta
        torch.testing.assert_close(got, shape(jacobian), rtol=1e-6, atol=1e-6)


def test_target_with_gamma_zero_is_regression(agent, data):
    s, n, r = data["s"], data["n"], data["r"]
    one = linearized(agent.v(s), r + 0.0 * agent.v(n), agent.parameters())
    two = linearized(agent.v(s), None, agent.parameters())
    for a, b in zip(one.matrices(), two.matrices(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_gradient_is_the_sum_of_its_samples(agent, data):
    prediction, target = two_calls(agent, **data)
    batch = linearized(prediction, target, agent.parameters())
    expected = gradient_of((prediction * batch.slope).sum(), list(agent.parameters()))
    torch.testing.assert_close(batch.gradient(batch.slope), expected)


def test_mixed_rows_are_found_behind_an_output_layer_that_starts_at_zero():
    """At first every gradient below is zero; later graphs must not reuse what was found then."""
    torch.manual_seed(0)

    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 1)
            nn.init.zeros_(self.b.weight)

        def forward(self, x):
            h = self.a(x)
            return self.b(torch.tanh(h - h.mean(0)))

    model = Centred()
    x, y = torch.randn(5, 3), torch.randn(5, 3)
    check(model(x).squeeze(-1), model(y).squeeze(-1), model.parameters())
    nn.init.normal_(model.b.weight)
    check(model(x).squeeze(-1), model(y).squeeze(-1), model.parameters(), irregular=2)
