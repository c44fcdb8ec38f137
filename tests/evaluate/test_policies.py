"""Policies from files are what their weights say, and nothing is unpickled without the flag."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation_problems import mlp_weights, save_sb3

from unstale.evaluation import EvaluationError
from unstale.evaluation.policies import load_policy
from unstale.evaluation.spaces import Box, Discrete

OBSERVATIONS = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
DISCRETE, CONTINUOUS = Discrete(2), Box(np.array([-2.0], np.float32), np.array([4.0], np.float32))


def linear(weights, name, x):
    return x @ weights[f"{name}.weight"].numpy().T + weights[f"{name}.bias"].numpy()


def relu(x):
    return np.maximum(x, 0)


def test_ppo_takes_the_largest_logit(tmp_path):
    weights = mlp_weights({"mlp_extractor.policy_net.0": (3, 8), "mlp_extractor.policy_net.2": (8, 8)})
    weights |= mlp_weights({"action_net": (8, 2), "value_net": (8, 1)}, seed=1)
    policy = load_policy(str(save_sb3(tmp_path / "ppo.zip", weights, 3, 2)))
    policy.check(None, DISCRETE)
    hidden = OBSERVATIONS
    for name in ("mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2"):
        hidden = np.tanh(linear(weights, name, hidden))
    logits = linear(weights, "action_net", hidden)
    assert policy.act(OBSERVATIONS).tolist() == logits.argmax(1).tolist()
    assert policy.probabilities(OBSERVATIONS).argmax(1).tolist() == logits.argmax(1).tolist()
    policy.stochastic = True
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(policy.probabilities(OBSERVATIONS), expected, rtol=1e-4)
    shares = np.mean([policy.act(OBSERVATIONS) for _ in range(4000)], 0)
    np.testing.assert_allclose(shares, expected[:, 1], atol=5 * 0.5 / np.sqrt(4000))


def test_activation_is_read_from_the_file(tmp_path):
    weights = mlp_weights({"mlp_extractor.policy_net.0": (3, 8), "action_net": (8, 2)})
    options = {":type:": "<class 'dict'>", "activation_fn": "<class 'torch.nn.modules.activation.ReLU'>"}
    policy = load_policy(str(save_sb3(tmp_path / "ppo.zip", weights, 3, 2, policy_kwargs=options)))
    policy.check(None, DISCRETE)
    logits = linear(weights, "action_net", relu(linear(weights, "mlp_extractor.policy_net.0", OBSERVATIONS)))
    np.testing.assert_allclose(policy.outputs(OBSERVATIONS), logits, rtol=1e-4, atol=1e-5)


def test_log_std_is_limited_in_sac_alone(tmp_path):
    ppo = mlp_weights({"mlp_extractor.policy_net.0": (3, 8), "action_net": (8, 1)})
    ppo["log_std"] = torch.full((1,), 3.0, dtype=torch.float32)
    sac = mlp_weights({"actor.latent_pi.0": (3, 8), "actor.mu": (8, 1), "actor.log_std": (8, 1)})
    sac["actor.log_std.bias"] += 100
    for weights, expected in ((ppo, 3.0), (sac, 2.0)):
        policy = load_policy(str(save_sb3(tmp_path / "model.zip", weights, 3, None)))
        log_std = policy._module(torch.as_tensor(OBSERVATIONS))[:, 1]
        torch.testing.assert_close(log_std, torch.full_like(log_std, expected))


def test_dqn(tmp_path):
    weights = mlp_weights({"q_net.q_net.0": (3, 8), "q_net.q_net.2": (8, 2), "q_net_target.q_net.0": (3, 8)})
    policy = load_policy(str(save_sb3(tmp_path / "dqn.zip", weights, 3, 2)))
    policy.check(None, DISCRETE)
    q = linear(weights, "q_net.q_net.2", relu(linear(weights, "q_net.q_net.0", OBSERVATIONS)))
    assert policy.act(OBSERVATIONS).tolist() == q.argmax(1).tolist()


@pytest.mark.parametrize("algorithm", ["SAC", "TD3"])
def test_squashed_actions_are_scaled_to_the_bounds(tmp_path, algorithm):
    if algorithm == "SAC":
        weights = mlp_weights({"actor.latent_pi.0": (3, 8), "actor.mu": (8, 1), "actor.log_std": (8, 1)})
        head, trunk = "actor.mu", "actor.latent_pi.0"
    else:
        weights = mlp_weights({"actor.mu.0": (3, 8), "actor.mu.2": (8, 1)})
        head, trunk = "actor.mu.2", "actor.mu.0"
    policy = load_policy(str(save_sb3(tmp_path / "model.zip", weights, 3, None)))
    policy.check(None, CONTINUOUS)
    squashed = np.tanh(linear(weights, head, relu(linear(weights, trunk, OBSERVATIONS))))
    np.testing.assert_allclose(policy.act(OBSERVATIONS), 1 + 3 * squashed, rtol=1e-3, atol=1e-4)


def test_bounds_are_read_from_the_file_if_the_data_has_none(tmp_path):
    weights = mlp_weights({"actor.mu.0": (3, 8), "actor.mu.2": (8, 1)})
    box = {":type:": "<class 'gymnasium.spaces.box.Box'>", "_shape": [1], "low": "[-2.]", "high": "[4.]"}
    unbounded = Box(np.array([-np.inf]), np.array([np.inf]))
    policy = load_policy(str(save_sb3(tmp_path / "model.zip", weights, 3, None, action_space=box)))
    expected = []
    for space in (CONTINUOUS, unbounded):
        policy.check(None, space)
        expected.append(policy.act(OBSERVATIONS))
    np.testing.assert_allclose(*expected)
    policy = load_policy(str(save_sb3(tmp_path / "model.zip", weights, 3, None)))
    with pytest.raises(EvaluationError, match="--env"):
        policy.check(None, unbounded)


def test_gaussian_actions_are_clipped(tmp_path):
    weights = mlp_weights({"mlp_extractor.policy_net.0": (3, 8), "action_net": (8, 1)})
    weights["log_std"] = torch.full((1,), 0.5, dtype=torch.float32)
    policy = load_policy(str(save_sb3(tmp_path / "ppo.zip", weights, 3, None)), stochastic=True)
    policy.check(None, CONTINUOUS)
    mean = linear(weights, "action_net", np.tanh(linear(weights, "mlp_extractor.policy_net.0", OBSERVATIONS)))
    actions = np.array([policy.act(OBSERVATIONS) for _ in range(2000)])
    assert actions.min() >= -2 and actions.max() <= 4
    noise = np.random.default_rng(1).normal(size=(200_000, 1, 1)) * np.exp(0.5)
    expected = np.clip(mean + noise, -2, 4).mean(0)
    np.testing.assert_allclose(actions.mean(0), expected, atol=0.25)


@pytest.mark.parametrize(
    "more", [dict(use_sde=True), dict(policy_kwargs={"features_extractor_class": "x"})], ids=["gSDE", "extractor"]
)
def test_what_is_not_understood_needs_the_flag(tmp_path, more):
    weights = mlp_weights({"mlp_extractor.policy_net.0": (3, 8), "action_net": (8, 2)})
    with pytest.raises(EvaluationError, match="--trust-pickle"):
        load_policy(str(save_sb3(tmp_path / "ppo.zip", weights, 3, 2, **more)))


def export(path: Path, batch: bool = True) -> torch.nn.Module:
    module = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).float()
    shapes = ({0: torch.export.Dim("m")},) if batch else None
    example = torch.zeros(2 if batch else 1, 3, dtype=torch.float32)
    torch.export.save(torch.export.export(module, (example,), dynamic_shapes=shapes), path)
    return module


@pytest.mark.parametrize("batch", [True, False], ids=["batches", "one by one"])
def test_exported(tmp_path, batch):
    module = export(tmp_path / "policy.pt2", batch)
    policy = load_policy(str(tmp_path / "policy.pt2"))
    policy.check(None, DISCRETE)
    for _ in range(2):  # the first call finds out how large batches may be
        expected = module(torch.as_tensor(OBSERVATIONS)).argmax(-1)
        assert policy.act(OBSERVATIONS).tolist() == expected.tolist()


def edited(path: Path, part: str, old: str, new: str) -> Path:
    """A copy of an archive in which text of one member is replaced."""
    copy = path.with_name(f"edited.{path.name}")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(copy, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if part in name:
                assert old.encode() in content
                content = content.replace(old.encode(), new.encode())
            target.writestr(name, content)
    return copy


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [
        ("models/model.json", "torch.ops.aten.tanh.default", "torch.serialization.os.system"),
        ("weights_config.json", '"use_pickle": false', '"use_pickle": true'),
    ],
)
def test_exported_code_is_refused(tmp_path, part, old, new):
    export(tmp_path / "policy.pt2")
    with pytest.raises(EvaluationError, match="--trust-pickle"):
        load_policy(str(edited(tmp_path / "policy.pt2", part, old, new)))


def ambiguous(path: Path, way: str) -> Path:
    """An archive in which torch finds another graph, with a function that is not an operator, than zipfile does."""
    harmful = edited(path, "models/model.json", "torch.ops.aten.tanh.default", "torch.serialization.os.getcwd")
    copy = path.with_name(f"ambiguous.{path.name}")
    if way == "two archives":
        copy.write_bytes(harmful.read_bytes() + path.read_bytes())
        return copy
    with (
        zipfile.ZipFile(path) as source,
        zipfile.ZipFile(harmful) as other,
        zipfile.ZipFile(copy, "w") as target,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of a name that is there already
        for name in source.namelist():
            if name.endswith("models/model.json"):
                first = name if way == "two members" else name.replace("model.json", "MODEL.JSON")
                target.writestr(first, other.read(name))
            target.writestr(name, source.read(name))
    return copy


@pytest.mark.parametrize("way", ["two archives", "two members", "upper case"])
def test_what_was_checked_of_an_exported_file_is_what_is_loaded(tmp_path, way):
    module = export(tmp_path / "policy.pt2")
    path = str(ambiguous(tmp_path / "policy.pt2", way))
    if way == "upper case":
        with pytest.raises(EvaluationError, match=r"truncated or not a file of torch\.export"):
            load_policy(path)
        return
    policy = load_policy(path)
    policy.check(None, DISCRETE)
    assert policy.act(OBSERVATIONS).tolist() == module(torch.as_tensor(OBSERVATIONS)).argmax(-1).tolist()


def test_deeply_nested_exported_files_are_refused(tmp_path):
    export(tmp_path / "policy.pt2")
    with pytest.raises(EvaluationError, match=r"not a file of torch\.export"):
        load_policy(str(edited(tmp_path / "policy.pt2", "models/model.json", "{", "[" * 100_000 + "{")))


class Harmful:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_pickles_in_exported_files_are_not_read(tmp_path):
    path, proof = tmp_path / "policy.pt2", tmp_path / "proof"
    export(path)
    copy = tmp_path / "harmful.pt2"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(copy, "w") as target:
        for name in source.namelist():
            harmful = name.endswith("sample_inputs/model.pt")
            target.writestr(name, pickle.dumps(Harmful(proof)) if harmful else source.read(name))
    with pytest.raises(EvaluationError, match=r"trust-pickle|not a file"):
        load_policy(str(copy))
    assert not proof.exists()


def test_pickles_need_the_flag(tmp_path):
    path, proof = tmp_path / "policy.pt", tmp_path / "proof"
    torch.save(Harmful(proof), path)
    with pytest.raises(EvaluationError, match=r"runs code.*--trust-pickle"):
        load_policy(str(path))
    assert not proof.exists()
    torch.save(torch.nn.Linear(3, 2).float(), path)
    policy = load_policy(str(path), trust_pickle=True)
    policy.check(None, DISCRETE)
    assert policy.act(OBSERVATIONS).shape == (7,)


def test_functions():
    policy = load_policy(lambda observation: int(observation[0] > 0))
    policy.check(None, DISCRETE)
    assert policy.act(OBSERVATIONS).tolist() == (OBSERVATIONS[:, 0] > 0).astype(int).tolist()
    policy = load_policy("math:floor")
    with pytest.raises(EvaluationError, match="math:floor fails on observations of shape"):
        policy.act(OBSERVATIONS)


@pytest.mark.parametrize("name", ["PPO", "A2C", "DQN", "SAC", "TD3"])
@pytest.mark.parametrize("trust", [False, True], ids=["weights", "pickles"])
def test_stable_baselines3(tmp_path, name, trust):
    sb3 = pytest.importorskip("stable_baselines3")
    import gymnasium

    continuous = name in ("SAC", "TD3")
    environment = "Pendulum-v1" if continuous else "CartPole-v1"
    torch.set_default_dtype(torch.float32)
    model = getattr(sb3, name)("MlpPolicy", environment, device="cpu", seed=0)
    model.save(tmp_path / "model.zip")
    made = gymnasium.make(environment)
    from unstale.evaluation.spaces import action_space

    policy = load_policy(str(tmp_path / "model.zip"), trust_pickle=trust)
    policy.check(made.observation_space, action_space(made.action_space))
    observations = np.random.default_rng(0).normal(size=(9, *made.observation_space.shape)).astype(np.float32)
    expected, _ = model.predict(observations, deterministic=True)
    np.testing.assert_allclose(policy.act(observations), expected, rtol=1e-4, atol=1e-5)
