"""Games that are saved, restored, recorded and continued, with the real emulator."""

import inspect
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ale_py.vector_env import AtariVectorEnv
from atari_samples import AtRandom, ByBrightness

from unstale_lab import data_commands
from unstale_lab.atari import dataset
from unstale_lab.atari.dataset import make_dataset
from unstale_lab.atari.emulator import Emulator
from unstale_lab.atari.tape import TENSORS, Tape, record
from unstale_lab.atari.truth import Truth, continuations
from unstale_lab.errors import DataError, UserError

GAME = "ms_pacman"


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def tape():
    """Two whole episodes, or three; nobody changes it."""
    emulators = [Emulator(GAME, 1), Emulator(GAME, 2)]
    return record(emulators, AtRandom(), 600, seeded(0), save_every=50, about={"game": GAME})


def play(emulator, actions):
    """Everything there is to see."""
    seen = [emulator.observation]
    steps = []
    for action in actions:
        steps.append(emulator.step(action))
        seen.append(emulator.observation)
    return np.stack(seen), steps


# The emulator.


def test_frames_match_the_vector_environment():
    games = AtariVectorEnv(GAME, 1, repeat_action_probability=0.0, noop_max=1, reward_clipping=False, num_threads=1)
    theirs, _ = games.reset(seed=0)
    emulator = Emulator(GAME, 0, sticky=0.0, max_no_ops=1)
    assert (emulator.observation[:3] == 0).all() and emulator.observation[3].any()
    differing = 0
    for action in np.random.default_rng(0).integers(9, size=400):
        difference = np.abs(emulator.observation.astype(int) - theirs[0])
        assert difference.max() <= 1
        differing += np.count_nonzero(difference)
        reward, terminated, truncated = emulator.step(int(action))
        theirs, their_reward, their_end, _, _ = games.step(np.array([action]))
        assert (reward, terminated, truncated) == (their_reward[0], their_end[0], False)
    games.close()
    assert differing < 400 * theirs.size / 10_000


def test_actions_stick_as_often_as_they_should():
    """Were it otherwise, the recordings would be of another game than the one the expert was trained on."""

    class Spy:
        def __init__(self, ale):
            self.ale, self.acted = ale, []

        def __getattr__(self, name):
            return getattr(self.ale, name)

        def act(self, action):
            self.acted.append(action)
            return self.ale.act(action)

    emulator = Emulator(GAME, 0)
    emulator._ale = spy = Spy(emulator._ale)
    for step in range(2000):
        emulator.step(1 + step % 2)
    up, right = 2, 3  # ale-py's own numbers of actions 1 and 2
    wanted = [up, right] * 1000
    stuck = np.array(spy.acted).reshape(-1, 4) != np.array(wanted)[:, None]
    assert np.allclose(stuck.mean(0), [0.25, 0.25**2, 0.25**3, 0.25**4], atol=0.04)


def test_a_seed_decides_everything():
    actions = np.random.default_rng(0).integers(9, size=100).tolist()
    (one, _), (same, _), (other, _) = (play(Emulator(GAME, seed), actions) for seed in (7, 7, 8))
    assert (one == same).all() and (one != other).any()


def test_a_restored_game_goes_on_as_it_did_with_the_same_random_numbers_and_otherwise_with_others():
    emulator = Emulator(GAME, 3)
    play(emulator, [3] * 90)
    state = emulator.save()
    actions = np.random.default_rng(0).integers(9, size=80).tolist()

    def continued(emulator, seed=None):
        emulator.restore(state)
        if seed is not None:
            emulator.seed(seed)
        return play(emulator, actions)

    elsewhere = Emulator(GAME, 4)
    play(elsewhere, [1] * 30)
    elsewhere.restore(state)
    assert elsewhere.save()[:2] == state[:2]  # the action that may stick is part of it
    (seen, steps), (again, same_steps) = continued(emulator, seed=5), continued(elsewhere, seed=5)
    assert (seen == again).all() and steps == same_steps
    assert (continued(emulator)[0] != seen).any()


