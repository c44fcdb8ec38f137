"""n-step Sarsa on games: what a sample is, that it learns, what is measured, and that it goes on where it stopped."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss

import unstale
from unstale_lab.atari import sarsa, scoring
from unstale_lab.atari.games import make_games
from unstale_lab.atari.measuring import measured
from unstale_lab.atari.sarsa import EpsilonGreedy, Games, QNetwork, Rollout, Sarsa, Settings, sarsa_batch
from unstale_lab.atari.scoring import evaluate
from unstale_lab.errors import UserError

SMALL = Settings(games=2, n_step=3, lr=1e-3, correction="none")
CPU = torch.device("cpu")


def numbers(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# ------------------------------------------------------------------------------------------------------- the model


def test_the_small_model_is_the_papers_and_takes_bytes():
    model = QNetwork(actions=9)
    assert sum(p.numel() for p in model.parameters()) == 12_745
    frames = torch.randint(256, (3, 4, 84, 84), dtype=torch.uint8, generator=numbers())
    torch.testing.assert_close(model(frames), model.layers(frames.double() / 255))
    assert model(frames).shape == (3, 9)


def test_a_new_model_sees_the_frames():
    """Its values are of order 1, and not those of its biases, whatever it looks at."""
    torch.manual_seed(0)
    frames = torch.randint(256, (20, 4, 7, 7), dtype=torch.uint8, generator=numbers())
    values = QNetwork(actions=9)(frames.repeat_interleave(12, -1).repeat_interleave(12, -2))
    assert 0.2 < values.std(0).mean() < 2


def test_a_policy_is_greedy_but_for_its_random_share():
    model = QNetwork(actions=4)
    frames = torch.randint(256, (1, 4, 84, 84), dtype=torch.uint8, generator=numbers()).expand(2000, -1, -1, -1)
    best = model(frames[:1]).argmax().item()
    model.forward = lambda frames: QNetwork.forward(model, frames[:1]).expand(len(frames), -1)  # the same, sooner
    assert (EpsilonGreedy("ms_pacman", model, epsilon=0.0).act(frames, numbers()) == best).all()
    others = EpsilonGreedy("ms_pacman", model, epsilon=0.4).act(frames, numbers()) != best
    assert others.double().mean().item() == pytest.approx(0.4 * 3 / 4, abs=0.04)


def test_random_actions_become_fewer_and_stay_so():
    settings = Settings(epsilon=(1.0, 0.2), epsilon_steps=100)
    assert [settings.epsilon_at(steps) for steps in (0, 50, 100, 1000)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


# --------------------------------------------------------------------------------------------------------- samples


def random_rollout(steps: int, games: int, seed: int) -> Rollout:
    rng = numbers(seed)
    return Rollout(
        states=torch.arange((steps + 1) * games).view(steps + 1, games),
        actions=torch.randint(9, (steps + 1, games), generator=rng),
        rewards=torch.randn(steps, games, generator=rng),
        terminated=torch.rand(steps, games, generator=rng) < 0.2,
        truncated=torch.rand(steps, games, generator=rng) < 0.2,
    )


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_samples_look_ahead_to_the_end_of_the_rollout_or_of_the_game(steps):
    """Against a walk from every step, one by one."""
    games, gamma = 50, 0.9
    rollout = random_rollout(steps, games, seed=steps)
    batch = sarsa_batch(rollout, gamma)
    for sample, (t, game) in enumerate((t, game) for t in range(steps) for game in range(games)):
        total, discount, weight = 0.0, 1.0, 1.0
        for ahead in range(t, steps):
            total += discount * rollout.rewards[ahead, game].item()
            discount *= gamma
            if rollout.terminated[ahead, game]:
                discount = 0.0
                break
            if rollout.truncated[ahead, game]:
                weight = 0.0
                break
        assert (batch.state[sample], batch.action[sample]) == (rollout.states[t, game], rollout.actions[t, game])
        assert batch.weight[sample] == weight
        assert batch.reward[sample].item() == pytest.approx(total)
        if weight:
            assert batch.discount[sample].item() == pytest.approx(discount)
        if weight and discount:
            ahead = batch.next_state[sample], batch.next_action[sample]
            assert ahead == (rollout.states[-1, game], rollout.actions[-1, game])


def test_targets_are_the_librarys_n_step_targets():
    rollout = random_rollout(steps=5, games=20, seed=0)
    rollout = rollout._replace(truncated=torch.zeros_like(rollout.truncated))
    table = torch.randn(6 * 20, 9, generator=numbers(1))
    _, target = sarsa.sarsa_values(table.__getitem__, sarsa_batch(rollout, gamma=0.9))
    next_values = table[rollout.states[1:]].gather(-1, rollout.actions[1:, :, None]).squeeze(-1)
    expected = unstale.targets.n_step(
        rollout.rewards, next_values, rollout.terminated, rollout.truncated, gamma=0.9, n=5
    )
    torch.testing.assert_close(target, expected.flatten())


# ----------------------------------------------------------------------------------------------------------- games


@pytest.mark.parametrize("life_ends_episode", [False, True])
def test_rollouts_are_what_the_games_did(life_ends_episode):
    """Played again, action for action, in games of the same seed."""
    settings = replace(SMALL, games=3, n_step=180, life_ends_episode=life_ends_episode)
    policy = EpsilonGreedy("ms_pacman", lambda frames: torch.zeros(len(frames), 9), epsilon=1.0)
    seed = int(torch.randint(2**31, (), generator=numbers(11)))
    played = Games(settings, policy, numbers(11), CPU)
    again = make_games("ms_pacman", 3, seed)
    frames, info = again.reset()
    lives, scores, finished, losses, ends = info["lives"], np.zeros(3), [], 0, 0
    last = None
    for _ in range(4):
        rollout, scored = played.play(policy)
        if last is not None:  # one rollout begins where the last one ended, with the action decided there
            assert torch.equal(rollout.states[0], last.states[-1]) and torch.equal(rollout.actions[0], last.actions[-1])
        last = rollout
        expected = []
        for t in range(settings.n_step):
            assert np.array_equal(rollout.states[t].numpy(), frames)
            frames, rewards, terminated, truncated, info = again.step(rollout.actions[t].numpy())
            lost = info["lives"] < lives
            lives = info["lives"]
            assert np.array_equal(rollout.rewards[t].numpy(), np.sign(rewards))
            assert np.array_equal(rollout.terminated[t].numpy(), terminated | lost if life_ends_episode else terminated)
            assert np.array_equal(rollout.truncated[t].numpy(), truncated)
            scores += rewards
            expected += scores[terminated].tolist()
            scores[terminated] = 0
            losses, ends = losses + lost.sum(), ends + terminated.sum()
        assert scored == expected
        finished += scored
    assert losses > ends > 0 and max(finished) >= 60  # all of it was seen
    played.close()
    again.close()


class OneButton:
    """A made-up game: the right button pays 10, any other nothing, and game i is over after ``lengths[i]`` steps."""

    def __init__(self, lengths: list[int], cut_off: bool = False) -> None:
        self.lengths, self.cut_off, self.time = np.array(lengths), cut_off, np.zeros(len(lengths), dtype=int)

    def _frames(self) -> np.ndarray:
        return np.full((len(self.lengths), 4, 84, 84), 128, dtype=np.uint8)

    def reset(self):
        return self._frames(), {"lives": np.ones(len(self.lengths), dtype=int)}

    def send(self, actions):
        self.rewards = np.where(actions == 2, 10, 0)
        self.time += 1

    def recv(self):
        over = self.time == self.lengths
        self.time[over] = 0
        never = np.zeros_like(over)
        ends = (never, over) if self.cut_off else (over, never)
        return self._frames(), self.rewards, *ends, self.reset()[1]

    def step(self, actions):
        self.send(actions)
        return self.recv()

    def close(self):
        pass


PRESS = SimpleNamespace(game="made up", act=lambda frames, numbers: torch.full((len(frames),), 2))


@pytest.mark.parametrize("moves", [0, 1, 2])
def test_a_player_that_is_interrupted_at_any_move_waits_for_nothing(monkeypatch, moves):
    """Nothing is asked for that was not sent: the emulator would wait for it for ever."""

    class Strict(OneButton):
        sent, closed = 0, False

        def send(self, actions):
            super().send(actions)
            self.sent += 1

        def recv(self):
            assert self.sent == 1
            self.sent = 0
            return super().recv()

        def close(self):
            self.closed = True

    def act(frames, numbers):
        if next(left) == 0:
            raise KeyboardInterrupt
        return PRESS.act(frames, numbers)

    game, left = Strict([5, 5]), iter(range(moves, -1, -1))
    monkeypatch.setattr(sarsa, "make_games", lambda *given: game)
    playing = Games(SMALL, PRESS, numbers(), CPU)
    with pytest.raises(KeyboardInterrupt):
        playing.play(SimpleNamespace(game="made up", act=act))
    playing.close()
    assert game.closed
    whole = Strict([5, 5])
    monkeypatch.setattr(sarsa, "make_games", lambda *given: whole)
    Games(SMALL, PRESS, numbers(), CPU).close()
    assert whole.closed and whole.sent == 0


def test_scores_are_of_single_games(monkeypatch):
    monkeypatch.setattr(sarsa, "make_games", lambda game, count, seed: OneButton([2, 3]))
    _, scores = Games(replace(SMALL, n_step=6), PRESS, numbers(), CPU).play(PRESS)
    assert scores == [20, 30, 20, 20, 30]


def test_each_game_counts_once_however_short(monkeypatch):
    monkeypatch.setattr(scoring, "make_games", lambda game, count, seed: OneButton([2, 7]))
    assert evaluate(PRESS, games=2) == [20, 70]


# -------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("options", [{"correction": "none"}, {"correction": "window", "horizon": 3}], ids=str)
def test_it_learns_which_button_pays(monkeypatch, options):
    for module in (sarsa, scoring):
        monkeypatch.setattr(module, "make_games", lambda game, count, seed: OneButton([3, 11]))
    training = Sarsa(replace(SMALL, steps=240, lr=3e-3, epsilon_steps=150, **options))
    points = list(measured(training, every=20))
    assert [point.steps for point in points] == [120, 240]
    assert evaluate(training.policy(epsilon=0.0), games=2) == [30, 110]
    assert points[-1].score > 1.3 * points[0].score
    # More than the one reward that it brings at once: what follows counts too.
    assert training.model(torch.full((1, 4, 84, 84), 128, dtype=torch.uint8)).max() > 1


def test_nothing_is_learned_from_what_was_cut_off(monkeypatch):
    monkeypatch.setattr(sarsa, "make_games", lambda game, count, seed: OneButton([3, 3], cut_off=True))
    training = Sarsa(SMALL)
    before = weights(training.model)
    next(training.run())
    assert torch.equal(weights(training.model), before)


def test_without_correction_an_update_is_one_of_adam(monkeypatch):
    batches = []
    made = sarsa.sarsa_batch
    monkeypatch.setattr(sarsa, "sarsa_batch", lambda *given: batches.append(made(*given)) or batches[-1])
    training = Sarsa(SMALL)
    model = copy.deepcopy(training.model)
    adam = torch.optim.Adam(model.parameters(), lr=SMALL.lr, betas=SMALL.betas)
    learning = training.run()
    for _ in range(3):
        next(learning)
        value, target = sarsa.sarsa_values(model, batches[-1])
        (0.5 * mse_loss(value, target.detach())).backward()
        adam.step()
        adam.zero_grad()
    learning.close()
    torch.testing.assert_close(weights(training.model), weights(model))


@pytest.mark.parametrize("correction", ["none", "diagonal"])
def test_drift_is_measured_with_and_without_correction(correction):
    training = Sarsa(replace(SMALL, steps=2 * 20 * 6, correction=correction, betas=(0.6, 0.999)))  # remembers 5 updates
    points = list(measured(training, every=10))
    assert [point.steps for point in points] == [60, 120, 180, 240]
    assert [math.isnan(point.drift) for point in points] == [True, False, True, False]  # it is not always watched
    for point in points[1::2]:
        assert point.drift > 0 and math.isnan(point.score)
        assert -1 <= point.stale_agreement < point.agreement <= 1  # the expansion knows better than what is stale
        assert (point.staleness > 0) == (correction == "diagonal") and 0 <= point.bounded_share <= 1
    assert not training.optimizer.watchers


def test_a_run_too_short_for_a_reading_is_watched_whole():
    (point,) = measured(Sarsa(replace(SMALL, steps=6)), every=1)
    assert point.steps == 6 and 0 <= point.drift < math.inf


# ---------------------------------------------------------------------------------------------- stopping and going on


def test_a_run_goes_on_from_where_it_was():
    settings = replace(SMALL, steps=30, correction="diagonal")
    before, after = Sarsa(settings), Sarsa(settings)
    learning = before.run()
    for _ in range(3):
        next(learning)
    learning.close()
    before.scores.append(70.0)
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    assert (after.steps, after.seconds, after.score()) == (18, before.seconds, 70)
    assert torch.equal(weights(after.model), weights(before.model))
    # Both begin new games now, so that from here on they do the same.
    for training in (before, after):
        assert len(list(training.run())) == 2
    assert after.steps == 30 and torch.equal(weights(after.model), weights(before.model))


def test_what_cannot_be_run_is_refused_in_one_line():
    with pytest.raises(UserError, match="did you mean ms_pacman"):
        Sarsa(replace(SMALL, game="mspacman"))
    with pytest.raises(UserError, match="games must be at least 1, not 0"):
        Sarsa(replace(SMALL, games=0))
