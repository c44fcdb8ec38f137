"""Experts for Atari games: how games are collected, what the actor learns, and what is said of bad files and names."""

from __future__ import annotations

import builtins
import json
import math
import zipfile

import ale_py
import numpy as np
import pytest
import torch
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import unstale
from unstale_lab import checkpoint
from unstale_lab.atari import expert_training, scoring
from unstale_lab.atari.actor import Actor, Expert, load_expert, save_expert
from unstale_lab.atari.expert_training import train, train_expert
from unstale_lab.atari.games import action_count, check_game, make_games
from unstale_lab.atari.measuring import measured
from unstale_lab.atari.ppo import PPO, Settings, _following, minibatches
from unstale_lab.atari.rollout import REWARDS, Collector, Rollout
from unstale_lab.atari.scoring import evaluate
from unstale_lab.checkpoint import Checkpoint
from unstale_lab.errors import DataError, UserError
from unstale_lab.problems.n_step_returns import n_step_returns

CPU = torch.device("cpu")
TINY = Settings(games=2, rollout=8, minibatch=8, epochs=1, steps=32)


def numbers(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def frames(count: int) -> torch.Tensor:
    return torch.randint(256, (count, 4, 84, 84), dtype=torch.uint8, generator=numbers())


def an_actor(actions: int = 9) -> Actor:
    actor = Actor(actions, numbers())
    torch.nn.init.normal_(actor.policy.bias, generator=numbers(1))
    return actor.requires_grad_(False)


def line_of(error) -> str:
    line = str(error.value)
    assert "\n" not in line
    return line


# ------------------------------------------------------------------------------------------------------------ games


def test_games_of_a_seed_are_the_same_and_others_differ():
    def play(seed: int) -> list[int]:
        games = make_games("ms_pacman", 2, seed, threads=1)
        first, _ = games.reset()
        seen = [games.step(np.full(2, step % 9))[0] for step in range(40)]
        games.close()
        return [int(observation.astype(int).sum()) for observation in [first, *seen]]

    assert play(3) == play(3)
    assert play(3) != play(4)


def test_actions_are_numbered_as_in_the_emulators_minimal_set():
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    emulator = ale_py.ALEInterface()
    emulator.loadROM(roms.get_rom_path("ms_pacman"))
    games = make_games("ms_pacman", 1, seed=0, threads=1)
    assert games.ale.get_action_set() == emulator.getMinimalActionSet()
    assert action_count("ms_pacman") == 9
    games.close()


def test_a_wrong_game_is_answered_with_the_nearest():
    with pytest.raises(UserError) as error:
        check_game("MsPacman")
    assert "unknown game 'MsPacman': did you mean ms_pacman?" in line_of(error)


def test_a_missing_rom_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    with pytest.raises(UserError) as error:
        check_game("ms_pacman")
    assert "cannot use the ROM of ms_pacman" in line_of(error)


def test_without_ale_py_the_extra_is_named(monkeypatch):
    def imports(name, *rest):
        if name == "ale_py":
            raise ImportError(name)
        return plain(name, *rest)

    plain = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", imports)
    with pytest.raises(UserError) as error:
        check_game("ms_pacman")
    assert 'pip install -e . -e "lab[atari]"' in line_of(error)


# ---------------------------------------------------------------------------------------------------------- rollouts


def test_rollouts_are_what_the_same_actions_bring_in_games_of_their_own():
    steps = 230  # until lives are lost
    collector = Collector("ms_pacman", games=3, steps=steps, seed=5, reward="log", device=CPU)
    rollout = collector.collect(Actor(9, numbers()), numbers())
    collector.close()
    assert rollout.ended.any()
    for half, columns in enumerate([slice(0, 1), slice(1, 3)]):
        count = columns.stop - columns.start
        games = AtariVectorEnv(
            "ms_pacman",
            count,
            num_threads=1,
            repeat_action_probability=0.25,
            reward_clipping=False,
            life_loss_info=True,  # lost lives as the emulator tells of them
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
        games.reset(seed=np.random.default_rng(2 * 5 + half).integers(1, 2**31, count))
        observation, _ = games.reset()
        for step in range(steps):
            assert torch.equal(rollout.observation[step, columns], torch.from_numpy(observation))
            observation, score, ended, _, _ = games.step(rollout.action[step, columns].numpy())
            assert rollout.reward[step, columns].tolist() == pytest.approx(np.log2(1 + score / 10).tolist(), rel=1e-6)
            assert rollout.ended[step, columns].tolist() == ended.tolist()
        games.close()


def test_a_rollout_holds_what_the_actor_thought():
    actor = an_actor()
    collector = Collector("ms_pacman", games=2, steps=3, seed=0, reward="sign", device=CPU)
    rollout = collector.collect(actor, numbers())
    collector.close()
    logits, value = actor(rollout.observation.flatten(0, 1))
    torch.testing.assert_close(rollout.value.flatten(), value, rtol=1e-4, atol=1e-4)
    log_probs = logits[:6].log_softmax(-1).gather(-1, rollout.action.reshape(-1, 1)).squeeze(-1)
    torch.testing.assert_close(rollout.log_prob.flatten(), log_probs, rtol=1e-4, atol=1e-4)


def test_rewards():
    score = np.array([0, 10, 200, 1600, -30])
    assert REWARDS["log"](score).tolist() == pytest.approx([0, 1, math.log2(21), math.log2(161), -2])
    assert REWARDS["sign"](score).tolist() == [0, 1, 1, 1, -1]


# ---------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("n", [1, 3, 20])
def test_n_step_parts_make_the_librarys_targets(n):
    reward, value = torch.randn(7, 4, generator=numbers()), torch.randn(8, 4, generator=numbers(1))
    ended = torch.rand(7, 4, generator=numbers(2)) < 0.3
    total, discount, steps = n_step_returns(reward, ended, torch.zeros_like(ended), 0.9, n)
    expected = unstale.targets.n_step(reward, value[1:], ended, torch.zeros_like(ended), 0.9, n)
    following = value.flatten()[_following(steps)].reshape(7, 4)
    torch.testing.assert_close(total + discount * following, expected)


@pytest.mark.parametrize("n", [1, 2, 3, 20])
def test_n_step_parts_of_truncated_episodes_make_the_librarys_targets(n):
    """The value after the last step of an episode is that of its final state."""
    reward, value = (torch.randn(9, generator=numbers(seed), dtype=torch.float64) for seed in (0, 1))
    terminated, truncated = (torch.rand(9, generator=numbers(seed)) < 0.3 for seed in (2, 4))
    total, discount, steps = n_step_returns(reward, terminated, truncated, 0.9, n)
    assert terminated.any() and (truncated & ~terminated).any() and steps.min() == 1
    expected = unstale.targets.n_step(reward, value, terminated, truncated, 0.9, n)
    torch.testing.assert_close(total + discount * value[torch.arange(9) + steps - 1], expected)


def rewarded_for_action(action: int, ppo: PPO) -> Rollout:
    """Steps that all end at once, with a reward of 1 for one action and 0 for the others."""
    steps, games = ppo.settings.rollout, ppo.settings.games
    observation = frames((steps + 1) * games).unflatten(0, (steps + 1, games))
    taken = torch.arange(steps * games).reshape(steps, games) % 9
    with torch.no_grad():
        logits, value = ppo.actor(observation.flatten(0, 1))
    log_prob = logits[: steps * games].log_softmax(-1).gather(-1, taken.reshape(-1, 1)).reshape(steps, games)
    ended = torch.ones(steps, games, dtype=torch.bool)
    return Rollout(observation, value.reshape(steps + 1, games), taken, log_prob, (taken == action).float(), ended)


def test_the_rewarded_action_becomes_likelier_and_values_come_nearer_the_returns():
    ppo = PPO(Settings(games=9, rollout=4, minibatch=36, epochs=12, lr=1e-3))
    rollout = rewarded_for_action(2, ppo)
    ppo.learn(rollout)
    with torch.no_grad():
        logits, value = ppo.actor(rollout.observation[:-1].flatten(0, 1))
    assert (logits.softmax(-1).mean(0).argmax(-1) == 2).all()
    returns = rollout.reward.flatten()
    assert (value - returns).square().mean() < (rollout.value[:-1].flatten() - returns).square().mean() / 2


def test_a_seed_makes_the_same_actor_again():
    runs = [train(settings) for settings in (TINY, TINY, Settings(**{**vars(TINY), "seed": 1}))]
    prints = [Expert("ms_pacman", run.actor).fingerprint() for run in runs]
    assert prints[0] == prints[1] != prints[2]
    assert [row.steps for row in runs[0].curve] == [16, 32]
    assert runs[0].curve[-1].done == 1


def test_the_clock_ends_a_run_and_fades_its_learning_rate():
    ppo = PPO(Settings(games=2, rollout=8, minibatch=16, epochs=1, minutes=0.5))
    run = ppo.run()
    next(run)
    ppo.seconds = 20.0
    next(run)
    assert ppo.optimizer.param_groups[0]["lr"] == pytest.approx(5e-4 / 3)
    ppo.seconds = 30.0
    assert list(run) == []


def test_a_run_that_the_clock_ends_is_measured_to_its_end():
    # So long that no machine spends it before ``learn_to_the_end`` does.
    settings = Settings(games=2, rollout=8, minibatch=16, epochs=1, minutes=1e6)
    ppo = PPO(settings)
    points = measured(ppo, every=2)
    assert next(points).steps == 32
    learn = ppo.learn

    def learn_to_the_end(rollout):
        learn(rollout)
        ppo.seconds += 6e7

    ppo.learn = learn_to_the_end
    assert [point.steps for point in points] == [48]
    ended = PPO(settings)
    ended.seconds = 6e7
    assert list(measured(ended, every=2)) == []


@pytest.mark.parametrize("correction", ["window", "diagonal", "none"])
def test_a_corrected_critic_tells_of_its_drift(correction):
    ppo = PPO(Settings(games=2, rollout=8, minibatch=8, epochs=1, steps=32, n_step=5, correction=correction))
    (_, point) = measured(ppo, every=1)
    assert point.steps == 32 and point.drift > 0
    assert abs(point.agreement) <= 1 + 1e-5 and abs(point.stale_agreement) <= 1 + 1e-5  # cosines, to rounding
    assert (point.staleness > 0) == (correction != "none")
    assert 0 <= point.bounded_share <= 1


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"game": "ms_pacmen"}, "did you mean ms_pacman?"),
        ({"reward": "sing"}, "did you mean sign?"),
        ({"games": 0}, "games must be at least 1"),
        ({"minutes": 0.0}, "minutes must be more than 0"),
        ({"minibatch": 100}, "are not divisible by the minibatch size 100"),
        ({"correction": "window"}, "set n_step"),
    ],
)
def test_settings_that_cannot_be_run_are_refused(wrong, why):
    with pytest.raises(UserError) as error:
        PPO(Settings(**wrong))
    assert why in line_of(error)