# The tape.


def test_the_tape_shows_what_the_policy_saw():
    class Remembering(AtRandom):
        def __init__(self):
            self.saw, self.did = [], []

        def act(self, observations, numbers):
            actions = super().act(observations, numbers)
            self.saw.append(observations.clone())
            self.did.append(actions)
            return actions

    policy = Remembering()
    tape = record([Emulator(GAME, 1)], policy, 1200, seeded(0))  # more than one episode, one after the other
    assert len(tape) >= 1200 and len(tape.scores()) >= 2
    assert torch.equal(tape.observations(torch.arange(len(tape))), torch.cat(policy.saw))
    assert torch.equal(tape.action, torch.cat(policy.did))
    assert len(tape.frames) == 1 + len(tape) + len(tape.scores())  # a blank one, and one more than actions an episode
    assert tape.reward.sum() == tape.scores().sum() > 0


def test_games_side_by_side_are_kept_in_the_order_in_which_they_began(tape):
    episodes = tape.first.unique_consecutive()
    ends = tape.terminated.nonzero()[:, 0]
    assert len(episodes) == len(ends) == len(tape.scores()) >= 2
    assert len(tape) == ends[-1] + 1 and len(tape) >= 600
    assert ends[-2] + 1 < 600  # not one episode more than asked for
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1] + 1])
    for start, first in zip(starts, episodes, strict=True):
        blanks, newest = tape.observations(start)[:3], tape.observations(start)[3]
        assert not blanks.any() and torch.equal(newest, tape.frames[first])


def test_sarsa_and_returns_follow_their_definitions():
    """Episodes of 4 (terminated), 3 (truncated) and 3 actions (the end of the recording), against plain loops."""
    lengths, n_step, gamma = [4, 3, 3], 2, 0.9
    first = torch.tensor([1, 6, 10]).repeat_interleave(torch.tensor(lengths))
    newest = torch.tensor([1, 2, 3, 4, 6, 7, 8, 10, 11, 12])
    reward = torch.tensor([10.0, 0, -50, 200, 10, 10, 0, 0, 10, 10])
    terminated, truncated = torch.zeros(10, dtype=torch.bool), torch.zeros(10, dtype=torch.bool)
    terminated[3] = truncated[6] = True
    nothing = torch.empty(0, dtype=torch.int64)
    frames = torch.zeros(14, 84, 84, dtype=torch.uint8)
    action = torch.arange(10)
    tape = Tape(frames, newest, first, action, reward, terminated, truncated, nothing, frames[:0], nothing)

    g = gamma
    expected = [  # state, reward, discount, next state
        (0, 1 + g * 0, g * g, 2),
        (1, 0 - g, g * g, 3),
        (2, -1 + g, 0, 2),
        (3, 1, 0, 3),
        (4, 1 + g, g * g, 6),
        (7, 0 + g, g * g, 9),
    ]
    sarsa = tape.sarsa(n_step, gamma)
    state, rewards, discount, next_state = (torch.tensor(column) for column in zip(*expected, strict=True))
    assert torch.equal(sarsa.state, state) and torch.equal(sarsa.next_state, next_state)
    assert torch.equal(sarsa.action, action[state]) and torch.equal(sarsa.next_action, action[next_state])
    assert torch.allclose(sarsa.reward.double(), rewards.double(), atol=1e-6)
    assert torch.allclose(sarsa.discount.double(), discount.double(), atol=1e-6)

    returns = tape.returns(gamma)
    assert returns[4:].isnan().all()
    assert torch.allclose(returns[:4], torch.tensor([1 - g**2 + g**3, -g + g**2, -1 + g, 1.0]))


