"""Experts: how well they play in Gymnasium's environments, how they are trained, and what is said of a bad file."""

from __future__ import annotations

from dataclasses import fields
from functools import partial

import gymnasium
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from unstale_lab import cross_entropy_search
from unstale_lab.cross_entropy_search import TASKS, estimate_values, score, train, train_and_save
from unstale_lab.errors import DataError, UserError
from unstale_lab.problems import REPLAYS, environment, policies, replay
from unstale_lab.problems.policies import Expert, expert_path, load_expert
from unstale_lab.problems.replay import Replay
from unstale_lab.problems.value_file import values_path

TASK = TASKS["cartpole"]


def about(path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return {name: value for name, value in file.metadata().items() if "sha256" not in name}


def tensors(hidden: int = 3) -> dict[str, torch.Tensor]:
    names = [f.name for f in fields(Expert)]
    shapes = policies.shapes(TASK, hidden)
    return {name: torch.randn(shape, dtype=torch.float32) for name, shape in zip(names, shapes, strict=True)}


@pytest.fixture
def quick_training(monkeypatch):
    monkeypatch.setattr(cross_entropy_search, "GENERATIONS", 12)
    monkeypatch.setattr(cross_entropy_search, "POPULATION", 48)
    monkeypatch.setattr(cross_entropy_search, "EPISODES", 4)
    monkeypatch.setattr(cross_entropy_search, "FINAL_EPISODES", 16)
    monkeypatch.setattr(cross_entropy_search, "SCORED_EPISODES", 100)


@pytest.fixture
def few_values(monkeypatch):
    monkeypatch.setattr(environment, "PARALLEL_EPISODES", 8)
    monkeypatch.setattr(replay, "TRANSITIONS", 500)
    monkeypatch.setitem(REPLAYS, "cartpole", partial(Replay, TASK, states=8, rollouts=4))


@pytest.mark.parametrize(
    ("problem", "name", "at_least"), [("acrobot", "Acrobot-v1", -100), ("cartpole", "CartPole-v1", 500)]
)
def test_the_projects_experts_play_well_in_gymnasium(problem, name, at_least):
    task = TASKS[problem]
    expert = load_expert(expert_path(problem), task)
    env = gymnasium.make(name, disable_env_checker=True)
    scores = []
    for seed in range(20 if problem == "acrobot" else 2):
        env.reset(seed=seed)
        total, over, steps = 0.0, False, 0
        while not over:
            state = torch.as_tensor(env.unwrapped.state, dtype=torch.float64)
            if problem == "cartpole":
                state = torch.cat([state, torch.tensor([float(steps)])])
            _, reward, terminated, truncated, _ = env.step(expert(task.observe(state)[None]).item())
            total, over, steps = total + reward, terminated or truncated, steps + 1
        scores.append(total)
    assert sum(scores) / len(scores) >= at_least


@pytest.mark.parametrize("problem", TASKS)
def test_the_projects_experts_say_how_they_were_made_and_what_they_score(problem):
    known = about(expert_path(problem))
    assert known["command"] == f"unstale-lab data expert {problem}"
    found = score(TASKS[problem], load_expert(expert_path(problem), TASKS[problem]), seed=1)
    assert found == pytest.approx(float(known["score"]), rel=0.05)
    assert float(known["score"]) > {"acrobot": -86, "cartpole": 480}[problem]


def test_training_learns(quick_training, monkeypatch):
    """The whole population gets better. The score of the best would not tell: chance alone finds good ones."""
    means, fitness = [], cross_entropy_search._fitness

    def recorded(*arguments):
        found = fitness(*arguments)
        means.append(found.mean().item())
        return found

    monkeypatch.setattr(cross_entropy_search, "_fitness", recorded)
    expert = train("cartpole", seed=1)
    *generations, elite = means
    assert generations[-1] > 3 * generations[0]
    assert score(TASK, expert) > 0.9 * elite


def test_training_is_the_same_for_the_same_seed(quick_training, monkeypatch):
    monkeypatch.setattr(cross_entropy_search, "GENERATIONS", 2)
    first, again, other = train("cartpole"), train("cartpole"), train("cartpole", seed=1)
    assert torch.equal(first.hidden_weight, again.hidden_weight)
    assert not torch.equal(first.hidden_weight, other.hidden_weight)


def test_a_trained_expert_is_kept_and_found_again_with_its_values(quick_training, few_values, tmp_path):
    path = tmp_path / "experts" / "cartpole.safetensors"
    reported = train_and_save("cartpole", path, seed=3)
    assert about(path) == reported and reported["command"] == "unstale-lab data expert cartpole --seed 3"
    assert sorted(path.parent.iterdir()) == [path, values_path(path)]
    assert f"{score(TASK, load_expert(path, TASK)):.1f}" == reported["score"]
    assert REPLAYS["cartpole"](expert=path).values()["training"].state.shape == (8, 5)


def test_values_are_kept_without_another_training(few_values, tmp_path):
    path = tmp_path / "cartpole.safetensors"
    path.write_bytes(expert_path("cartpole").read_bytes())
    reported = estimate_values("cartpole", path)
    assert about(values_path(path)) == reported
    assert reported["command"] == "unstale-lab data expert cartpole --values-only" and reported["rollouts"] == "4"
    assert path.read_bytes() == expert_path("cartpole").read_bytes()
    problem = REPLAYS["cartpole"](expert=path)
    computed = problem.compute_values()
    for name, kept in problem.values().items():
        for field in ("state", "value", "standard_error"):
            tensor = getattr(kept, field)
            assert torch.equal(tensor, getattr(computed[name], field)) and tensor.dtype == torch.float64
        error = kept.standard_error.square().mean().sqrt().item()
        assert float(reported[f"standard_error_{name}"]) == pytest.approx(error, abs=1e-4)


def test_the_projects_values_say_how_they_were_made():
    known = about(values_path(expert_path("cartpole")))
    assert known["command"] == "unstale-lab data expert cartpole --values-only" and known["rollouts"] == "256"


def test_exact_values_are_not_kept():
    with pytest.raises(UserError, match="the values of acrobot are exact"):
        estimate_values("acrobot")
    assert not values_path(expert_path("acrobot")).exists()


def test_only_some_problems_have_experts():
    with pytest.raises(UserError, match="only for acrobot and cartpole"):
        estimate_values("regression")
    with pytest.raises(UserError, match="no expert to train for 'regression', only for acrobot and cartpole"):
        train("regression")


def cut_short(path):
    save_file(tensors(), path)
    path.write_bytes(path.read_bytes()[:-8])


BROKEN = {
    "missing": lambda path: None,
    "no safetensors": lambda path: path.write_bytes(b"nothing of the kind"),
    "cut short": cut_short,
    "a directory": lambda path: path.mkdir(),
    "another network": lambda path: save_file({"weight": torch.zeros(5, 3)}, path),
    "another task's": lambda path: save_file(tensors() | {"hidden_weight": torch.zeros(6, 3)}, path),
    "a scalar": lambda path: save_file(tensors() | {"hidden_bias": torch.tensor(0.0)}, path),
    "not finite": lambda path: save_file(tensors() | {"output_bias": torch.full((1, 2), torch.nan)}, path),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_bad_file_is_named_with_the_way_out(how, tmp_path):
    path = tmp_path / "cartpole.safetensors"
    BROKEN[how](path)
    with pytest.raises(DataError) as caught:
        load_expert(path, TASK)
    message = str(caught.value)
    assert str(path) in message and "unstale-lab data expert cartpole" in message and "\n" not in message


def test_a_problem_with_a_bad_expert_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(policies, "DIRECTORY", tmp_path)
    with pytest.raises(DataError, match="cannot use the expert"):
        Replay(TASK, states=1)


def changed(**changes):
    """The project's values, with other tensors."""
    return lambda path: save_file(
        load_file(path) | {name.replace("_", ".", 1): tensor for name, tensor in changes.items()}, path, about(path)
    )


BAD_VALUES = {
    "missing": (lambda path: path.unlink(), "there is no such file. Make it with"),
    "cut short": (lambda path: path.write_bytes(path.read_bytes()[:-8]), "cannot use"),
    "of another expert": (
        lambda path: save_file(load_file(path), path, about(path) | {"expert": "0123456789ab"}),
        "its expert is 0123456789ab, not ",
    ),
    "of fewer rollouts": (
        lambda path: save_file(load_file(path), path, about(path) | {"rollouts": "8"}),
        "its rollouts is 8, not 256",
    ),
    "without a word": (lambda path: save_file(load_file(path), path), "missing"),
    "of other states": (changed(training_state=torch.zeros(256, 4)), "(256, 4)"),
    "of fewer states": (changed(evaluation_value=torch.zeros(255)), "(255,)"),
    "not finite": (changed(training_value=torch.full((256,), torch.nan)), "not finite"),
    "incomplete": (lambda path: save_file({"training.state": torch.zeros(256, 5)}, path), "instead of"),
}


@pytest.mark.parametrize("how", BAD_VALUES)
def test_values_that_do_not_belong_to_the_expert_are_refused(how, tmp_path):
    path, kept = tmp_path / "cartpole.safetensors", tmp_path / "cartpole_values.safetensors"
    path.write_bytes(expert_path("cartpole").read_bytes())
    kept.write_bytes(values_path(expert_path("cartpole")).read_bytes())
    problem = REPLAYS["cartpole"](expert=path)
    assert values_path(path) == kept
    damage, why = BAD_VALUES[how]
    damage(kept)
    with pytest.raises(DataError) as caught:
        problem.values()
    message = str(caught.value)
    assert message.startswith(f"cannot use the values {kept}: ") and why in message and "\n" not in message
    assert message.endswith(" with `unstale-lab data expert cartpole --values-only`.")


def test_a_fingerprint_is_of_all_weights():
    weights = tensors()
    expert = Expert(**weights)
    assert expert.fingerprint() == Expert(**{name: tensor.clone() for name, tensor in weights.items()}).fingerprint()
    for name, tensor in weights.items():
        assert Expert(**weights | {name: tensor + 1}).fingerprint() != expert.fingerprint()