# ------------------------------------------------------------------------------------------------------- checkpoints


def test_a_run_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    class Interrupted(Exception):
        pass

    def interrupt(progress):
        if progress.steps == 32:
            raise Interrupted

    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    settings, kept = Settings(**{**vars(TINY), "steps": 48}), Checkpoint(tmp_path / "run.checkpoint")
    with pytest.raises(Interrupted):
        train(settings, progress=interrupt, checkpoint=kept)
    seen = []
    ppo = train(settings, progress=seen.append, checkpoint=kept)
    assert [row.steps for row in seen] == [32, 48]
    assert [row.steps for row in ppo.curve] == [16, 32, 48]
    assert ppo.optimizer.state_of("group 0")["step"] == 6
    again = train(settings, progress=seen.append, checkpoint=kept)  # there is nothing left to do
    assert (
        len(seen) == 2
        and Expert("ms_pacman", again.actor).fingerprint() == Expert("ms_pacman", ppo.actor).fingerprint()
    )


def test_a_run_that_is_stopped_by_hand_is_kept(tmp_path):
    def stop(progress):
        raise KeyboardInterrupt

    kept, seen = Checkpoint(tmp_path / "run.checkpoint"), []
    with pytest.raises(KeyboardInterrupt):
        train(TINY, progress=stop, checkpoint=kept)
    train(TINY, progress=seen.append, checkpoint=kept)
    assert [row.steps for row in seen] == [32]


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    kept = Checkpoint(tmp_path / "run.checkpoint")
    train(TINY, checkpoint=kept)
    with pytest.raises(UserError) as error:
        train(Settings(**{**vars(TINY), "seed": 1}), checkpoint=kept)
    assert "other settings" in line_of(error)