def test_a_tape_is_read_as_it_was_written(tape, tmp_path):
    tape.save(tmp_path / "a.tape")
    read = Tape.load(tmp_path / "a.tape")
    assert all(torch.equal(getattr(read, name), getattr(tape, name)) for name in TENSORS)
    assert read.about == tape.about and read.fingerprint() == tape.fingerprint()
    assert (tmp_path / "a.tape").stat().st_size < 400 * len(tape)
    without_states = replace(tape, saved=tape.saved[:0], machines=tape.machines[:0], held=tape.held[:0])
    without_states.save(tmp_path / "b.tape")
    assert len(Tape.load(tmp_path / "b.tape").machines) == 0


@pytest.mark.parametrize("harm", ["missing", "cut", "rotten", "another game"])
def test_a_tape_that_cannot_be_used_is_refused_in_one_line(tape, tmp_path, harm):
    path = tmp_path / "train.tape"
    replace(tape, about={"game": "pong" if harm == "another game" else GAME}).save(path)
    data = bytearray(path.read_bytes())
    if harm == "missing":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(data[:-100])
    elif harm == "rotten":
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    with pytest.raises(DataError) as refusal:
        Tape.load(path)
    message = str(refusal.value)
    assert "\n" not in message and "train.tape" in message and "`unstale-lab data atari ms_pacman`" in message


# True values.


def literal_return(state, action, gamma, limit):
    """By a policy without luck in a game without luck: there is only one."""
    emulator = Emulator(GAME, 0, sticky=0.0)
    emulator.restore(state)
    total, policy = 0.0, ByBrightness()
    for step in range(limit):
        reward, terminated, _ = emulator.step(action)
        total += gamma**step * np.sign(reward)
        if terminated:
            break
        action = int(policy.act(torch.from_numpy(emulator.observation)[None], None))
    return total


def test_continuations_are_returns_from_the_saved_state(tape, monkeypatch):
    monkeypatch.setattr("unstale_lab.atari.truth.Emulator", lambda game, seed: Emulator(game, seed, sticky=0.0))
    chosen = [0, 3, len(tape.saved) - 1]  # the last one's game ends soon
    states = [tape.state(number) for number in chosen]
    returns = continuations(GAME, ByBrightness(), states, [1, 2, 3], count=2, gamma=0.9, limit=70)
    expected = [literal_return(state, action, 0.9, 70) for state, action in zip(states, [1, 2, 3], strict=True)]
    assert torch.allclose(returns, torch.tensor(expected, dtype=torch.float32)[:, None].expand(3, 2))
    assert len(set(expected)) > 1


def test_continuations_differ_and_do_not_depend_on_processes_nor_on_being_broken_off(tape, tmp_path):
    states = [tape.state(number) for number in range(5)]
    actions = tape.action[tape.saved[:5]].tolist()
    settings = {"count": 3, "limit": 60, "seed": 4}
    returns = continuations(GAME, AtRandom(), states, actions, **settings)
    assert returns.isfinite().all() and (returns.std(1) > 0).any()

    class Killed(Exception):
        pass

    def die_after_some(done, total):
        assert total == 5
        if done >= 2:
            raise Killed

    with pytest.raises(Killed):
        continuations(GAME, AtRandom(), states, actions, **settings, keep=tmp_path, progress=die_after_some)
    kept = list(tmp_path.iterdir())
    assert len(kept) == 1
    before = kept[0].stat().st_mtime_ns
    again = continuations(GAME, AtRandom(), states, actions, **settings, keep=tmp_path, jobs=2)
    assert torch.equal(again, returns)
    assert kept[0].stat().st_mtime_ns == before and len(list(tmp_path.iterdir())) == 3
    # What was kept for other settings is not taken for these.
    other = continuations(GAME, AtRandom(), states[:2], actions[:2], count=3, limit=2, seed=4, keep=tmp_path)
    assert (other.abs() <= 1.99).all()


# All of it.


