"""Reservoir and thinned dense correction: unbiased for any plan, and exact where nothing is left out."""

from __future__ import annotations

import copy
import functools
import io
import itertools
import warnings

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from problems import ConvNet, Stream, image, mlp, parameters_of, twins
from torch import nn

import unstale
from unstale._random import uniform
from unstale.corrections import Blocks, Reservoir, ReservoirPlan, dense, plan_reservoir
from unstale.corrections.reservoir import stratified
from unstale.momentum import MEMORY_SHARE
from unstale.per_sample.gradients import Linearization, merged

MAX_Z = 4.5  # in standard errors; random numbers depend on the seed alone, so that a test that passes always passes


# ----------------------------------------------------------------------------------------------- the correction alone


def random_steps(sizes, steps, n=3, seed=0, calls=1):
    """For each step, the batches of its calls of ``backward``, and the displacement before it."""
    g = torch.Generator().manual_seed(seed)
    found = []
    for m, _ in zip(itertools.cycle(sizes), range(steps), strict=False):
        batches = []
        for _ in range(calls):
            v, u = torch.randn(2, m, n, generator=g)
            curvature = (0.5 + torch.rand(m, generator=g)) / (m * calls)
            batches.append(Linearization.of_matrices(v, u, torch.randn(m, generator=g), curvature))
        found.append((batches, torch.randn(n, generator=g)))
    return found


def one_hot_steps(m, steps):
    """Every sample moves an entry of its own, by its weight: ``v_k = e_k``, ``u_k · d = -1`` at the last step only."""
    n = m * steps + 1
    found = []
    for step in range(steps):
        v, u = torch.zeros(m, n), torch.zeros(m, n)
        v[torch.arange(m), step * m + torch.arange(m)] = 1.0
        u[:, -1] = -1.0
        displacement = torch.zeros(n)
        displacement[-1] = float(step == steps - 1)
        batch = Linearization.of_matrices(v, u, torch.zeros(m), torch.full((m,), 1 / m))
        found.append(([batch], displacement))
    return found


def chosen_samples(correction, memory, batches):
    """What of these batches enters, as the optimizers do it."""
    found = []
    for call, batch in enumerate(batches):
        selection = correction.choose(memory, batch.samples, call)
        if selection is not None:
            rows = torch.arange(batch.samples) if selection.rows is None else selection.rows
            found.append(batch.select(rows).scaled(selection.inverse_probability))
    return merged(found) if found else None


def etas(correction, steps, betas):
    """``η`` of every step, ``[steps, n]``."""
    memory, found = {}, []
    for (batches, displacement), beta in zip(steps, betas, strict=True):
        batch = chosen_samples(correction, memory, batches)
        found.append(correction.update(memory, batch, displacement, beta).clone())
    return torch.stack(found)


def double_sum(steps, betas):
    """``η_t = -Σ_i w_i Z_iᵀ (θ_t - θ_i)``, in which batch i has decayed by the β of every step since."""
    point, found = torch.zeros_like(steps[0][1]), []
    past: list = []
    for (batches, displacement), beta in zip(steps, betas, strict=True):
        point = point + displacement
        past = [(weight * beta, taylor, then) for weight, taylor, then in past]
        for batch in batches:
            v, u = batch.matrices()
            past.append((1 - beta, torch.einsum("k,ki,kj->ij", batch.curvature, u, v), point))
        found.append(-sum(weight * taylor.T @ (point - then) for weight, taylor, then in past))
    return torch.stack(found)


