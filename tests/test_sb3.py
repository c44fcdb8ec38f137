"""Algorithms of Stable-Baselines3: without correction they are its own, and all can be saved and loaded."""

from __future__ import annotations

import copy
import importlib
import re
import sys
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import unstale

sb3 = pytest.importorskip("stable_baselines3")
ours = importlib.import_module("unstale.sb3")
torch_layers = importlib.import_module("stable_baselines3.common.torch_layers")

PAGE = Path(__file__).parent.parent / "docs" / "integrations.md"
NONE = dict(correction="none")
CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"
OFF_POLICY = dict(learning_starts=20, batch_size=16, buffer_size=1000)
ROLLOUT = dict(n_steps=32, batch_size=16, n_epochs=3, learning_rate=3e-3)
DQN = dict(OFF_POLICY, train_freq=1, target_update_interval=50, learning_rate=1e-3)
SAC = dict(OFF_POLICY, learning_rate=1e-3)
A2C_ADAM = dict(use_rms_prop=False, gae_lambda=0.9, normalize_advantage=True, learning_rate=3e-3)
# Algorithm, environment, settings, steps.
CASES = {
    "DQN": ("DQN", CARTPOLE, DQN, 200),
    "DQN, 3-step, clipped": ("DQN", CARTPOLE, dict(DQN, n_steps=3, max_grad_norm=0.1), 200),
    "SAC": ("SAC", PENDULUM, SAC, 150),
    "SAC, constant temperature, gSDE": ("SAC", PENDULUM, dict(SAC, ent_coef=0.1, use_sde=True), 150),
    "TD3": ("TD3", PENDULUM, OFF_POLICY, 150),
    "TD3, 3-step": ("TD3", PENDULUM, dict(OFF_POLICY, n_steps=3), 150),
    "PPO": ("PPO", CARTPOLE, ROLLOUT, 320),
    "PPO, clipped values": ("PPO", PENDULUM, dict(ROLLOUT, clip_range_vf=1e-2, ent_coef=0.01), 320),
    "PPO, early stopping": ("PPO", CARTPOLE, dict(ROLLOUT, target_kl=1e-3), 320),
    "A2C": ("A2C", CARTPOLE, {}, 500),
    "A2C, Adam": ("A2C", CARTPOLE, A2C_ADAM, 500),
}
FIVE = ["DQN", "SAC", "TD3", "PPO", "A2C"]
# Runs that are equal up to rounding differ by 5e-7 or less (five seeds), and by 4e-5 or less if every gradient gets
# noise of 2e-7. Another eps changes them by 7e-3 or more, a correction by 4e-3 (PPO with clipped values: 4e-4).
TOLERANCE = 4e-4


@pytest.fixture(autouse=True)
def float32():
    torch.set_default_dtype(torch.float32)


def make(package, case, prefix="", policy_kwargs=None, **more):
    name, env, settings, _ = CASES[case]
    policy_kwargs = {"net_arch": [16, 16], **(policy_kwargs or {})}
    kind = getattr(package, prefix + name)
    return kind("MlpPolicy", env, seed=0, device="cpu", policy_kwargs=policy_kwargs, **{**settings, **more})


def make_ours(case, **more):
    return make(ours, case, "Corrected", **more)


def optimizer_of(model):
    return getattr(model, "critic", model.policy).optimizer


def damped(case):
    """A larger eps for off-policy algorithms: with their 1e-8, Adam turns rounding of tiny gradients into steps."""
    return {} if case.startswith(("PPO", "A2C")) else {"optimizer_kwargs": {"eps": 1e-4}}


def numbers(model):
    return torch.cat([p.detach().flatten() for p in model.policy.parameters()])


# ------------------------------------------------------------------------------------------- without a correction