def test_a_run_starts_over_if_its_checkpoint_is_damaged(tmp_path):
    warned, seen = [], []
    kept = Checkpoint(tmp_path / "run.checkpoint", warned.append)
    train(TINY, checkpoint=kept)
    kept.path.write_bytes(kept.path.read_bytes()[:1000])
    train(TINY, progress=seen.append, checkpoint=kept)
    assert [row.steps for row in seen] == [16, 32]
    assert len(warned) == 1 and "starts over" in warned[0] and "\n" not in warned[0]


# ----------------------------------------------------------------------------------------------------------- experts


class ThreeGames:
    """Game k is over after k + 1 steps, again and again; every step scores 10."""

    def reset(self):
        self.step_number = 0
        return np.zeros((3, 4, 84, 84), dtype=np.uint8), {}

    def step(self, actions):
        self.step_number += 1
        over = self.step_number % np.arange(1, 4) == 0
        return self.reset_frames(), np.full(3, 10), over, np.zeros(3, dtype=bool), {}

    def reset_frames(self):
        return np.zeros((3, 4, 84, 84), dtype=np.uint8)

    def close(self):
        pass


def test_an_evaluation_counts_one_game_of_each_environment(monkeypatch):
    monkeypatch.setattr(scoring, "make_games", lambda game, count, seed: ThreeGames())
    assert evaluate(Expert("ms_pacman", an_actor()), games=3) == [10, 20, 30]


