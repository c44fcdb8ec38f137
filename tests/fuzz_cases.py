"""Random networks, random graphs around them, and a literal reference: one case per seed.

A case is a network of random modules, a *program* per step that turns it and random data into predictions and targets,
and an optimizer. Programs, coefficients and masks change from step to step, so that whatever is true of one graph is
false of the next. :func:`run_case` trains for five steps beside :class:`reference.Reference` (float64, a loop over
samples, every batch remembered) and raises AssertionError where ``.grad`` or the parameters differ.
"""

from __future__ import annotations

import copy
import random
import warnings
from unittest import mock

import torch
import torch.nn.functional as F
from reference import Reference, block_mask, diagonal_mask
from torch import nn

import unstale
from unstale.corrections import select

STEPS = 5
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3}  # of parameters, relative to how far they moved
GRAD_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of .grad, relative to its norm


# ------------------------------------------------------------------------------------------------------- networks


class Clip(torch.autograd.Function):
    """An operation that the library cannot know."""

    @staticmethod
    def forward(x):
        return x * 1.5

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.5


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Product(nn.Module):
    """A bare weight, used untransposed, with a scale."""

    def __init__(self, width, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, outputs) / width**0.5)
        self.scale = nn.Parameter(torch.rand(outputs) + 0.5)

    def forward(self, x):
        return (x @ self.weight) * self.scale


class Attention(nn.Module):
    """Attention within a sample, whose features are cut into tokens."""

    def __init__(self, width, tokens):
        super().__init__()
        self.tokens = tokens
        self.attention = nn.MultiheadAttention(width // tokens, 1, batch_first=True)

    def forward(self, x):
        h = x.unflatten(-1, (self.tokens, -1))
        return self.attention(h, h, h, need_weights=False)[0].flatten(1)


class Recurrent(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = nn.GRUCell(width, width)

    def forward(self, x):
        h = torch.zeros_like(x)
        for _ in range(2):
            h = self.cell(x, h)
        return h


class Convolved(nn.Module):
    def __init__(self, width, groups, padding_mode):
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3, padding=1, groups=groups, padding_mode=padding_mode)

    def forward(self, x):
        return self.conv(x.unflatten(-1, (2, -1))).flatten(1)


class Channels(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(x.unflatten(-1, (2, -1))).flatten(1)


class TwoAxes(nn.Module):
    """A layer over a further axis, on a transposed view: column-major activations."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        h = self.linear(x.unflatten(-1, (2, -1)).transpose(1, 2))
        return torch.tanh(h).transpose(1, 2).flatten(1)


class Between(nn.Module):
    """Something between layers that may mix rows; ``knob`` (set at every step) controls whether and how much."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.knob, self.seed = kind, 0.0, 0

    def forward(self, h):
        knob, rows = self.knob, len(h)
        if self.kind == "flip":
            return h + knob * h.flip(0)
        if self.kind == "mean":
            return h - knob * h.mean(0)
        if self.kind == "std":
            return h / (1 + knob * h.var()) if rows > 1 else h
        if self.kind == "batch layer norm":
            return F.layer_norm(h, h.shape) if knob else h
        if self.kind == "permutation":
            return h[torch.randperm(rows, generator=torch.Generator().manual_seed(self.seed))] if knob else h
        if self.kind == "roll":
            return h * h.roll(1, 0) if knob else h
        if self.kind == "unknown operation":
            return Clip.apply(h) if knob else h
        if self.kind == "gram":
            return h + 0.1 * knob * (h @ h.T) @ h
        if self.kind == "softmax":
            return h * h.softmax(0) if knob else h.softmax(-1)
        if self.kind == "cumsum":
            return h + 0.1 * knob * h.cumsum(0)
        assert self.kind == "in place"
        h = h.clone()
        h[:, 0] = h[:, 0] * 2
        h[0] = h[0] + knob
        return h


BETWEEN = [
    "flip", "mean", "std", "batch layer norm", "permutation", "roll", "unknown operation", "gram", "softmax", "cumsum",
    "in place",
]  # fmt: skip


def activation(pick, smooth):
    return pick([nn.Tanh(), nn.Softplus(), nn.SiLU(), nn.GELU()] if smooth else [nn.Tanh(), nn.LeakyReLU(), nn.ELU()])


def hidden_block(pick, width, smooth):
    kind = pick(
        ["linear"] * 4
        + ["layer norm", "residual", "product", "attention", "recurrent", "conv", "channels", "two axes", "prelu"]
        + ["weight norm", "no bias", "rms", "scaled", "between", "between"]
    )
    if kind == "layer norm":
        return nn.LayerNorm(width)
    if kind == "residual":
        return Residual(nn.Sequential(nn.Linear(width, width), activation(pick, smooth)))
    if kind == "product":
        return Product(width, width)
    if kind == "attention":
        return Attention(width, 2)
    if kind == "recurrent":
        return Recurrent(width)
    if kind == "conv":
        return Convolved(width, pick([1, 2]), pick(["zeros", "circular", "replicate"]))
    if kind == "channels":
        return Channels(
            pick([nn.GroupNorm(1, 2), nn.GroupNorm(2, 2, eps=0.1), nn.InstanceNorm1d(2, eps=0.1, affine=True)])
        )
    if kind == "two axes":
        return TwoAxes(width)
    if kind == "prelu" and not smooth:
        return nn.PReLU(width)
    if kind == "weight norm":
        return nn.utils.parametrizations.weight_norm(nn.Linear(width, width))
    if kind == "rms":
        return nn.RMSNorm(width)
    if kind == "scaled":
        return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width).eval())
    if kind == "between":
        return Between(pick(BETWEEN))
    return nn.Sequential(nn.Linear(width, width, bias=kind != "no bias"), activation(pick, smooth))