def assert_unbiased(estimates, expected, max_z=MAX_Z):
    """The mean over seeds is the expected value, within its standard error.

    Args:
        estimates: one per seed, ``[seeds, ...]``.
        expected: ``[...]``.
    """
    mean, error = estimates.mean(0), estimates.std(0) / len(estimates) ** 0.5
    certain = error <= 1e-12 * expected.abs().max()
    torch.testing.assert_close(mean[certain], expected[certain], rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
    z = ((mean - expected) / error)[~certain]
    assert len(z) and float(z.abs().max()) < max_z, f"off by {float(z.abs().max()):.1f} standard errors"


STEPS, SEEDS = 14, 120
CONSTANT = [0.8] * STEPS
CHANGING = [0.5 + 0.45 * (step % 5) / 4 for step in range(STEPS)]
GROWING = [1 - 1 / (2 + step) for step in range(STEPS)]

UNBIASED = {
    "all samples of every batch": (ReservoirPlan(3, 1, 2, 3), [3], CONSTANT, 1),
    "some samples of every batch": (ReservoirPlan(2, 1, 3, 2), [5], CONSTANT, 1),
    "some samples of every third batch": (ReservoirPlan(2, 3, 1, 3), [4], CONSTANT, 1),
    "single samples": (ReservoirPlan(1, 2, 1, 4), [1], CONSTANT, 1),
    "one sample of many": (ReservoirPlan(1, 1, 4, 2), [6], CONSTANT, 1),
    "changing β": (ReservoirPlan(2, 1, 2, 4), [3], CHANGING, 1),
    "growing β, every second batch": (ReservoirPlan(2, 2, 2, 3), [3], GROWING, 1),
    "changing sizes": (ReservoirPlan(3, 1, 2, 3), [1, 5, 3], CONSTANT, 1),
    "two batches per step": (ReservoirPlan(2, 1, 2, 3), [3], CONSTANT, 2),
    "three small batches per step": (ReservoirPlan(4, 2, 2, 2), [2, 3], CHANGING, 3),
}


@pytest.mark.parametrize("case", UNBIASED)
def test_reservoir_is_unbiased(case):
    plan, sizes, betas, calls = UNBIASED[case]
    steps = random_steps(sizes, STEPS, calls=calls)
    estimates = torch.stack([etas(Reservoir(plan, seed), steps, betas) for seed in range(SEEDS)])
    assert_unbiased(estimates, double_sum(steps, betas))


@pytest.mark.parametrize("every", [2, 3, 5])
@pytest.mark.parametrize("merge_every", [1, 4])
@pytest.mark.parametrize("betas", [CONSTANT, CHANGING], ids=["constant β", "changing β"])
def test_mean_over_all_phases_of_thinned_dense_is_dense(every, merge_every, betas):
    """Every batch enters in one of ``every`` phases, so that the mean over them is exact."""
    steps = random_steps([2, 4], STEPS)
    phases = [etas(Blocks([3], merge_every, every, seed), steps, betas) for seed in range(every)]
    assert not torch.allclose(phases[0], phases[1])
    torch.testing.assert_close(torch.stack(phases).mean(0), double_sum(steps, betas), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("plan", "m", "beta"),
    [
        (ReservoirPlan(3, 1, 1, 5), 3, 0.8),  # slots for m / (1-β) samples, of which all enter
        (ReservoirPlan(3, 1, 2, 3), 3, 0.8),
        (ReservoirPlan(2, 1, 2, 4), 3, 0.9),
        (ReservoirPlan(1, 2, 1, 3), 2, 0.9),
    ],
    ids=str,
)
def test_expected_weight_at_every_age(plan, m, beta):
    """Every sample is expected with its weight in the full correction, ``(1-β) βᵃ / m`` at age ``a``."""
    steps, ages = one_hot_steps(m, STEPS), torch.arange(STEPS).flip(0)
    expected = (1 - beta) * beta**ages / m
    expected[-1] = 0.0  # the last batch has not shifted yet
    weights = torch.stack([etas(Reservoir(plan, seed), steps, [beta] * STEPS)[-1, :-1] for seed in range(SEEDS)])
    weights = weights.unflatten(-1, (STEPS, m))
    assert float(weights.min()) >= 0
    # A sample that is hardly ever there says nothing about its mean.
    exchanges = (ages / plan.every - plan.newest).clamp(min=0)
    often = (1 - 1 / plan.pool) ** exchanges * plan.samples / m / plan.every > 0.04
    assert int(often.sum()) >= STEPS // 2
    assert_unbiased(weights[:, often], expected[often, None].expand(-1, m))
    assert_unbiased(weights[:, often].sum(-1), expected[often] * m)
    if plan.samples == m and plan.every == 1:  # nothing is left to chance before the pool
        newest = slice(STEPS - plan.newest - 1, None)
        torch.testing.assert_close(weights[:, newest], expected[newest, None].expand(SEEDS, -1, m))


def test_a_pool_of_the_memorys_length_keeps_all_weights_the_same():
    """A sample survives with a probability of β, by which its weight decays: the factors cancel."""
    plan, beta = ReservoirPlan(2, 1, 1, 5), 0.8
    correction, memory = Reservoir(plan), {}
    for batches, displacement in one_hot_steps(2, 60):
        correction.update(memory, chosen_samples(correction, memory, batches), displacement, beta)
    weights = memory["weight"][memory["pool"]]
    torch.testing.assert_close(weights, torch.full((5, 2), (1 - beta) * beta / 2))


@pytest.mark.parametrize(
    "plan", [ReservoirPlan(4, 1, STEPS, 2), ReservoirPlan(4, 1, 3, STEPS - 3), ReservoirPlan(9, 1, STEPS, 5)], ids=str
)
@pytest.mark.parametrize("sizes", [[4], [1, 4, 2]], ids=str)
@pytest.mark.parametrize("betas", [CONSTANT, CHANGING, [0.0] * STEPS], ids=["constant β", "changing β", "β = 0"])
def test_reservoir_with_room_for_everything_is_dense(plan, sizes, betas):
    steps = random_steps(sizes, STEPS)
    found = etas(Reservoir(plan, seed=5), steps, betas)
    torch.testing.assert_close(found, etas(dense(3), steps, betas), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found, double_sum(steps, betas), rtol=1e-10, atol=1e-10)


def test_reservoir_with_room_for_all_batches_of_a_step_is_dense():
    steps = random_steps([2], STEPS, calls=3)
    found = etas(Reservoir(ReservoirPlan(6, 1, STEPS, 2)), steps, CONSTANT)
    torch.testing.assert_close(found, double_sum(steps, CONSTANT), rtol=1e-10, atol=1e-10)


def test_batches_of_one_step_have_choices_of_their_own():
    correction = Reservoir(ReservoirPlan(3, 1, 2, 2))
    rows = [[correction.choose({"generation": torch.tensor(g)}, 12, call).rows for g in range(8)] for call in range(3)]
    rows = torch.stack([torch.cat(each) for each in rows])
    assert float((rows[0] == rows[1]).double().mean()) < 0.6
    assert float((rows[0] == rows[2]).double().mean()) < 0.6


def test_nothing_has_entered_yet():
    """The first batch is not chosen: no correction, and nothing to remember."""
    correction, memory = Reservoir(ReservoirPlan(2, 5, 2, 2), seed=1), {}
    for (batches, displacement), entering in zip(random_steps([3], 5), [0, 0, 0, 0, 1], strict=True):
        batch = chosen_samples(correction, memory, batches)
        assert (batch is not None) == entering
        assert not correction.update(memory, batch, displacement, 0.9).any()
    assert int(memory["generation"]) == 1


def test_a_small_batch_leaves_slots_empty():
    """Slots of a generation that has fewer samples do not keep what was in them."""
    correction, memory = Reservoir(ReservoirPlan(4, 1, 1, 2)), {}
    for batches, displacement in random_steps([4], 8):
        correction.update(memory, chosen_samples(correction, memory, batches), displacement, 0.9)
    for batches, displacement in random_steps([1], 1):
        correction.update(memory, chosen_samples(correction, memory, batches), displacement, 0.9)
    (newest,) = memory["newest"]
    assert int((memory["weight"][newest] != 0).sum()) == 1
    assert not memory["shift"][newest].any()


def test_batches_of_runs():
    """Leading dimensions are runs with the same choices, each with its own β."""
    plan, betas = ReservoirPlan(2, 2, 2, 3), torch.tensor([0.5, 0.9])
    runs = [random_steps([4], STEPS, seed=seed) for seed in (0, 1)]
    correction, memory, found = Reservoir(plan, seed=3), {}, []
    for both in zip(*runs, strict=True):
        parts = [batches[0] for batches, _ in both]
        tensors = [torch.stack(pair) for pair in zip(*(part.matrices() for part in parts), strict=True)]
        slope, curvature = (torch.stack([getattr(part, name) for part in parts]) for name in ("slope", "curvature"))
        batch = chosen_samples(correction, memory, [Linearization.of_matrices(*tensors, slope, curvature)])
        found.append(correction.update(memory, batch, torch.stack([d for _, d in both]), betas))
    for number, (run, beta) in enumerate(zip(runs, betas.tolist(), strict=True)):
        alone = etas(Reservoir(plan, seed=3), run, [beta] * STEPS)
        torch.testing.assert_close(torch.stack(found)[:, number], alone, rtol=1e-10, atol=1e-12)


# ------------------------------------------------------------------------------------------------ plans and positions

plans = st.builds(ReservoirPlan, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(2, 5))


@given(
    plan=plans,
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    count=st.integers(1, 40),
    seed=st.integers(0, 9),
)
def test_slots_are_a_permutation(plan, sizes, count, seed):
    """Every slot belongs to one generation, newest or in the pool, after any number of steps."""
    correction, memory = Reservoir(plan, seed), {}
    entered = 0
    for batches, displacement in random_steps(sizes, count):
        batch = chosen_samples(correction, memory, batches)
        correction.update(memory, batch, displacement, 0.9)
        entered += batch is not None
        if entered:
            positions = torch.cat([memory["newest"].flatten(), memory["pool"].flatten()])
            assert positions.sort().values.tolist() == list(range(plan.slots))
            assert memory["newest"].shape == (plan.newest, plan.samples)
            assert memory["pool"].shape == (plan.pool, plan.samples)
            assert memory["weight"].shape == memory["shift"].shape == (plan.slots,)
            assert bool((memory["weight"] >= 0).all())
    assert memory["step"] == count
    assert int(memory.get("generation", 0)) == entered


@given(plan=plans, count=st.integers(1, 40))
def test_newest_generations_are_all_kept(plan, count):
    """The last ``newest`` generations, in turn, with the weights that they entered with; unshifted when they come."""
    plan = plan._replace(every=1)
    correction, memory = Reservoir(plan), {}
    for batches, displacement in random_steps([plan.samples], count):
        correction.update(memory, batches[0], displacement, 1.0)  # nothing decays, nothing has weight
        memory["weight"][memory["newest"][(int(memory["generation"]) - 1) % plan.newest]] = float(memory["step"])
    kept = min(count, plan.newest)
    found = memory["weight"][memory["newest"]].sort(0).values[-kept:]
    expected = torch.arange(count - kept + 1.0, count + 1.0).unsqueeze(1).expand(-1, plan.samples)
    torch.testing.assert_close(found, expected)


@given(
    slots=st.integers(1, 5000),
    batch=st.sampled_from([1, 2, 3, 7, 16, 64, 1000]),
    beta=st.sampled_from([0.0, 0.5, 0.9, 0.95, 0.99, 0.997, 0.999, 0.9999]),
)
@example(slots=100, batch=1, beta=0.9999)  # samples cannot enter as rarely as the pool would need
def test_plans_have_at_most_the_given_slots(slots, batch, beta):
    plan = plan_reservoir(slots, batch, beta)
    assert plan.slots <= max(3, slots)
    assert 1 <= plan.samples <= batch
    assert plan.newest >= 1 and plan.pool >= 2
    assert 100 % plan.every == 0  # steps are recorded in groups of divisors of 100


@pytest.mark.parametrize(("batch", "beta"), [(4, 0.9), (16, 0.99), (1, 0.999), (32, 0.997)])
def test_plans_use_the_slots_that_help(batch, beta):
    """More slots take more of the batches; beyond what still counts they are not used."""
    slots = [16, 64, 256, 1024, 4096]
    found = [plan_reservoir(k, batch, beta) for k in slots]
    rates = [plan.samples / plan.every for plan in found]
    assert rates == sorted(rates)
    assert all(plan.slots > 0.75 * k for plan, k in zip(found, slots, strict=True) if rates[slots.index(k)] < batch)
    for plan in found:  # the pool spans the momentum's memory
        assert plan.pool == 2 or plan.pool * plan.every >= 0.99 / (1 - beta)
    plenty = plan_reservoir(10**7, batch, beta)
    assert (plenty.samples, plenty.every) == (batch, 1)
    assert plenty.slots <= batch * 8 / (1 - beta) + batch


SEED_LIST, STREAM_LIST = (0, 1, 2, 12345), (-1, 0, 1, 2)


@functools.cache
def random_numbers():
    """Numbers by seed, stream, counter and position, ``[4, 4, 2000, 8]``."""
    counter = torch.arange(2000).unsqueeze(-1)
    return torch.stack(
        [torch.stack([uniform(seed, counter, 8, stream) for stream in STREAM_LIST]) for seed in SEED_LIST]
    )


def test_uniform_numbers_are_in_the_unit_interval_and_do_not_repeat():
    draws = random_numbers()
    assert draws.dtype == torch.float64
    assert bool(((draws >= 0) & (draws < 1)).all())
    assert draws.unique().numel() == draws.numel()  # no seed and no stream repeats another
    again = uniform(1, torch.tensor(17), 8, stream=2)
    assert torch.equal(again, draws[1, 3, 17])  # they depend on the arguments only


def test_uniform_numbers_have_the_mean_and_variance_of_uniform_ones():
    each = random_numbers().flatten(2).flatten(0, 1)
    count = each.shape[1]
    assert float((each.mean(1) - 1 / 2).abs().max()) < 4 * (1 / 12 / count) ** 0.5
    assert float((each.var(1) - 1 / 12).abs().max()) < 4 * (1 / 180 / count) ** 0.5


# Pairs of random numbers that must be independent: neighbours along one dimension of ``random_numbers``.
NEIGHBOURS = {"seeds": (0, 1), "streams": (1, 1), "counters": (2, 1), "counters, lag 7": (2, 7), "positions": (3, 1)}


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_neighbouring_uniform_numbers_are_not_correlated(neighbours):
    dim, lag = NEIGHBOURS[neighbours]
    draws = random_numbers()
    one, other = draws.narrow(dim, 0, draws.shape[dim] - lag), draws.narrow(dim, lag, draws.shape[dim] - lag)
    pairs = torch.stack([one.flatten(), other.flatten()])
    error = pairs.shape[1] ** -0.5
    assert abs(float(torch.corrcoef(pairs)[0, 1])) < 4 * error
    assert abs(float(torch.corrcoef((pairs - 0.5).abs())[0, 1])) < 4 * error


def chi_square_z(cells, bins):
    """Pearson's statistic of counts that are expected to be equal, in standard deviations from its mean."""
    counts = torch.bincount(cells.flatten(), minlength=bins).double()
    expected = counts.sum() / bins
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - (bins - 1)) / (2 * (bins - 1)) ** 0.5