@pytest.mark.parametrize("case", CASES)
def test_without_correction_it_is_stable_baselines3(case):
    steps = CASES[case][3]
    theirs = make(sb3, case, policy_kwargs=damped(case))  # seeds the generators of torch and numpy
    start = numbers(theirs)
    theirs.learn(steps)
    mine = make_ours(case, correction_kwargs=NONE, policy_kwargs=damped(case))
    torch.testing.assert_close(numbers(mine), start, rtol=0, atol=0)
    mine.learn(steps)
    assert (numbers(theirs) - start).abs().max() > 1e-2
    torch.testing.assert_close(numbers(mine), numbers(theirs), rtol=0, atol=TOLERANCE)
    logged = [dict(model.logger.name_to_value) for model in (theirs, mine)]
    assert set(logged[0]) == set(logged[1])
    for name in logged[0]:
        if name.startswith("train/"):
            np.testing.assert_allclose(logged[1][name], logged[0][name], rtol=1e-2, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("case", FIVE)
def test_another_eps_is_another_run(case):
    """The tolerance is small enough to notice it."""
    theirs = make(sb3, case, policy_kwargs=damped(case)).learn(CASES[case][3])
    mine = make_ours(case, correction_kwargs=dict(NONE, eps=1e-8), policy_kwargs=damped(case)).learn(CASES[case][3])
    assert (numbers(mine) - numbers(theirs)).abs().max() > 5 * TOLERANCE


@pytest.mark.parametrize("case", FIVE)
def test_a_correction_changes_the_run(case):
    runs = [make_ours(case, correction_kwargs=options).learn(CASES[case][3]) for options in (NONE, {})]
    plain, corrected = map(numbers, runs)
    assert corrected.isfinite().all() and (corrected - plain).abs().max() > 5 * TOLERANCE
    reading = unstale.diagnostics.groups(optimizer_of(runs[1]))[0]
    assert reading.steps > 10 and reading.correction != "none"


# ------------------------------------------------------------------------------------------------- the optimizer


@pytest.mark.parametrize(
    "case, eps, uncorrected_beta",
    [("DQN", 1e-8, None), ("SAC", 1e-8, None), ("TD3", 1e-8, None), ("PPO", 1e-5, 0.9), ("A2C, Adam", 1e-5, 0.9)],
)
def test_settings_of_stable_baselines3_are_kept(case, eps, uncorrected_beta):
    model = make_ours(case, correction_kwargs=dict(trust=0.5))
    values, *others = optimizer_of(model).param_groups
    assert values["correction"] == "auto" and values["trust"] == 0.5 and values["betas"] == (None, 0.999)
    assert {group["eps"] for group in (values, *others)} == {eps}
    assert {group["lr"] for group in (values, *others)} == {model.lr_schedule(1)}
    assert [(group["correction"], group["betas"][0]) for group in others] == (
        [("none", uncorrected_beta)] if uncorrected_beta else []
    )
    if hasattr(model, "actor"):
        assert type(model.actor.optimizer) is torch.optim.Adam


def test_a2c_keeps_rmsprop():
    values, policy = optimizer_of(make_ours("A2C")).param_groups
    assert (values["alpha"], values["eps"], values["beta"]) == (0.99, 1e-5, None)
    assert (policy["alpha"], policy["eps"], policy["beta"], policy["correction"]) == (0.99, 1e-5, 0.0, "none")


@pytest.mark.parametrize(
    "options, kwargs, beta",
    [
        ({}, {}, None),
        ({"betas": (0.95, 0.99)}, {}, 0.95),
        ({}, {"betas": (0.8, 0.99)}, 0.8),
        (NONE, {}, 0.9),
        (NONE, {"betas": (0.8, 0.99)}, 0.8),
    ],
)
def test_beta_grows_unless_it_is_given(options, kwargs, beta):
    model = make_ours("DQN", correction_kwargs=options, policy_kwargs={"optimizer_kwargs": kwargs})
    assert optimizer_of(model).param_groups[0]["betas"][0] == beta


class Trunk(torch_layers.BaseFeaturesExtractor):
    def __init__(self, space):
        super().__init__(space, features_dim=8)
        self.layers = nn.Sequential(nn.Linear(space.shape[0], 8), nn.Tanh())

    def forward(self, observations):
        return self.layers(observations)


@pytest.mark.parametrize("is_shared", [True, False])
def test_parameters_of_the_policy_are_not_corrected(is_shared):
    model = make_ours("PPO", policy_kwargs=dict(features_extractor_class=Trunk, share_features_extractor=is_shared))
    names = {id(p): name for name, p in model.policy.named_parameters()}
    corrected, plain = ({names[id(p)] for p in group["params"]} for group in optimizer_of(model).param_groups)
    value_parts = {"value_net", "mlp_extractor.value_net"} | ({"vf_features_extractor"} if not is_shared else set())
    assert {name.split(".layers")[0] for name in corrected if "features" in name} == (
        set() if is_shared else {"vf_features_extractor"}
    )
    assert corrected and all(name.startswith(tuple(value_parts)) for name in corrected)
    assert not any(name.startswith(tuple(value_parts)) for name in plain)
    model.learn(64)


# --------------------------------------------------------------------------------------------------------- targets


@pytest.mark.parametrize("case", ["DQN", "SAC", "TD3"])
def test_targets_come_from_the_target_network_alone(tmp_path, case):
    """The optimizer follows it, also of a model that was loaded, and no target is constant."""
    model = make_ours(case)
    model.save(tmp_path / "model.zip")
    for each in (model, type(model).load(tmp_path / "model.zip", device="cpu")):
        target = each.q_net_target if case == "DQN" else each.critic_target
        assert {id(p) for p in optimizer_of(each).followed} == {id(p) for p in target.parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("error", unstale.ConstantTargetWarning)
        warnings.simplefilter("error", unstale.UnfollowedTargetWarning)
        model.learn(40)


class Endless(gym.Env):
    """Random observations and small rewards; no episode ends."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action):
        state = self._observe()
        return state, 0.3 * float(state[0]), False, False, {}

    def _observe(self):
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


def learn_linear_values(name, correction, is_followed=True):
    """Values that are linear in the parameters, of one action or one critic: neither maxima nor minima switch."""
    is_dqn = name == "DQN"
    env = Endless(gym.spaces.Discrete(1) if is_dqn else gym.spaces.Box(-1, 1, (2,), np.float32))
    updates = dict(train_freq=1, target_update_interval=1) if is_dqn else {}
    model = getattr(ours, f"Corrected{name}")(
        "MlpPolicy",
        env,
        **OFF_POLICY,
        **updates,
        learning_rate=1e-2,
        tau=0.1,
        policy_kwargs={"net_arch": [], **({} if is_dqn else {"n_critics": 1})},
        correction_kwargs=dict(betas=(0.9, 0.999), horizon=100, **correction),
        seed=0,
        device="cpu",
    )
    with torch.no_grad():  # small TD errors, for which the loss of DQN is quadratic
        for parameter in model.policy.parameters():
            parameter.mul_(0.1)
    optimizer = optimizer_of(model)
    if not is_followed:
        optimizer.followed.clear()
    if correction["correction"] == "oracle":
        evaluate_again(model, optimizer)
    return model.learn(60)


def evaluate_again(model, optimizer):
    """Give the optimizer its batches as functions, which the oracle needs."""
    networks = (model.q_net, model.q_net_target) if hasattr(model, "q_net") else (model.critic, model.critic_target)
    seen, plain = {}, optimizer.backward
    for network in networks:
        network.register_forward_pre_hook(lambda module, inputs: seen.__setitem__(module, inputs))

    def call(network, inputs):
        output = network(*inputs)
        return output[0] if isinstance(output, tuple) else output

    def backward(value, target, **options):
        here, there = (seen[network] for network in networks)
        rest = (target - model.gamma * call(networks[1], there)).detach()
        return plain(lambda: (call(networks[0], here), rest + model.gamma * call(networks[1], there)), **options)

    optimizer.backward = backward


@pytest.mark.filterwarnings("ignore::unstale.UnfollowedTargetWarning")
@pytest.mark.parametrize("name", ["DQN", "SAC", "TD3"])
def test_averaged_target_networks_are_followed(name):
    """With linear values the correction is exact: momentum is that of past batches, evaluated again."""
    window = dict(correction="window", trust=None)
    oracle = learn_linear_values(name, dict(correction="oracle"))
    followed = numbers(learn_linear_values(name, window))
    unfollowed = numbers(learn_linear_values(name, window, is_followed=False))
    error, without = ((found - numbers(oracle)).abs().max() for found in (followed, unfollowed))
    assert error < 1e-4 and without > 5e-3


@pytest.mark.parametrize("gae_lambda", [1.0, 0.9])
def test_live_returns_of_a2c_are_those_of_the_buffer(gae_lambda):
    env = sb3.common.env_util.make_vec_env(CARTPOLE, n_envs=3, seed=0)
    model = ours.CorrectedA2C("MlpPolicy", env, seed=0, n_steps=40, gae_lambda=gae_lambda, device="cpu")
    found = []

    def check(values):
        live = type(model)._live_returns(model, values)
        found.append((live.detach(), model.rollout_buffer.returns.copy(), live.requires_grad))
        return live

    model._live_returns = check
    model.learn(240)
    assert model.rollout_buffer.episode_starts.sum() > 3
    for live, returns, is_live in found:
        assert is_live
        np.testing.assert_allclose(live.numpy(), returns.flatten(), rtol=1e-4, atol=1e-4)


# ------------------------------------------------------------------------------------------------ saving and loading


def train_once(model, like):
    """One more call of ``train`` with the data and the random numbers of another run."""
    for name in ("replay_buffer", "rollout_buffer", "_last_obs", "_last_episode_starts"):
        if hasattr(like, name):
            setattr(model, name, copy.deepcopy(getattr(like, name)))
    model.set_logger(like.logger)
    np.random.seed(1)
    torch.manual_seed(1)
    model.train(*([5] if hasattr(like, "replay_buffer") else []))
    return numbers(model)


@pytest.mark.parametrize("correction", ["auto", "none"])
@pytest.mark.parametrize("case", FIVE)
def test_training_continues_after_loading(tmp_path, case, correction):
    model = make_ours(case, correction_kwargs=dict(correction=correction))
    model.learn(CASES[case][3])
    model.save(tmp_path / "model.zip")
    loaded = type(model).load(tmp_path / "model.zip", device="cpu")
    assert loaded.correction_kwargs == model.correction_kwargs
    assert type(optimizer_of(loaded)) is type(optimizer_of(model))
    torch.testing.assert_close(numbers(loaded), numbers(model), rtol=0, atol=0)
    before, data = numbers(model), copy.copy(model)
    continued = train_once(loaded, data)
    torch.testing.assert_close(continued, train_once(model, data), rtol=0, atol=1e-6)
    assert (continued - before).abs().max() > 1e-4


@pytest.mark.parametrize("code", re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), flags=re.M | re.S))
def test_code_of_the_page_runs(code, monkeypatch):
    monkeypatch.chdir(PAGE.parent.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "ppo", raising=False)
    names: dict = {}
    exec(code, names)
    assert "episodes" in names or numbers(names["model"]).isfinite().all()


# ------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    "optimizer, kwargs, message",
    [
        (torch.optim.SGD, {}, "SGD has no corrected form"),
        (torch.optim.Adam, {"amsgrad": True}, "amsgrad"),
        (torch.optim.Adam, {"weight_decay": 0.1}, "use AdamW"),
        (torch.optim.RMSprop, {"momentum": 0.9}, "momentum"),
        (unstale.CorrectedAdam, {}, "correction_kwargs"),
    ],
)
def test_optimizers_without_a_corrected_form_are_refused(optimizer, kwargs, message):
    with pytest.raises(ValueError, match=message):
        make_ours("DQN", policy_kwargs=dict(optimizer_class=optimizer, optimizer_kwargs=kwargs))


def test_adamw_keeps_its_weight_decay():
    model = make_ours("PPO", policy_kwargs=dict(optimizer_class=torch.optim.AdamW))
    assert [group["weight_decay"] for group in optimizer_of(model).param_groups] == [0.01, 0.01]


def test_a_learning_rate_belongs_to_the_algorithm():
    with pytest.raises(ValueError, match="learning_rate"):
        make_ours("DQN", correction_kwargs=dict(lr=1e-3))


def test_a_file_of_stable_baselines3_is_refused(tmp_path):
    make(sb3, "DQN").save(tmp_path / "model.zip")
    with pytest.raises(ValueError, match="unstale"):
        ours.CorrectedDQN.load(tmp_path / "model.zip")


def test_the_module_is_imported_when_it_is_used(monkeypatch):
    monkeypatch.delattr(unstale, "sb3")  # as before its first import
    assert unstale.sb3 is ours and "sb3" not in unstale.__all__


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.delitem(sys.modules, "unstale.sb3")
    monkeypatch.delattr(unstale, "sb3")
    with pytest.raises(ImportError, match=r'pip install "\.\[sb3\]"'):
        importlib.import_module("unstale.sb3")
    with pytest.raises(ImportError, match=r'pip install "\.\[sb3\]"'):
        unstale.sb3  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'sb4'"):
        unstale.sb4  # noqa: B018