class Network(nn.Module):
    """A random network with several outputs, several heads and a context row."""

    def __init__(self, pick, smooth):
        super().__init__()
        self.is_tokens = pick([False, False, True])
        width = pick([4, 6])
        self.inputs = 3
        first = nn.Sequential(nn.Embedding(7, 3, padding_idx=pick([None, 0])), nn.Flatten()) if self.is_tokens else None
        self.features = first or nn.Identity()
        self.first = nn.Linear(6 if self.is_tokens else self.inputs, width)
        self.blocks = nn.Sequential(
            activation(pick, smooth), *[hidden_block(pick, width, smooth) for _ in range(pick([0, 1, 2, 2, 3]))]
        )
        self.q = nn.Linear(width, 3)
        self.value = nn.Linear(width, 1)
        self.second = nn.Linear(width, 1)
        self.context = nn.Linear(2, 1)
        hook = pick(["none", "none", "none", "forward hook", "replaced forward"])
        if hook == "forward hook":
            self.first.register_forward_hook(_doubled)
        elif hook == "replaced forward":
            self.value.forward = _Replaced(self.value)

    def hidden(self, x):
        return self.blocks(self.first(self.features(x)))

    def forward(self, x):
        return self.q(self.hidden(x))

    def v(self, x):
        return self.value(self.hidden(x)).squeeze(-1)

    def pair(self, x):
        h = self.hidden(x)
        return self.value(h).squeeze(-1), self.second(h).squeeze(-1)

    def draw(self, m, generator):
        if self.is_tokens:
            return torch.randint(7, (m, 2), generator=generator)
        return torch.randn(m, self.inputs, generator=generator, dtype=torch.float64)


def _doubled(module, inputs, output):
    return output * 2 + 0.1


class _Replaced:
    def __init__(self, layer):
        self.layer = layer

    def __call__(self, x):
        return F.linear(x, self.layer.weight, self.layer.bias).tanh() * 2


# ------------------------------------------------------------------------------------------------------- programs


def two_calls(net, d):
    return net.v(d.s), d.r + d.c * net.v(d.n)


def one_call(net, d):
    value, following = net.v(torch.cat([d.s, d.n])).chunk(2)
    return value, d.r + d.c * following


def interleaved(net, d):
    both = net.v(torch.stack([d.s, d.n], 1).flatten(0, 1)).reshape(-1, 2)
    return both[:, 0], d.r + d.c * both[:, 1]


def shuffled(net, d):
    both = net.v(torch.cat([d.s, d.n])[d.order2])[d.order2.argsort()]
    return both[: d.m], d.r + d.c * both[d.m :]


def trajectory(net, d):
    values = net.v(torch.cat([d.s, d.n[:1]]))
    return values[:-1], d.r + d.c * values[1:]


def strided(net, d):
    values = net.v(torch.cat([d.s, d.n]))
    return values[::2], d.r + d.c * values[1::2]