@pytest.mark.parametrize("bins", [2, 7, 64, 1000])
def test_uniform_numbers_fill_bins_evenly(bins):
    cells = (random_numbers() * bins).long()
    assert abs(chi_square_z(cells, bins)) < 4
    assert all(abs(chi_square_z(each, bins)) < 5 for stream in cells for each in stream)
    assert all(abs(chi_square_z(cells[..., position], bins)) < 5 for position in range(cells.shape[-1]))


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_pairs_of_uniform_numbers_fill_bins_evenly(neighbours):
    dim, lag = NEIGHBOURS[neighbours]
    cells = (random_numbers() * 16).long()
    one, other = cells.narrow(dim, 0, cells.shape[dim] - lag), cells.narrow(dim, lag, cells.shape[dim] - lag)
    assert abs(chi_square_z(16 * one + other, 256)) < 4


def test_lowest_bits_of_uniform_numbers_are_random_too():
    bits = (random_numbers() * 2**53).long().unsqueeze(-1) >> torch.arange(53) & 1
    share = bits.double().flatten(0, -2).mean(0)
    assert float((share - 0.5).abs().max()) < 4.5 * 0.5 / (bits.numel() / 53) ** 0.5


def hashed(seed, counter, count, stream):
    """The same numbers from Python's integers: 64 bits that wrap around, with arithmetic shifts."""
    modulus, first, second = 1 << 64, -0x4B47D0C5A1A8F1A5, -0x2917014799A6026D

    def signed(x):
        return (x + modulus // 2) % modulus - modulus // 2

    start = (seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03) % modulus
    for _ in range(3):
        start = (start ^ start // 2**31) * first % modulus
    found = []
    for k in range(count):
        x = signed(start // 4 + counter * count + k)
        x = signed((x ^ x // 2**32) * first)
        x = signed((x ^ x // 2**29) * second)
        found.append((x ^ x // 2**32) % 2**53 / 2**53)
    return found


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 1, 2**70])
@pytest.mark.parametrize("stream", [-1, 0, 3])
@pytest.mark.parametrize("counter", [0, 3, 10**6, 2**60])
def test_uniform_numbers_are_those_of_the_definition(seed, stream, counter):
    """A saved run continues with the same choices on any machine and in any version."""
    assert uniform(seed, torch.tensor(counter), 4, stream).tolist() == hashed(seed, counter, 4, stream)


def test_uniform_numbers_stay_the_same_in_later_versions():
    expected = [0.7318724700907903, 0.6951241854480374, 0.264666570307704]
    assert uniform(1, torch.tensor(2), 3, stream=1).tolist() == expected


@pytest.mark.parametrize(("population", "samples"), [(5, 2), (7, 3), (4, 4), (16, 5), (3, 1)])
def test_stratified_takes_every_index_equally_often(population, samples):
    grid = (torch.arange(10_000) + 0.5) / 10_000
    rows = torch.stack([stratified(population, u.expand(samples)) for u in grid[:: 10 if samples > 1 else 1]])
    counts = torch.bincount(rows.flatten(), minlength=population) / len(rows)
    torch.testing.assert_close(counts, torch.full((population,), samples / population), rtol=0, atol=5e-3)
    assert bool((rows.diff(dim=1) >= 0).all())  # one in each part
    extremes = stratified(population, torch.full((samples,), 1 - 2**-53))
    assert int(extremes.max()) == population - 1


# ----------------------------------------------------------------------------------------------- through the optimizers

OPTIMIZERS = {
    "sgd": lambda p, beta=0.8, **o: unstale.CorrectedSGD(p, **{"lr": 0.1, "beta": beta, **o}),
    "adam": lambda p, beta=0.8, **o: unstale.CorrectedAdam(p, **{"lr": 0.1, "betas": (beta, 0.99), "eps": 1e-3, **o}),
    "rmsprop": lambda p, beta=0.8, **o: unstale.CorrectedRMSprop(p, **{"lr": 0.1, "beta": beta, "eps": 1e-2, **o}),
    "tdprop": lambda p, beta=0.8, **o: unstale.CorrectedTDprop(
        p, **{"lr": 0.1, "betas": (beta, 0.99), "eps": 1e-2, **o}
    ),
}
every_base = pytest.mark.parametrize("base", OPTIMIZERS)
# Fewer slots than samples of one memory: samples are left out, batches too, and samples are evicted.
SPARSE = dict(correction="reservoir", slots=4)
FULL = dict(correction="reservoir", slots=4000)


@pytest.fixture
def few_slots():
    """Tests of reservoirs that are too small on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", unstale.FewSlotsWarning)
        yield


def train(model, optimizer, stream, steps=1):
    for _ in range(steps):
        optimizer.backward(*stream.batch(model)())
        optimizer.step()
        optimizer.zero_grad()
    return parameters_of(model)


def plan_of(optimizer, group=0):
    return ReservoirPlan(*optimizer.state_of(f"group {group}")["plan"]["reservoir"])


def assert_near(one, other, tolerance=1e-10):
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


class Embedded(nn.Module):
    """Two tokens per sample, a padding row, and a bare scale for which there is no layer rule."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(7, 4, padding_idx=0)
        self.head = nn.Linear(8, 1)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.head(torch.tanh(self.tokens(x).flatten(1)) * self.scale)


class Frozen(nn.Module):
    """A layer between others that is not trained."""

    def __init__(self):
        super().__init__()
        self.body = mlp(6)
        self.body[2].requires_grad_(False)

    def forward(self, x):
        return self.body(x)


def tokens(m, generator):
    return torch.randint(7, (m, 2), generator=generator)


NETWORKS = {
    "mlp": (mlp, {}),
    "convolutions": (ConvNet, dict(draw=image)),
    "embeddings": (Embedded, dict(draw=tokens)),
    "frozen layer": (Frozen, {}),
    "single samples": (mlp, dict(m=1)),
}


@pytest.mark.parametrize("trust", [None, 1.0])
@pytest.mark.parametrize("network", NETWORKS)
@every_base
def test_equals_dense_while_nothing_is_left_out(base, network, trust, path):
    make, options = NETWORKS[network]
    model, twin = twins(make)
    optimizer = OPTIMIZERS[base](model, trust=trust, weight_decay=0.1, **FULL)
    full = OPTIMIZERS[base](twin, trust=trust, weight_decay=0.1, correction="dense")
    one, two = Stream(**options), Stream(**options)
    for step in range(12):
        for each in (optimizer, full):  # a schedule of β
            settings, beta = each.param_groups[0], 0.5 + 0.4 * (step % 3) / 2
            settings.update({"beta": beta} if "beta" in settings else {"betas": (beta, 0.99)})
        assert_near(train(model, optimizer, one), train(twin, full, two), 1e-9)
    plan = plan_of(optimizer)
    assert (plan.samples, plan.every) == (one.m, 1) and plan.newest + plan.pool >= 12


@pytest.mark.parametrize("sizes", [[4, 2, 1, 4], [3, 1, 3]], ids=str)
@every_base
def test_smaller_batches_than_the_first_are_exact(base, sizes):
    model, twin = twins(mlp)
    optimizer, full = OPTIMIZERS[base](model, **FULL), OPTIMIZERS[base](twin, correction="dense")
    one, two = Stream(), Stream()
    for m in sizes * 3:
        one.m = two.m = m
        assert_near(train(model, optimizer, one), train(twin, full, two), 1e-9)


@every_base
def test_groups_with_options_of_their_own(base):
    model, twin = twins(mlp)
    full, other = FULL, dict(correction="dense")
    own = (dict(lr=0.05, trust=None), dict(weight_decay=0.2, trust=0.3))
    optimizer = OPTIMIZERS[base](
        [dict(params=model[:2], **own[0], **full), dict(params=model[2:], **own[1], **other)], correction="none"
    )
    plain = OPTIMIZERS[base](
        [dict(params=twin[:2], **own[0], **other), dict(params=twin[2:], **own[1], **full)], correction="none"
    )
    one, two = Stream(), Stream()
    for _ in range(10):
        assert_near(train(model, optimizer, one), train(twin, plain, two), 1e-9)


@every_base
def test_groups_choose_for_themselves(base, few_slots):
    """A group among others has the samples that it has alone: the front's plan does not change the back's."""
    paths = []
    for front in (dict(correction="reservoir", slots=3, seed=4), dict(correction="dense"), dict(correction="none")):
        model, _ = twins(mlp)
        model[:2].requires_grad_(False)
        optimizer = OPTIMIZERS[base]([dict(params=model[:2], **front), dict(params=model[2:], seed=1, **SPARSE)])
        paths.append(train(model, optimizer, Stream(), 30))
        assert plan_of(optimizer, 1).every > 1
    assert_near(paths[0], paths[1], 1e-12)
    assert_near(paths[0], paths[2], 1e-12)


@every_base
def test_same_seed_same_run(base, few_slots):
    paths = {}
    for seed in (0, 0, 1, 2):
        model, _ = twins(mlp)
        optimizer = OPTIMIZERS[base](model, seed=seed, **SPARSE)
        path = train(model, optimizer, Stream(), 25)
        assert torch.equal(paths.setdefault(seed, path), path)
    plan = plan_of(optimizer)
    assert plan.samples < 4 and plan.every > 1 and (plan.newest + plan.pool) * plan.every < 25
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(paths.values(), 2))


def through_a_file(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("steps", [1, 2, 30])
@pytest.mark.parametrize("way", ["state_dict", "deepcopy"])
@pytest.mark.parametrize("beta", [0.8, None], ids=["given β", "growing β"])
@every_base
def test_resumed_training_continues_bit_for_bit(base, beta, way, steps, few_slots):
    """The plan, the phase and the random choices are part of the state, also while samples are being evicted."""
    model, _ = twins(mlp)
    optimizer, stream = OPTIMIZERS[base](model, beta, seed=3, **SPARSE), Stream()
    train(model, optimizer, stream, steps)
    if way == "deepcopy":
        again, resumed = copy.deepcopy((model, optimizer))
    else:
        saved = through_a_file([model.state_dict(), optimizer.state_dict()])
        again = mlp()
        again.load_state_dict(saved[0])
        resumed = OPTIMIZERS[base](again, 0.3, correction="dense")
        resumed.load_state_dict(saved[1])
    assert resumed.momentum_beta == optimizer.momentum_beta
    other = Stream()
    other.generator.set_state(stream.generator.get_state())
    for _ in range(25):
        assert torch.equal(train(model, optimizer, stream), train(again, resumed, other))
    assert plan_of(optimizer) == plan_of(resumed)


@pytest.mark.parametrize(("slots", "beta"), [(4000, 0.8), (100, None)])
def test_a_loaded_plan_is_that_of_the_first_batch(slots, beta):
    """A larger batch after loading would have another plan."""
    model, _ = twins(mlp)
    optimizer, stream = OPTIMIZERS["adam"](model, beta, correction="reservoir", slots=slots), Stream()
    train(model, optimizer, stream, 3)
    again = copy.deepcopy(model)
    resumed = OPTIMIZERS["adam"](again, beta, correction="reservoir", slots=slots)
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    other = Stream()
    other.generator.set_state(stream.generator.get_state())
    other.m = stream.m = 7
    for each in (optimizer, resumed):
        each.state_of("group 0")["step"].fill_(1e6)  # β has grown as far as the plan allows
    for _ in range(10):
        assert torch.equal(train(model, optimizer, stream), train(again, resumed, other))
    fresh = OPTIMIZERS["adam"](mlp(), beta, correction="reservoir", slots=slots)
    fresh.ready_groups()[0].make_ready({}, 7)
    assert fresh._groups[0].plan != optimizer.state_of("group 0")["plan"]


def test_momentum_beta_is_known_after_loading():
    """β of the next step, before a batch has come."""
    model, twin = twins(mlp)
    optimizer = unstale.CorrectedSGD(model, lr=0.01)
    train(model, optimizer, Stream(), 3)
    optimizer.state_of("group 0")["step"].fill_(4000.0)
    resumed = unstale.CorrectedSGD(twin, lr=0.01)
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    assert resumed.momentum_beta == optimizer.momentum_beta == pytest.approx(1 - 1 / (MEMORY_SHARE * 4001))


def assert_same_memory(one, other):
    """Equal to rounding: the same samples in the same slots, with the same weights."""
    for number, _ in enumerate(one.param_groups):
        ours, theirs = (each.state_of(f"group {number}")["memory"] for each in (one, other))
        assert ours.keys() == theirs.keys()
        for name in ("weight", "shift", "newest", "pool"):
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("way", ["clip_grad_norm_", "torch", "scale_grad_", "hooks"])
@every_base
def test_scaled_gradients_have_scaled_samples(base, way, few_slots):
    """A scaled gradient is that of a weighted loss, whether its batch enters or not."""
    model, twin = twins(mlp)
    optimizer, plain = (OPTIMIZERS[base](m, trust=None, seed=1, **SPARSE) for m in (model, twin))
    if way == "hooks":
        for p in model.parameters():
            p.register_hook(lambda gradient: 0.5 * gradient)
    one, two = Stream(), Stream()
    for step in range(25):
        optimizer.backward(*one.batch(model)())
        bound = 0.2 + 0.3 * (step % 3)
        if way == "scale_grad_":
            factor = 0.5 + step % 2
            optimizer.scale_grad_(factor)
        elif way == "hooks":
            factor = 0.5
        else:
            clip = optimizer.clip_grad_norm_ if way == "clip_grad_norm_" else None
            norm = clip(bound) if clip else nn.utils.clip_grad_norm_(model.parameters(), bound)
            factor = min(1.0, float(bound / (norm + 1e-6)))
        plain.backward(*two.batch(twin)(), weight=factor)
        for each in (optimizer, plain):
            each.step()
            each.zero_grad()
        assert_near(parameters_of(model), parameters_of(twin), 1e-8)
    assert_same_memory(optimizer, plain)


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("base", ["sgd", "tdprop"])
def test_layers_without_a_rule_have_the_same_samples(base, calls, path, few_slots, monkeypatch):
    """Per-sample gradients do not depend on how they are computed, and neither do choices."""
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS[base](model, seed=2, **SPARSE)
    stream = Stream()
    for _ in range(15):
        for _ in range(calls):
            optimizer.backward(*stream.batch(model)(), weight=1 / calls)
        optimizer.step()
        optimizer.zero_grad()
    monkeypatch.undo()
    again, _ = twins(mlp)
    other = OPTIMIZERS[base](again, seed=2, **SPARSE)
    stream = Stream()
    for _ in range(15):
        for _ in range(calls):
            other.backward(*stream.batch(again)(), weight=1 / calls)
        other.step()
        other.zero_grad()
    assert_near(parameters_of(model), parameters_of(again), 1e-9)


class Recorded(unstale.CorrectedSGD):
    """Keeps the corrected momentum of every step."""

    def _direction(self, state, settings, momentum, gradient, batch):
        self.__dict__.setdefault("seen", []).append(momentum.clone())
        return momentum


def recorded(usage, **options):
    """Corrected momenta of the first group along a path that does not depend on them, ``[steps, n]``."""
    model, _ = twins(lambda: mlp(2, inputs=2))
    optimizer, stream = Recorded(model, lr=0.0, beta=0.8, trust=None, **options), Stream()
    stream.draw = lambda m, generator: torch.randn(m, 2, generator=generator)
    g = torch.Generator().manual_seed(5)
    for step in range(10):
        stream.m = 3 + step % 2 if usage == "everything" else 3
        for _ in range(1 + step % 3 if usage == "everything" else 1):
            optimizer.backward(*stream.batch(model)())
        if usage == "everything":
            optimizer.clip_grad_norm_(0.5)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.3 * torch.randn(p.shape, generator=g))
    return torch.stack(optimizer.seen)


@pytest.mark.parametrize("usage", ["plain", "everything"])
def test_optimizers_are_unbiased(usage, few_slots):
    """Batches of changing size, several per step, clipped: the mean over seeds is the full correction."""
    estimates = torch.stack([recorded(usage, seed=seed, correction="reservoir", slots=5) for seed in range(40)])
    assert_unbiased(estimates, recorded(usage, correction="dense"))


def test_a_step_into_which_nothing_enters(few_slots):
    """Per-sample gradients are computed for batches that are chosen, and for no others."""
    model, _ = twins(mlp)
    optimizer, stream = OPTIMIZERS["sgd"](model, seed=1, **SPARSE), Stream()
    generations = []
    for _ in range(12):
        train(model, optimizer, stream)
        generations.append(int(optimizer.state_of("group 0")["memory"].get("generation", 0)))
    every = plan_of(optimizer).every
    chosen = [step % every == (step // every - 1) % every for step in range(12)]
    assert every > 1 and 0 < sum(chosen) < 12
    assert generations == [sum(chosen[: step + 1]) for step in range(12)]


@pytest.mark.parametrize("clear", ["to none", "to zeros", "in place"])
@pytest.mark.parametrize("base", ["sgd", "tdprop"])
def test_cleared_batches_are_forgotten_whether_they_were_chosen_or_not(base, clear, few_slots):
    """Also if they were of another size and were cleared by other code than the optimizer."""
    model, twin = twins(mlp)
    optimizer, plain = (OPTIMIZERS[base](m, seed=1, **SPARSE) for m in (model, twin))
    one, two = Stream(), Stream()
    for _ in range(12):
        optimizer.backward(*Stream(m=2, seed=9).batch(model)())
        if clear == "in place":
            for p in model.parameters():
                p.grad.zero_()
        else:
            model.zero_grad(set_to_none=clear == "to none")
        if plan_unknown := "plan" not in optimizer.state_of("group 0"):
            plain.backward(*Stream(m=2, seed=9).batch(twin)())
            plain.zero_grad()
        assert_near(train(model, optimizer, one), train(twin, plain, two), 1e-12)
        assert plan_unknown or plan_of(optimizer) == plan_of(plain)


@pytest.mark.parametrize("other", [SPARSE | dict(seed=1), dict(correction="none")], ids=["reservoir", "none"])
def test_batches_cleared_in_place_are_forgotten_by_all_groups(other):
    """Also where a group has chosen nothing of them."""
    model, twin = twins(mlp)
    optimizer, plain = (
        OPTIMIZERS["sgd"]([dict(params=m[:2], **other), dict(params=m[2:], correction="dense")]) for m in (model, twin)
    )
    one, two = Stream(), Stream()
    for _ in range(6):
        optimizer.backward(*Stream(seed=9).batch(model)())
        for p in model.parameters():
            p.grad.zero_()
        assert_near(train(model, optimizer, one), train(twin, plain, two), 1e-12)


@pytest.mark.parametrize("what", ["loss", "gradient"])
@every_base
def test_a_skipped_step_has_never_been(base, what, few_slots):
    model, twin = twins(mlp)
    optimizer, plain = (OPTIMIZERS[base](m, seed=1, on_nonfinite="skip", **SPARSE) for m in (model, twin))
    one, two = Stream(), Stream()
    for step in range(20):
        if step % 3 == 1:
            value, target = Stream(seed=8).batch(model)()
            optimizer.backward(value * torch.nan if what == "loss" else value, target)
            if what == "gradient":
                next(model.parameters()).grad.view(-1)[0] = torch.inf
            optimizer.step()
            optimizer.zero_grad()
        assert torch.equal(train(model, optimizer, one), train(twin, plain, two))
    assert optimizer.state_of("shared")["skipped"] == 7


@every_base
def test_single_samples(base, few_slots):
    """Online learning: a batch of one, most of which are left out."""
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS[base](model, 0.95, correction="reservoir", slots=8)
    path = train(model, optimizer, Stream(m=1), 120)
    plan = plan_of(optimizer)
    assert plan.samples == 1 and plan.slots <= 8
    assert path.isfinite().all()
    memory = optimizer.state_of("group 0")["memory"]
    assert memory["step"] == 120 and bool((memory["weight"] > 0).all())


def test_half_precision(few_slots):
    """Slots are kept in float32, as the momentum is."""
    model = mlp().bfloat16()
    optimizer = OPTIMIZERS["sgd"](model, lr=0.01, **SPARSE)
    stream = Stream(draw=lambda m, generator: torch.randn(m, 3, generator=generator).bfloat16())
    train(model, optimizer, stream, 30)
    memory = optimizer.state_of("group 0")["memory"]
    assert memory["weight"].dtype == memory["shift"].dtype == torch.float32
    assert parameters_of(model).isfinite().all()


@pytest.mark.parametrize("every", [1, 2, 5])
@every_base
def test_thinned_dense_uses_one_batch_in_so_many(base, every, monkeypatch):
    """With ``every`` times its weight: as if the others had no curvature."""
    monkeypatch.setattr(unstale.corrections.select, "dense_interval", lambda batch, memory: every)
    model, twin = twins(mlp)
    optimizer, full = OPTIMIZERS[base](model), OPTIMIZERS[base](twin, correction="dense")
    inner = []
    one, two = Stream(), Stream()
    for step in range(12):
        train(model, optimizer, one)
        full.backward(*two.batch(twin)())
        (group,) = full._groups
        is_chosen = step % every == (step // every) % every
        group._pending = [batch.scaled(every if is_chosen else 0.0) for batch in group._pending]
        full.step()
        full.zero_grad()
        assert_near(parameters_of(model), parameters_of(twin), 1e-10)
        inner.append(optimizer.state_of("group 0")["memory"]["step"])
    plan = optimizer.state_of("group 0")["plan"]
    assert (plan["correction"], plan["every"]) == ("dense", every)
    assert inner == list(range(1, 13))


def test_thinned_dense_with_second_derivatives(monkeypatch):
    """The Hessian of a batch enters with the weight of its other curvature."""
    monkeypatch.setattr(unstale.corrections.select, "dense_interval", lambda batch, memory: 3)
    model, _ = twins(mlp)
    optimizer = OPTIMIZERS["sgd"](model, second_order=True)
    hessians = []
    stream = Stream()
    for _ in range(5):
        optimizer.backward(*stream.batch(model)())
        hessians.append([batch.hessian for batch in optimizer._groups[0]._pending])
        optimizer.step()
        optimizer.zero_grad()
    assert [len(each) for each in hessians] == [1, 0, 0, 0, 1]
    again, _ = twins(mlp)
    whole = OPTIMIZERS["sgd"](again, correction="dense", second_order=True)
    whole.backward(*Stream().batch(again)())
    torch.testing.assert_close(hessians[0][0], 3 * whole._groups[0]._pending[0].hessian)
