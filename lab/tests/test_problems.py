"""Problems against Gymnasium's environments and against loops over the definitions."""

from __future__ import annotations

import math
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch

from unstale_lab.errors import UserError
from unstale_lab.problems import PROBLEMS, acrobot, cartpole, environment, load, mountain_car, regression, replay
from unstale_lab.problems.environment import Episodes, n_step_transitions, rollout, true_values, with_random_actions
from unstale_lab.problems.mountain_car import MountainCar, OnlineMountainCar, push_along_velocity
from unstale_lab.problems.problem import Transitions, seeded
from unstale_lab.problems.replay import Replay

GYMNASIUM = {"mountain_car": "MountainCar-v0", "acrobot": "Acrobot-v1", "cartpole": "CartPole-v1"}
TASKS = {task.name: task for task in (mountain_car.TASK, acrobot.TASK, cartpole.TASK)}
# Boxes slightly larger than the range of episodes, including walls, goals and falls.
BOXES = {
    "mountain_car": ([-1.2, -0.07], [0.6, 0.07]),
    "acrobot": ([-math.pi, -math.pi, -4 * math.pi, -9 * math.pi], [math.pi, math.pi, 4 * math.pi, 9 * math.pi]),
    "cartpole": ([-2.5, -3.0, -0.22, -3.0, 0.0], [2.5, 3.0, 0.22, 3.0, 400.0]),
}


def make(name: str) -> gymnasium.Env:
    return gymnasium.make(GYMNASIUM[name], disable_env_checker=True)


def set_state(env: gymnasium.Env, state: torch.Tensor) -> None:
    """Set the state of Gymnasium's environment, which does not include the time."""
    env.reset(seed=0)
    env.unwrapped.state = state[:4].numpy().copy()


def random_states(name: str, count: int) -> torch.Tensor:
    low, high = (torch.tensor(corner) for corner in BOXES[name])
    return low + (high - low) * torch.rand(count, len(low), generator=seeded("test", name))


@pytest.fixture
def small_buffers(monkeypatch):
    monkeypatch.setattr(environment, "PARALLEL_EPISODES", 32)
    monkeypatch.setattr(replay, "TRANSITIONS", 2000)


def small(name: str) -> Replay:
    return Replay(TASKS[name], states=8, rollouts=16 if name == "cartpole" else 1)


# ------------------------------------------------------------------- dynamics


@pytest.mark.parametrize("name", GYMNASIUM)
def test_step_matches_gymnasium(name):
    task, env = TASKS[name], make(name)
    states = random_states(name, 500)
    actions = torch.randint(task.actions, (500,), generator=seeded("actions"))
    found = task.step(states, actions)
    for i, (state, action) in enumerate(zip(states, actions, strict=True)):
        set_state(env, state)
        _, reward, terminated, _, _ = env.step(action.item())
        after = np.array(env.unwrapped.state)
        np.testing.assert_allclose(found.state[i, : len(after)].numpy(), after, rtol=1e-11, atol=1e-12)
        assert found.reward[i].item() == pytest.approx(0.1 * reward, abs=1e-15)
        assert found.terminated[i].item() == terminated
    assert 0 < found.terminated.sum() < 500


@pytest.mark.parametrize("name", GYMNASIUM)
def test_episodes_match_gymnasium(name):
    """Whole episodes of random actions, until termination or 500 steps.

    Acrobot is chaotic: rounding errors grow by a factor of 10⁹ in that time.
    """
    task, env = TASKS[name], make(name)
    generator = seeded("episodes", name)
    actions = torch.randint(task.actions, (500, 4), generator=generator)
    time = iter(actions)
    start = task.start(4, generator)
    episodes = rollout(replace(task, max_episode_steps=500), lambda _: next(time), start)
    for i in range(4):
        set_state(env, start[i])
        for t in range(episodes.length[i]):
            _, _, terminated, _, _ = env.unwrapped.step(actions[t, i].item())
            np.testing.assert_allclose(
                episodes.state[i, t + 1, : len(env.unwrapped.state)].numpy(), env.unwrapped.state, rtol=1e-4, atol=1e-4
            )
            assert terminated == (episodes.terminated[i].item() and t + 1 == episodes.length[i])