def test_make_data_makes_what_is_missing_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "PARALLEL_GAMES", 2)
    settings = {"transitions": 500, "test": 300, "states": 6, "count": 2, "limit": 20, "jobs": 1}
    heard = []
    about = make_dataset(GAME, AtRandom(), tmp_path, **settings, progress=lambda *report: heard.append(report))
    assert heard[-1] == ("truth.safetensors", 6, 6) and ("train.tape", 500, 500) in heard
    assert int(about["train_transitions"]) >= 500 and about["states"] == "6" and about["expert"] == "at random"
    train, test = Tape.load(tmp_path / "train.tape"), Tape.load(tmp_path / "test.tape")
    truth = Truth.load(tmp_path / "truth.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test.tape", "train.tape", "truth.safetensors"]
    assert not torch.equal(train.action[:100], test.action[:100])
    assert {file.about["command"] for file in (train, test, truth)} == {
        "unstale-lab data atari ms_pacman --transitions 500 --test 300 --states 6 --continuations 2"
    }
    assert len(truth.index.unique()) == 6 and truth.index.max() > len(test) / 2
    assert torch.allclose(truth.mean, truth.returns.mean(1))
    assert torch.allclose(truth.standard_error, (truth.returns[:, 0] - truth.returns[:, 1]).abs() / 2)

    def written():
        return {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))  # so that a file written again has another time, however coarse the clock
    before = written()
    assert make_dataset(GAME, AtRandom(), tmp_path, **settings) == about and written() == before
    (tmp_path / "truth.safetensors").unlink()  # written over in place, what was read from it would change
    (tmp_path / "truth.safetensors").write_bytes(b"rotten")
    make_dataset(GAME, AtRandom(), tmp_path, **settings)
    assert {name for name, when in written().items() if when != before[name]} == {"truth.safetensors"}
    assert torch.equal(Truth.load(tmp_path / "truth.safetensors").returns, truth.returns)
    before = written()
    make_dataset(GAME, AtRandom(), tmp_path, **settings, expert_file=tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"truth.safetensors exists, and its count is 2, not 3"):
        make_dataset(GAME, AtRandom(), tmp_path, **(settings | {"count": 3}))
    with pytest.raises(UserError, match=r"train.tape exists, and its expert is at random, not by brightness"):
        make_dataset(GAME, ByBrightness(), tmp_path, **settings)
    assert written() == before


def test_the_command_of_data_names_what_is_not_usual():
    assert dataset.command(GAME, None, dataset.DEFAULTS) == "unstale-lab data atari ms_pacman"
    assert dataset.command(GAME, Path("my expert.zip"), dataset.DEFAULTS | {"seed": 3}) == (
        "unstale-lab data atari ms_pacman --expert 'my expert.zip' --seed 3"
    )
    options = inspect.signature(data_commands.data_atari).parameters
    assert {name: options[name].default for name in dataset.DEFAULTS} == dataset.DEFAULTS


def test_values_that_are_discounted_otherwise_are_refused(tmp_path):
    about = {"game": GAME, "gamma": "0.9"}
    Truth.of(torch.zeros(1, dtype=torch.int64), torch.ones(1, 2), about).save(tmp_path / "truth")
    with pytest.raises(DataError, match=r"its values are discounted by 0\.9, not by 0\.99"):
        Truth.load(tmp_path / "truth")
    assert Truth.load(tmp_path / "truth", gamma=0.9).about == about


@pytest.mark.parametrize(
    ("mistake", "named"),
    [
        ({"states": 0}, "states"),
        ({"states": 11}, "states"),
        ({"count": 1}, "continuations"),
        ({"transitions": 0}, "trans"),
    ],
)
def test_settings_that_make_no_sense(tmp_path, mistake, named):
    with pytest.raises(UserError, match=named):
        make_dataset(GAME, AtRandom(), tmp_path, **({"transitions": 10, "test": 10, "states": 1, "count": 2} | mistake))
    assert not list(tmp_path.iterdir())