def test_an_expert_takes_the_best_action_but_for_epsilon():
    actor, seen = an_actor(), frames(64)
    best = actor(seen)[0].argmax(-1)
    assert torch.equal(Expert("ms_pacman", actor, epsilon=0.0, greedy=True).act(seen, numbers()), best)
    greedy = Expert("ms_pacman", actor, epsilon=0.5, greedy=True)
    shares = torch.stack([greedy.act(seen, numbers(seed)) == best for seed in range(8)])
    assert shares.float().mean().item() == pytest.approx(0.5 + 0.5 / 9, abs=0.08)


def test_the_command_of_an_expert_trains_it_again():
    assert expert_training.command(Settings()) == "unstale-lab data expert ms_pacman"
    settings = Settings(steps=20_000_000, minutes=7.5)
    assert expert_training.command(settings, "cuda") == (
        "unstale-lab data expert ms_pacman --steps 20000000 --minutes 7.5 --device cuda"
    )


def test_an_expert_is_trained_scored_kept_and_plays_on_as_it_did(tmp_path):
    path = tmp_path / "expert.safetensors"
    settings = Settings(games=4, rollout=64, minibatch=256, epochs=1, steps=2560, seed=2)
    seen = []
    about = train_expert(settings, path, progress=seen.append, episodes=1)
    assert about["command"] == "unstale-lab data expert ms_pacman --seed 2 --steps 2560"
    assert about["steps"] == "2560" and json.loads(about["settings"])["rollout"] == 64
    assert [file.name for file in tmp_path.iterdir()] == [path.name]  # and no checkpoint
    with safe_open(path, "pt") as file:
        assert file.metadata().items() >= {**about, "game": "ms_pacman"}.items()
        curve = file.get_tensor("curve")
    assert curve.tolist() == [list(row[:3]) for row in seen if not math.isnan(row.score)]
    assert curve[-1, 0] == 2560 and 60 <= curve[-1, 2] <= 2000
    expert = load_expert(path)
    assert f"{np.mean(evaluate(expert, 1, seed=2)):.1f}" == about["score"]
    further = Settings(**{**vars(TINY), "begin_with": str(path)})
    assert expert.fingerprint() == PPO(further).policy().fingerprint()  # before its first step
    about_further = train_expert(further, tmp_path / "further.safetensors", episodes=1)
    assert f"--begin-with {path}" in about_further["command"]
    assert {name: about_further[f"before_{name}"] for name in ("command", "steps", "score")} == {
        name: about[name] for name in ("command", "steps", "score")
    }


def test_actor_and_critic_have_the_gradients_of_two_passes_in_one():
    """The plain one is the sum of what the library's backward and the policy's give."""
    rollout = Collector("ms_pacman", 2, 8, 0, "log", CPU).collect(an_actor(), numbers())
    found = []
    for correction in ("none", "diagonal"):
        ppo = PPO(Settings(**{**vars(TINY), "correction": correction, "n_step": 2}))
        [batch, *_] = minibatches(rollout, ppo.settings, numbers())
        ppo._backward(batch, entropy_weight=0.01)
        found.append([p.grad for p in ppo.actor.parameters()])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def saved(path, **changes):
    """An expert's file, some of its tensors replaced or, where None, left out."""
    save_expert(path, Expert("ms_pacman", an_actor()), torch.zeros(0, 3), {})
    tensors = {name: tensor for name, tensor in {**load_file(path), **changes}.items() if tensor is not None}
    save_file(tensors, path, metadata={"game": "ms_pacman"})
    return path