@pytest.mark.parametrize("name", ["mountain_car_scaled", "acrobot", "cartpole"])
def test_observations_are_scaled(name):
    problem = load(name)
    state = problem.stream(seed=0, batch=64, n_step=1)(100).state
    assert state.shape[-1] == problem.inputs
    assert 0.2 < state.abs().flatten(0, -2).amax(0).min() <= state.abs().max() <= 1.05


def test_raw_and_scaled_mountain_car_agree():
    scaled, raw = (load(name).stream(3, 8, 2)(5) for name in ("mountain_car_scaled", "mountain_car"))
    torch.testing.assert_close(mountain_car.normalize(raw.state.double()).float(), scaled.state)
    torch.testing.assert_close(raw.reward, scaled.reward)
    assert raw.state[..., 1].abs().max() <= 0.07


def test_acrobot_observation_matches_gymnasium():
    env = make("acrobot")
    for state in random_states("acrobot", 20):
        set_state(env, state)
        seen = env.unwrapped._get_ob() / np.array([1, 1, 1, 1, 4 * math.pi, 9 * math.pi])
        np.testing.assert_allclose(acrobot.observe(state).numpy(), seen, atol=1e-6)


@pytest.mark.parametrize("name", ["acrobot", "cartpole"])
def test_raw_observations_match_gymnasium(name):
    """Those of the buffer, where the time is appended to Cartpole's."""
    env, task = make(name), TASKS[name]
    raw, scaled = load(f"{name}_raw"), load(name)
    batch, scaled_batch = (problem.stream(seed=2, batch=5, n_step=3)(4) for problem in (raw, scaled))
    assert raw.inputs == scaled.inputs == task.inputs
    assert torch.equal(batch.reward, scaled_batch.reward) and torch.equal(batch.discount, scaled_batch.discount)
    states = raw._transitions("buffer", n_step=3)
    index = torch.randint(len(states.reward), (4, 5), generator=seeded(name, "stream", 2))
    for field in ("state", "next_state"):
        pairs = getattr(states, field)[index].flatten(0, 1), getattr(batch, field).flatten(0, 1)
        for state, seen in zip(*pairs, strict=True):
            set_state(env, state)
            if name == "acrobot":
                expected = env.unwrapped._get_ob()
            else:
                expected = np.append(np.array(env.unwrapped.state), state[4] / 500)
            np.testing.assert_allclose(seen.numpy(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name, scale", [
    ("acrobot", [1, 1, 1, 1, 4 * math.pi, 9 * math.pi]),
    ("cartpole", [2.4, 2, 12 * math.pi / 180, 2, 1]),
])  # fmt: skip
def test_raw_problems_have_the_same_true_values(name, scale, monkeypatch):
    if name == "cartpole":  # stored, never estimated again
        monkeypatch.setattr(Replay, "compute_values", lambda self: pytest.fail("new rollouts"))
    raw, scaled = load(f"{name}_raw").values(), load(name).values()
    assert raw.keys() == scaled.keys()
    for kind, held in raw.items():
        assert torch.equal(held.value, scaled[kind].value)
        assert torch.equal(held.standard_error, scaled[kind].standard_error)
        torch.testing.assert_close(held.state, scaled[kind].state * torch.tensor(scale))


@pytest.mark.parametrize("name", ["mountain_car", "mountain_car_scaled", "mountain_car_online", "acrobot", "cartpole",
                                  "acrobot_raw", "cartpole_raw"])  # fmt: skip
def test_training_values_are_of_the_training_distribution(name):
    """Mean and standard deviation of every input are those of the stream's states."""
    problem = load(name)
    seen = problem.stream(seed=7, batch=1, n_step=1)(30_000).state[:, 0].double()
    held = problem.values()["training"].state
    spread = seen.std(0)
    error = 5 * spread * math.sqrt(1 / len(held) + 1 / 3000)  # consecutive states are dependent
    assert ((held.mean(0) - seen.mean(0)).abs() < error).all()
    torch.testing.assert_close(held.std(0), spread, rtol=0.25, atol=0)