def masked(net, d):
    following = torch.zeros_like(d.r)
    if bool(d.mask.any()):
        following[d.mask] = net.v(d.n[d.mask])
    return net.v(d.s), d.r + d.c * following


def where(net, d):
    return net.v(d.s), d.r + torch.where(d.mask, net.v(d.n), 0.0)


def gathered(net, d):
    q = net(d.s).gather(1, d.a[:, None]).squeeze(1)
    return q, d.r + d.c * net(d.n).gather(1, d.b[:, None]).squeeze(1)


def indexed(net, d):
    rows = d.order if d.flag else torch.arange(d.m)
    return net(d.s)[rows, d.a], d.r + d.c * net(d.n)[rows, d.b]


def repeated_index(net, d):
    return net(d.s)[d.order // 2, d.a], d.r + d.c * net.v(d.n)


def one_hot(net, d):
    q, following = net(torch.cat([d.s, d.n])).split(d.m)
    hot = F.one_hot(d.a, 3).to(d.r)
    return (q * hot).sum(1), d.r + d.c * (following * hot).sum(-1)


def soft_maximum(net, d):
    return net(d.s).logsumexp(-1), d.r + d.c * net(d.n).logsumexp(1)


def expected_value(net, d):
    q = net(d.n)
    return net(d.s)[:, 1], d.r + d.c * (q.softmax(-1) * q).sum(-1)


def shared_bootstrap(net, d):
    return net.v(d.s), d.r + d.c * net.v(d.n[:1])


def context(net, d):
    return net.v(d.s) + d.x * net.context(d.z).squeeze(-1), d.r + d.c * net.v(d.n)


def context_in_target(net, d):
    return net.v(d.s), d.r + d.c * net.v(d.n) + d.x * net.context(d.z).squeeze()


def td_lambda(net, d):
    values = net.v(torch.cat([d.s, d.n[:1]]))
    target = unstale.targets.td_lambda(d.r, values[1:], ~d.mask, torch.zeros_like(d.mask), 0.9, d.lam)
    return values[:-1], target


def n_step(net, d):
    values = net.v(d.n)
    return net.v(d.s), unstale.targets.n_step(d.r, values, ~d.mask, torch.zeros_like(d.mask), 0.9, 2)


def heads_mean(net, d):
    return torch.stack(net.pair(d.s)).mean(0), d.r + d.c * torch.stack(net.pair(d.n), -1).mean(-1)


def heads_minimum(net, d):
    (one, _), (third, fourth) = net.pair(d.s), net.pair(d.n)
    return one, d.r + d.c * (torch.minimum(third, fourth) if not d.smooth else third * fourth)


def dueling(net, d):
    def q(x):
        h = net.hidden(x)
        advantage = net.q(h)
        return net.value(h) + advantage - advantage.mean(1, keepdim=True)

    return q(d.s).gather(1, d.a[:, None]).squeeze(1), d.r + d.c * q(d.n)[:, 0]


def importance(net, d):
    value = net.v(d.s)
    return value, value + d.c * (d.r + 0.9 * net.v(d.n) - value)


def mixed_batch(net, d):
    value = net.v(d.s)
    return value + d.x * value.flip(0), d.r + d.c * net.v(d.n)


def constant_target(net, d):
    return net.v(d.s), d.r


def one_at_a_time(net, d):
    return torch.stack([net.v(x[None])[0] for x in d.s]), d.r + d.c * torch.cat([net.v(x[None]) for x in d.n])


def time_and_batch(net, d):
    """Values ``[t, b]`` of a network that is called on rows, sliced in time."""
    both = torch.cat([d.s, d.n])
    values = net.v(both).unflatten(0, (2, d.m))
    return values[0], d.r + d.c * values[1]


def transposed(net, d):
    values = net(torch.cat([d.s, d.n])).T
    return values[0, : d.m], d.r + d.c * values[1, d.m :]


def in_place(net, d):
    target = net.v(d.n) * d.c
    target += d.r
    value = net.v(d.s).clone()
    value[0] = value[0] * 2
    return value, target


def matrix_of_rows(net, d):
    mix = torch.eye(d.m, dtype=d.r.dtype) + d.x[:, None] * torch.ones(d.m, dtype=d.r.dtype)
    return mix @ net.v(d.s), d.r + d.c * net.v(d.n)


PROGRAMS = [
    two_calls, one_call, interleaved, shuffled, trajectory, strided, masked, where, gathered, indexed, repeated_index,
    one_hot, soft_maximum, expected_value, shared_bootstrap, context, context_in_target, td_lambda, n_step, heads_mean,
    heads_minimum, dueling, importance, mixed_batch, constant_target, one_at_a_time, time_and_batch, transposed,
    in_place, matrix_of_rows,
]  # fmt: skip


class Data:
    """Random data of one step. Coefficients are often all zero, or zero but for one sample."""

    def __init__(self, net, m, seed, dtype, smooth):
        g = torch.Generator().manual_seed(seed)
        pick = random.Random(seed).choice
        self.m, self.smooth, self.flag, self.lam = m, smooth, pick([False, True]), pick([0.0, 0.5, 1.0])
        self.s, self.n = net.draw(m, g), net.draw(m, g)
        self.r = torch.randn(m, generator=g, dtype=torch.float64)
        kind = pick(["zero", "one", "random", "random", "single"])
        self.c, self.x = (self._coefficients(kind if i else pick(["one", "random", "zero"]), m, g) for i in (0, 1))
        self.z = torch.randn(1, 2, generator=g, dtype=torch.float64)
        self.a, self.b = (torch.randint(3, (m,), generator=g) for _ in range(2))
        self.order, self.order2 = torch.randperm(m, generator=g), torch.randperm(2 * m, generator=g)
        self.mask = torch.rand(m, generator=g) < pick([0.0, 0.5, 1.0])
        self.knob = pick([0.0, 0.0, 0.02, 0.5])
        if dtype == torch.float32:  # the same numbers in both precisions
            for name, value in vars(self).items():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    setattr(self, name, value.float())

    @staticmethod
    def _coefficients(kind, m, g):
        if kind in ("zero", "one"):
            return torch.full((m,), float(kind == "one"), dtype=torch.float64)
        c = torch.rand(m, generator=g, dtype=torch.float64)
        return c if kind == "random" else c * (torch.arange(m) == 0)

    def to(self, dtype):
        other = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                setattr(other, name, value.to(dtype))
        return other


def set_knobs(net, data, seed):
    for module in net.modules():
        if isinstance(module, Between):
            module.knob, module.seed = data.knob, seed


# ---------------------------------------------------------------------------------------------------------- a case


def huber(residual):
    return torch.where(residual.abs() <= 1, residual**2 / 2, residual.abs() - 0.5)


def squared(residual):
    return residual**2


OPTIMIZERS = {
    "sgd": lambda p, beta, o: unstale.CorrectedSGD(p, lr=0.05, beta=beta, **o),
    "adam": lambda p, beta, o: unstale.CorrectedAdam(p, lr=0.02, betas=(beta, 0.99), eps=1e-2, **o),
    "rmsprop": lambda p, beta, o: unstale.CorrectedRMSprop(p, lr=0.02, beta=beta, alpha=0.9, eps=1e-2, **o),
    "tdprop": lambda p, beta, o: unstale.CorrectedTDprop(p, lr=0.02, betas=(beta, 0.99), eps=1e-2, **o),
}
RATES = {"sgd": 0.05, "adam": 0.02, "rmsprop": 0.02, "tdprop": 0.02}


def run_case(seed: int, dtype: torch.dtype) -> str:
    """Train for a few steps beside the reference. Returns what was drawn, for messages."""
    rng = random.Random(seed)
    pick = rng.choice
    smooth = dtype == torch.float32  # a kink may be taken on different sides in different precisions
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        default = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            net = Network(pick, smooth)
        finally:
            torch.set_default_dtype(default)
    twin = copy.deepcopy(net).double()
    for one, two in zip(net.modules(), twin.modules(), strict=True):
        if isinstance(getattr(one, "forward", None), _Replaced):
            two.forward = _Replaced(two)
    m, base, beta = pick([1, 2, 3, 4, 5]), pick(["sgd", "sgd", "adam", "rmsprop", "tdprop"]), pick([0.0, 0.5, 0.9])
    correction = pick(["diagonal", "blocks", "dense", "thinned dense", "window", "reservoir"])
    trust, every = pick([None, 1.0]), pick([2, 3]) if correction == "thinned dense" else 1
    if correction == "reservoir":  # which expects no more samples than the first batch has
        m = 2 * ((m + 1) // 2)
    loss, literal_loss = pick([("half_squared", None), ("squared", squared), ("huber", huber)][: 2 if smooth else 3])
    options = dict(correction="auto" if correction == "thinned dense" else correction, trust=trust)
    options |= dict(horizon=STEPS + 1) if correction == "window" else {}
    optimizer = OPTIMIZERS[base](net if pick([0, 1]) else net.parameters(), beta, options)
    parameters = list(twin.parameters())
    mask = {
        "diagonal": lambda: diagonal_mask(parameters),
        "blocks": lambda: block_mask([p.numel() for p in parameters]),
    }
    settings = dict(mask=mask.get(correction, lambda: None)(), trust=trust, base=base, every=every)
    settings |= dict(beta2=0.99, alpha=0.9, eps=1e-2) | ({} if literal_loss is None else dict(loss=literal_loss))
    reference = Reference(parameters, RATES[base], beta, **settings)
    same = copy.deepcopy(net)
    favourite = pick(PROGRAMS)
    drawn = [f"{base} {correction} β={beta} trust={trust} m={m} {loss}", str(net)]
    start = torch.cat([p.detach().flatten() for p in parameters])
    history: list = []
    for step in range(STEPS):
        program = favourite if rng.random() < 0.6 else pick(PROGRAMS)
        data = Data(net, 2 * ((m + 1) // 2) if program is strided else m, rng.randrange(1 << 30), dtype, smooth)
        drawn.append(f"step {step}: {program.__name__} {vars(data)}")
        for each in (net, twin):
            set_knobs(each, data, step)
        where_ = "\n".join(drawn)

        prediction, target = program(net, data)
        plain = {"half_squared": lambda x: x**2 / 2, "squared": squared, "huber": huber}[loss]
        plain(prediction - target.detach()).mean().backward(retain_graph=True)
        expected = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
        optimizer.zero_grad()
        with mock.patch.object(select, "dense_interval", lambda batch, memory, every=every: every):
            optimizer.backward(prediction, target, loss)
        _compare_grads(list(net.parameters()), expected, GRAD_TOLERANCE[dtype], where_)
        optimizer.step()
        optimizer.zero_grad()
        wide = data.to(torch.float64)
        history.append((program, wide))
        reference.step(lambda program=program, wide=wide: program(twin, wide))
    got = torch.cat([p.detach().double().flatten() for p in net.parameters()])
    want = torch.cat([p.detach().flatten() for p in parameters])
    error, moved = float((got - want).norm()), float((want - start).norm())
    floor = 10 * torch.finfo(dtype).eps * float(want.norm())
    if error > TOLERANCE[dtype] * moved + floor:
        floor += 3 * _rounding(same, history, want, dtype, RATES[base], beta, settings)
    assert error <= TOLERANCE[dtype] * moved + floor, f"seed {seed} {dtype}: error {error} of {moved}\n{where_}"
    return drawn[0]


def _rounding(net, history, want, dtype, lr, beta, settings):
    """The error of the reference itself if autograd's numbers are in ``dtype``: a normalization of nearly equal numbers
    amplifies rounding errors."""
    for module in net.modules():
        if isinstance(getattr(module, "forward", None), _Replaced):
            module.forward = _Replaced(module)
    reference = Reference(net.parameters(), lr, beta, **settings)
    for step, (program, data) in enumerate(history):
        narrow = data.to(dtype)
        set_knobs(net, data, step)
        reference.step(lambda program=program, narrow=narrow: program(net, narrow))
    return float((torch.cat([p.detach().double().flatten() for p in net.parameters()]) - want).norm())


def _compare_grads(parameters, expected, tolerance, where_):
    size = max([1e-30, *(float(e.norm()) for e in expected if e is not None)])
    for p, want in zip(parameters, expected, strict=True):
        assert (p.grad is None) == (want is None), f"a .grad is None where autograd's is not, or vice versa\n{where_}"
        if want is not None:
            error = float((p.grad - want).norm())
            assert error <= tolerance * size, f".grad is off by {error} of {size}\n{where_}"


def quiet_case(seed: int, dtype: torch.dtype) -> str:
    """:func:`run_case` without the warnings about slow gradients and constant targets, which are expected here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", unstale.SlowGradientsWarning)
        warnings.simplefilter("ignore", unstale.ConstantTargetWarning)
        return run_case(seed, dtype)