def test_files_keep_experts_as_they_are(tmp_path):
    expert = Expert("ms_pacman", an_actor()).rounded()
    loaded = load_expert(saved(tmp_path / "expert.safetensors"))
    assert loaded.fingerprint() == expert.fingerprint()
    assert torch.equal(loaded.act(frames(5), numbers()), expert.act(frames(5), numbers()))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"policy.bias": None}, "instead of"),
        ({"policy.weight": torch.zeros(6, 512)}, "the shape of policy.weight is [6, 512], not [9, 512]"),
        ({"value.bias": torch.tensor([math.nan])}, "not finite"),
    ],
)
def test_a_foreign_expert_is_refused(tmp_path, changes, why):
    with pytest.raises(DataError) as error:
        load_expert(saved(tmp_path / "expert.safetensors", **changes))
    assert why in line_of(error) and "unstale-lab data expert ms_pacman" in line_of(error)


def test_a_broken_a_missing_and_another_games_expert_are_refused(tmp_path):
    path = saved(tmp_path / "expert.safetensors")
    with pytest.raises(DataError) as error:
        load_expert(path, game="pong")
    assert "it plays ms_pacman, not pong" in line_of(error)
    path.write_bytes(path.read_bytes()[:-1000])
    for bad in (path, tmp_path / "none.safetensors", tmp_path / "none.zip"):
        with pytest.raises(DataError) as error:
            load_expert(bad)
        assert str(bad) in line_of(error)


# Their names of our layers, as Stable-Baselines3 2 saves them.
NAMES = {
    "ppo": {
        "trunk.0": "features_extractor.cnn.0",
        "trunk.2": "features_extractor.cnn.2",
        "trunk.4": "features_extractor.cnn.4",
        "trunk.7": "features_extractor.linear.0",
        "policy": "action_net",
        "value": "value_net",
    },
    "dqn": {
        "trunk.0": "q_net.features_extractor.cnn.0",
        "trunk.2": "q_net.features_extractor.cnn.2",
        "trunk.4": "q_net.features_extractor.cnn.4",
        "trunk.7": "q_net.features_extractor.linear.0",
        "policy": "q_net.q_net.0",
    },
}


def sb3_zip(path, policy: object):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", "{}")
        with archive.open("policy.pth", "w") as file:
            torch.save(policy, file)
    return path


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_stable_baselines3_experts_act_as_their_networks_do(tmp_path, kind):
    actor = an_actor()
    weights = {
        f"{theirs}.{part}": actor.state_dict()[f"{ours}.{part}"]
        for ours, theirs in NAMES[kind].items()
        for part in ("weight", "bias")
    }
    copies = {f"q_net_target.{name}" if kind == "dqn" else f"pi_{name}": torch.zeros(1) for name in weights}
    expert = load_expert(sb3_zip(tmp_path / "expert.zip", {**weights, **copies}))
    own = Expert("ms_pacman", actor, greedy=kind == "dqn")
    assert torch.equal(expert.act(frames(7), numbers()), own.act(frames(7), numbers()))


def test_other_zips_are_refused(tmp_path):
    plain = tmp_path / "plain.zip"
    with zipfile.ZipFile(plain, "w") as archive:
        archive.writestr("readme", "nothing")
    text = tmp_path / "text.zip"
    text.write_text("no archive")
    pickled = tmp_path / "pickled.zip"
    with zipfile.ZipFile(pickled, "w") as archive:
        archive.writestr("policy.pth", b"\x80\x02garbage")
    other = sb3_zip(tmp_path / "mlp.zip", {"mlp_extractor.policy_net.0.weight": torch.zeros(1)})
    for path, why in ((plain, "policy.pth"), (text, "zip"), (pickled, "not a model"), (other, "CnnPolicy")):
        with pytest.raises(DataError) as error:
            load_expert(path)
        assert why in line_of(error)