def test_acrobot_truncation_bootstraps():
    env = make("acrobot")
    env.reset(seed=0)
    steps = next(t for t in range(1, 1000) if env.step(1)[3])
    episodes = rollout(acrobot.TASK, lambda seen: torch.ones(len(seen), dtype=torch.long), torch.zeros(1, 4))
    assert episodes.length.item() == steps == 500
    discount = episodes.transitions(gamma=0.99, n_step=3).discount
    torch.testing.assert_close(discount[-3:], torch.tensor([0.99**3, 0.99**2, 0.99]))


def test_cartpole_time_limit_terminates():
    env = make("cartpole")
    env.reset(seed=0)
    set_state(env, torch.zeros(4))

    def balance(seen: np.ndarray) -> int:
        return int(seen[2] + seen[3] + 0.1 * seen[0] + 0.2 * seen[1] > 0)

    steps, truncated, terminated = 0, False, False
    while not truncated and not terminated:
        _, _, terminated, truncated, _ = env.step(balance(env.unwrapped.state))
        steps += 1
    assert truncated and steps == 500
    policy = lambda seen: torch.tensor([balance((row * cartpole.SCALE).numpy()) for row in seen])  # noqa: E731
    episodes = rollout(cartpole.TASK, policy, torch.zeros(1, 5))
    assert episodes.length.item() == 500 and episodes.terminated.item()
    assert episodes.transitions(gamma=0.99, n_step=3).discount[-3:].tolist() == [0, 0, 0]


# ------------------------------------------------------------------- n steps


def test_n_step_transitions_match_gymnasium():
    env = make("mountain_car")
    found = load("mountain_car").stream(seed=1, batch=50, n_step=4)(8)
    flat = found.map(lambda field: field.flatten(0, 1))
    for state, reward, discount, after in zip(
        flat.state.double(), flat.reward, flat.discount, flat.next_state, strict=True
    ):
        set_state(env, state)
        expected, weight, terminated = 0.0, 1.0, False
        for _ in range(4):
            if not terminated:
                _, r, terminated, _, _ = env.step(0 if env.unwrapped.state[1] < 0 else 2)
                expected, weight = expected + 0.1 * weight * r, 0.95 * weight
        assert reward.item() == pytest.approx(expected, rel=1e-5)
        assert discount.item() == pytest.approx(0 if terminated else weight, rel=1e-5)
        np.testing.assert_allclose(after.numpy(), env.unwrapped.state, atol=1e-5)
    assert 0 < (flat.discount == 0).sum() < 100


@pytest.mark.parametrize("n_step", [1, 3, 7])
def test_n_step_transitions_of_episodes(n_step):
    """Against a loop over each episode, with rewards and states that identify their step."""
    gamma, length, terminated = 0.9, [5, 1, 4], [True, True, False]
    state = torch.arange(18.0).reshape(3, 6, 1)
    reward = torch.rand(3, 5, generator=seeded("rewards"))
    found = Episodes(state, reward, torch.tensor(length), torch.tensor(terminated)).transitions(gamma, n_step)
    expected = []
    for e in range(3):
        for t in range(length[e]):
            end = min(t + n_step, length[e])
            total = sum(gamma ** (k - t) * reward[e, k].item() for k in range(t, end))
            over = terminated[e] and end == length[e]
            expected.append((state[e, t].item(), total, 0 if over else gamma ** (end - t), state[e, end].item()))
    columns = [found.state[:, 0], found.reward, found.discount, found.next_state[:, 0]]
    torch.testing.assert_close(torch.stack(columns, 1), torch.tensor(expected))


# ------------------------------------------------------------------- streams


NEEDING_DATA = ("svhn", "ms_pacman", "ms_pacman_10k")  # see test_image_figures.py


def equal(a: Transitions, b: Transitions) -> bool:
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in vars(a))


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name not in NEEDING_DATA])
def test_stream_depends_only_on_its_arguments(name):
    def stream(seed=0):
        return load(name).stream(seed, batch=3, n_step=2)

    whole, parts = stream()(20), stream()
    first, second = parts(7), parts(13)
    for field in vars(whole):
        assert torch.equal(getattr(whole, field), torch.cat([getattr(first, field), getattr(second, field)])), field
        assert getattr(whole, field).dtype == torch.float32
    assert whole.state.shape == whole.next_state.shape == (20, 3, load(name).inputs)
    assert whole.reward.shape == whole.discount.shape == (20, 3)
    assert not equal(whole, stream(seed=1)(20))
    assert not torch.equal(whole.state[:, 0], whole.state[:, 1])


@pytest.mark.parametrize("make_problem", [MountainCar, OnlineMountainCar, lambda: small("acrobot"),
                                          lambda: small("cartpole"), regression.Regression])  # fmt: skip
def test_data_does_not_depend_on_default_dtype(make_problem, small_buffers):
    def everything():
        problem = make_problem()
        compute = problem.compute_values if isinstance(problem, Replay) else problem.values
        return problem.stream(0, 4, 3)(50), compute()

    stream, values = everything()
    torch.set_default_dtype(torch.float32)
    stream_32, values_32 = everything()
    assert equal(stream, stream_32)
    for name in ("training", "evaluation"):
        assert torch.equal(values[name].state, values_32[name].state)
        assert torch.equal(values[name].value, values_32[name].value)


def test_online_transitions_are_consecutive():
    stream = load("mountain_car_online").stream(seed=0, batch=2, n_step=1)
    found = stream(20_000)
    over = found.discount == 0
    follows = (found.next_state[:-1] == found.state[1:]).all(-1)
    assert torch.equal(follows, ~over[:-1])
    # Fresh states are uniform: mean 0 and variance 1/3 once scaled.
    fresh = mountain_car.normalize(found.state[1:][over[:-1]].double())
    assert len(fresh) > 500
    torch.testing.assert_close(fresh.mean(0), torch.zeros(2), atol=0.1, rtol=0)
    torch.testing.assert_close(fresh.var(0), torch.full((2,), 1 / 3), atol=0.06, rtol=0)


def test_replay_states_are_uniform():
    state = load("mountain_car_scaled").stream(seed=0, batch=64, n_step=1)(500).state.flatten(0, 1)
    counts = torch.histogramdd(state, bins=[4, 4], range=[-1.0, 1.0, -1.0, 1.0]).hist
    assert counts.sum() == 32_000
    assert ((counts - 2000).abs() < 4.5 * math.sqrt(2000)).all()


def test_buffer_contains_terminations():
    """One transition per episode terminates, n with n-step targets."""
    one, five = (load("acrobot").stream(0, 64, n)(500).discount for n in (1, 5))
    share = (one == 0).float().mean().item()
    assert 1 / 120 < share < 1 / 60
    assert (five == 0).float().mean().item() == pytest.approx(5 * share, rel=0.2)
    assert five.max().item() == pytest.approx(0.99**5)


def test_cartpole_random_actions():
    policy = with_random_actions(lambda seen: torch.zeros(len(seen), dtype=torch.long), cartpole.TASK, seeded("random"))
    assert policy(torch.zeros(50_000, 5)).double().mean().item() == pytest.approx(0.1, abs=0.006)


# ------------------------------------------------------------------- values


def test_mountain_car_values_match_gymnasium():
    env = make("mountain_car")
    for value_set in load("mountain_car").values().values():
        assert value_set.standard_error.abs().max() == 0
        for state, value in list(zip(value_set.state, value_set.value, strict=True))[::40]:
            set_state(env, state)
            total, weight, terminated = 0.0, 1.0, False
            while not terminated:
                _, reward, terminated, _, _ = env.unwrapped.step(0 if env.unwrapped.state[1] < 0 else 2)
                total, weight = total + 0.1 * weight * reward, 0.95 * weight
            assert value.item() == pytest.approx(total, abs=1e-12)


def test_mountain_car_episodes_terminate():
    start = mountain_car.start(20_000, seeded("starts"))
    assert (n_step_transitions(mountain_car.TASK, push_along_velocity, start, 200).discount == 0).all()


def test_mountain_car_evaluation_grid():
    state = load("mountain_car").values()["evaluation"].state
    assert len(state) == len(state.unique(dim=0)) == 1600
    torch.testing.assert_close(state.mean(0), torch.tensor([-0.3, 0.0]))
    torch.testing.assert_close(state.amax(0), torch.tensor([0.6 - 0.0225, 0.07 - 0.00175]))


def test_online_training_states_follow_the_episodes():
    """Their distribution differs from the uniform one, so that errors are weighted differently."""
    online, uniform = (load(name).values()["training"] for name in ("mountain_car_online", "mountain_car"))
    seen = load("mountain_car_online").stream(5, 1, 1)(20_000).state[:, 0]
    torch.testing.assert_close(online.state.abs().mean(0), seen.abs().mean(0).double(), atol=0.03, rtol=0)
    position, velocity = (online.state.abs().mean(0) - uniform.state.abs().mean(0)).abs()
    assert position > 0.03 and velocity > 0.003


def test_acrobot_values_are_returns(small_buffers):
    problem = small("acrobot")
    recorded = problem._transitions("buffer", n_step=500).map(lambda field: field[::10])
    found = true_values(problem.task, problem._expert, recorded.state)
    assert (recorded.discount == 0).all()
    torch.testing.assert_close(found.value, recorded.reward, rtol=1e-9, atol=1e-9)


def test_cartpole_values_and_standard_errors():
    """Two independent estimates differ according to their standard errors, which are small."""
    problem = Replay(cartpole.TASK, states=64, rollouts=128)
    first = problem.compute_values()["training"]
    again = true_values(cartpole.TASK, problem._policy(seeded("again")), first.state * cartpole.SCALE, rollouts=128)
    noisy = first.standard_error > 0
    error = (first.standard_error**2 + again.standard_error**2).sqrt()
    z = ((first.value - again.value) / error)[noisy & (again.standard_error > 0)]
    assert 0.6 < z.square().mean().sqrt() < 1.5
    assert first.standard_error.square().mean().sqrt() < 0.05
    # Without a fall, the value is the sum of the rewards up to step 500.
    left = 500 - 500 * first.state[:, 4]
    most = 0.1 * (1 - 0.99**left) / 0.01
    assert (first.value <= most + 1e-9).all() and first.value.mean() > 0.9 * most.mean()


def test_stored_cartpole_values_match_new_rollouts():
    problem = load("cartpole")
    policy = problem._policy(seeded("new rollouts"))
    for kept in problem.values().values():
        some = slice(None, None, 32)
        again = true_values(cartpole.TASK, policy, kept.state[some] * cartpole.SCALE, rollouts=256)
        torch.testing.assert_close(again.state, kept.state[some])
        error = (kept.standard_error[some] ** 2 + again.standard_error**2).sqrt()
        assert ((again.value - kept.value[some]).abs() <= 5 * error + 1e-9).all()
        assert 0.01 < kept.standard_error.square().mean().sqrt() < 0.03  # a number of 256 rollouts, not of 64 or 1024


def test_training_and_evaluation_states_are_disjoint(small_buffers):
    values = small("acrobot").values()
    everything = torch.cat([values["training"].state, values["evaluation"].state])
    assert len(everything.unique(dim=0)) == len(everything)


# ------------------------------------------------------------------- regression


def test_regression_targets():
    problem = load("regression")
    batches = problem.stream(seed=0, batch=64, n_step=1)(500)
    x = batches.state.double().flatten()
    sines = [(0.5, 2.14, 2.14 * 2), (0.82, 9, 0.4), (0.38, 12, 0), (0.32, 38, -0.1)]
    expected = [sum(a * math.sin(b * v + c) for a, b, c in sines) for v in x.tolist()]
    torch.testing.assert_close(batches.reward.double().flatten(), torch.tensor(expected), atol=1e-5, rtol=0)
    assert not problem.bootstraps and batches.discount.abs().max() == 0
    assert 9_000 < len(x.unique()) <= 10_000  # of 32,000 draws: with replacement, from one sample
    assert torch.isin(problem.values()["training"].state.float().flatten(), problem.x.float()).all()
    assert len(problem.values()["evaluation"].state.unique()) == 2000


# ------------------------------------------------------------------- by name


def test_problems_by_name():
    assert load("regression") is load("regression")
    with pytest.raises(UserError, match="did you mean mountain_car_online"):
        load("mountaincar_onlin")
    with pytest.raises(UserError, match="unknown problem 'zzz'"):
        load("zzz")
