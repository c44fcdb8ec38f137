"""One model on several ranks, against one process with the whole batch. The ranks are real processes, with gloo."""

from __future__ import annotations

import copy
import multiprocessing
import re

import distributed_cases as cases
import pytest
import torch
from distributed_cases import CASES, SIZES, Problem, options_of
from problems import mlp
from torch import nn
from torch.testing import assert_close

import unstale
from unstale import _ranks
from unstale._state import copied
from unstale.corrections import Reservoir, ReservoirPlan, slots

EXACT = dict(rtol=1e-10, atol=1e-10)


def start(function, size, directory):
    """Run ``function(rank, size, directory)`` in ``size`` processes, and wait for them."""
    context = multiprocessing.get_context("forkserver")  # torch is imported once, and forked before it has threads
    context.set_forkserver_preload(["distributed_cases"])
    processes = [context.Process(target=function, args=(rank, size, str(directory))) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What every rank found in every case."""
    directory = tmp_path_factory.mktemp("ranks")
    assert start(cases.run, 4, directory) == [0] * 4
    return [torch.load(directory / f"found{rank}.pt", weights_only=False) for rank in range(4)]


def of_all_ranks(found, name, ranks=4):
    """What the ranks found, which is not an error."""
    results = [found[rank][name] for rank in range(ranks)]
    for rank, result in enumerate(results):
        assert not isinstance(result, str), f"rank {rank}: {result}"
    return results


def alone(name, ranks):
    """The same in one process with the whole batch."""
    function, fixed = CASES[name]
    return function(ranks=ranks, **{key: value for key, value in fixed.items() if key not in ("how", "ddp")})


@pytest.mark.parametrize("name, ranks", [(name, ranks) for name, sizes in SIZES.items() for ranks in sizes])
def test_ranks_follow_one_process(found, name, ranks):
    expected = alone(name, ranks)
    for result in of_all_ranks(found, (name, ranks), ranks):
        assert_close(result, expected, **EXACT)


def test_the_corrections_differ():
    """So that the comparison above can fail."""
    results = [alone(f"CorrectedSGD {name} group", 1) for name in ("none", "diagonal", "dense", "window", "reservoir")]
    for number, one in enumerate(results):
        assert all((one - other).abs().max() > 1e-5 for other in results[:number])
    bounded, free = alone("bounded", 1), alone("CorrectedSGD dense group", 1)
    assert (bounded - free).abs().max() > 1e-4


@pytest.mark.parametrize("name", cases.RESTORED)
def test_states_restore_on_another_number_of_ranks(found, name):
    """Four ranks, then two, then four, against one process without a break."""
    expected = Problem("CorrectedAdam", **options_of("CorrectedAdam", name)).train(12)
    for result in of_all_ranks(found, ("restored", name)):
        assert_close(result, expected, **EXACT)


# -------------------------------------------------------------------------------------------------------- refusals


REASONS = {
    "emptied": ("ValueError: prediction is an empty batch", "RankError: rank 1 stopped with an error"),
    "not_finite": ("FloatingPointError: the loss of this batch is nan", "RankNotFiniteError: rank 1 has a loss"),
    "derivative_not_finite": (
        "FloatingPointError: a derivative of this batch",
        "RankNotFiniteError: rank 1 has a loss",
    ),
    "mistaken": ("ValueError: prediction and target must have the same", "RankError: rank 1 stopped with an error"),
    "unrelated": ("ValueError: target depends on this optimizer", "RankError: rank 1 stopped with an error"),
}


@pytest.mark.parametrize("how", ["wrapper", "group"])
def test_what_one_rank_refuses_all_refuse(found, how):
    problem = Problem("CorrectedSGD", **options_of("CorrectedSGD", "window"))
    expected = problem.train(len(REASONS) + 5)
    for rank, result in enumerate(of_all_ranks(found, "bad_batches")):
        for name, (own, others) in REASONS.items():
            assert result[f"{name} {how}"].startswith(own if rank == 1 else others), result[f"{name} {how}"]
        assert_close(result[f"trained {how}"], expected, **EXACT)


def test_not_finite_numbers_of_another_rank_are_floating_point_errors():
    assert issubclass(_ranks.RankNotFiniteError, FloatingPointError)


def test_what_one_rank_skips_all_skip(found):
    problem = Problem("CorrectedSGD", **options_of("CorrectedSGD", "window"))
    problem.batch()
    problem.step()
    for _ in range(3):
        problem.batch()
    expected = problem.train(3)
    for result in of_all_ranks(found, "skipped"):
        assert (result["first"], result["skipped"], result["steps"]) == (True, 4, 1)
        assert_close(result["trained"], expected, **EXACT)


MESSAGES = {
    "module is called": "RankError: the ranks have different gradients.*call the wrapper",
    "different parameters": "RankError: the ranks have different parameters",
    "different options": "RankError: the ranks have different parameters, options",
    "memory of one rank": "(RankError: rank 1 stopped|MemoryError)",
    "different calls": "RankError: the ranks make different calls .rank 0 in 'backward', rank 1 in 'step'",
    "pickled": "TypeError: an optimizer of several ranks cannot be copied",
    "one state": "ValueError: this state was saved by rank 4 of 7.*list of the states of all 7 ranks",
    "different momentum": "RankError: the ranks have different parameters, options, momentum",
    "different learning rates": "RankError: the ranks have different options, such as the learning rate",
    "replay of one rank": "(RankError: rank 1 stopped|OSError: evicted)",
    "second plan of one rank": "(RankError: rank 1 stopped|MemoryError: no room)",
    "hooks": "RuntimeError: parameters in DistributedDataParallel have gradient hooks",
    "join": "RuntimeError: DistributedDataParallel.join.. is not supported",
}


def test_mistakes_are_refused_on_all_ranks(found):
    for rank, result in enumerate(of_all_ranks(found, "refused")):
        assert result.keys() == MESSAGES.keys()
        for name, pattern in MESSAGES.items():
            assert re.match(pattern, result[name]), (rank, name, result[name])


def test_ranks_that_are_made_after_the_optimizer_was_used(found):
    expected = Problem("CorrectedSGD", **options_of("CorrectedSGD", "window")).train()
    later = Problem("CorrectedSGD", **options_of("CorrectedSGD", "window"))
    later.batch()  # the one that was dropped
    expected_later = later.train()
    for result in of_all_ranks(found, "late"):
        assert_close(result["read"], expected, **EXACT)
        assert isinstance(result["dropped"], torch.Tensor), result["dropped"]
        assert_close(result["dropped"], expected_later, **EXACT)
        assert re.match("RuntimeError: this optimizer has a state of 1 rank.s., and there are 4 now", result["loaded"])


def test_changes_in_the_middle(found):
    for result in of_all_ranks(found, "changed"):
        assert result["moved"]
        assert re.match("ValueError: (target|prediction) depends on|RankError: rank 1 stopped", result["single"])
        assert re.match("RuntimeError: this optimizer has a state of 1 rank.s., and there are 4 now", result["late"])


def test_follow_after_a_batch_that_was_dropped():
    problem = Problem("CorrectedSGD", **options_of("CorrectedSGD", "dense"))
    problem.optimizer.backward(problem.batch())
    problem.optimizer.zero_grad()
    target = copy.deepcopy(problem.model)
    problem.optimizer.follow(target)
    expected = Problem("CorrectedSGD", **options_of("CorrectedSGD", "dense"))
    expected.batch()  # the one that was dropped
    expected_target = copy.deepcopy(expected.model)
    expected.optimizer.follow(expected_target)
    for _ in range(3):
        problem.step(problem.batch(follower=target))
        expected.step(expected.batch(follower=expected_target))
    assert_close(problem.result(), expected.result(), **EXACT)


def test_a_group_added_between_two_batches_of_a_step_is_saved():
    problem = Problem("CorrectedSGD", **options_of("CorrectedSGD", "dense"))
    first, *others = problem.model.parameters()
    optimizer = problem.optimizer = unstale.CorrectedSGD([first], lr=0.1, beta=0.7, correction="dense")
    optimizer.backward(problem.batch())
    optimizer.add_param_group({"params": others})
    problem.step()
    mu = optimizer.state_of("group 1")["mu"].clone()
    optimizer.load_state_dict(optimizer.state_dict())
    assert torch.equal(optimizer.state_of("group 1")["mu"], mu)
    problem.step()
    assert optimizer.state_of("group 1")["eta_norm"] > 0  # the first displacement counts


def test_copies_keep_a_process_alone():
    optimizer = unstale.CorrectedSGD(nn.Linear(2, 1), lr=0.1, process_group=None)
    assert copy.deepcopy(optimizer)._process_group is None
    assert copy.deepcopy(unstale.CorrectedSGD(nn.Linear(2, 1), lr=0.1))._process_group == "auto"


def test_a_copy_of_an_oracle_goes_on_as_one_that_loads_its_state():
    """Without its past batches, which would otherwise be taken off the momentum."""
    options = options_of("CorrectedSGD", "oracle")
    problem, loaded = (Problem("CorrectedSGD", **options) for _ in range(2))
    problem.train(5)
    loaded.model.load_state_dict(problem.model.state_dict())
    loaded.generator.set_state(problem.generator.get_state())
    with pytest.warns(UserWarning, match="past batches of correction='oracle'"):
        loaded.optimizer.load_state_dict(problem.optimizer.state_dict())
    with pytest.warns(UserWarning, match="past batches of correction='oracle'"):
        problem.model, problem.optimizer = copy.deepcopy((problem.model, problem.optimizer))
    problem.net = problem.model
    assert_close(problem.train(5), loaded.train(5), **EXACT)


def test_without_a_wrapper_the_user_says_what_is_trained(found):
    results = of_all_ranks(found, "unsaid")
    for rank, result in enumerate(results):
        assert re.match("RuntimeError: torch.distributed has 4 ranks, but no Dist.*process_group=None", result["auto"])
        assert rank == 0 or not torch.equal(result["alone"], results[0]["alone"])


def test_what_is_sent(found):
    """Votes of 64 bytes; η; and gradients, with a number per parameter tensor, unless a wrapper averages them."""
    model = Problem("CorrectedSGD", lr=0.1).model
    n, tensors, vote = 8 * sum(p.numel() for p in model.parameters()), 8 * len(list(model.parameters())), 64
    expected = {
        "wrapper none": 2 * vote,
        "wrapper window": 3 * vote + n,
        "group none": 2 * vote + n + tensors,
        "group window": 3 * vote + 2 * n + tensors,
    }
    for result in of_all_ranks(found, "bytes_sent"):
        assert result == {name: 3 * each for name, each in expected.items()}


def test_the_programs_of_the_page_run(found):
    results = of_all_ranks(found, "documented")
    for result in results:
        assert result["steps"] == 20
        assert_close(result["trained"], results[0]["trained"], **EXACT)


def test_a_killed_rank_ends_the_others(tmp_path):
    """The error comes from the backend: it sees that the other process has gone."""
    assert start(cases.run_until_killed, 2, tmp_path) == [0, -9]
    assert "Error" in (tmp_path / "error0").read_text("utf-8") and not (tmp_path / "error1").exists()


@pytest.mark.parametrize("given", ["world", 3, object()])
def test_process_groups_are_checked(given):
    with pytest.raises(TypeError, match="process_group must be a process group, None or 'auto'"):
        unstale.CorrectedSGD(nn.Linear(2, 1), lr=0.1, process_group=given)


@pytest.fixture
def one_rank(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_a_group_of_one_is_one_process(one_rank):
    options = options_of("CorrectedSGD", "window")
    expected = Problem("CorrectedSGD", **options).train(5)
    for given in ("auto", one_rank, None):
        problem = Problem("CorrectedSGD", process_group=given, **options)
        assert_close(problem.train(5), expected, **EXACT)
    problem = Problem("CorrectedSGD", make=lambda: nn.parallel.DistributedDataParallel(mlp()), **options)
    assert_close(problem.train(5), expected, **EXACT)


def test_ranks_are_looked_for_again_if_distributed_is_initialized_during_a_batch(monkeypatch):
    """They were looked for before the batch was evaluated, and not found."""
    initialized, looked = [False], []
    monkeypatch.setattr(_ranks, "is_initialized", lambda: initialized[0])
    monkeypatch.setattr(_ranks, "find", lambda *given: looked.append(initialized[0]) or _ranks.Ranks())
    model = nn.Linear(2, 1)
    optimizer = unstale.CorrectedSGD(model, lr=0.1)

    def batch(model=model):
        initialized[0] = True
        return model(torch.ones(4, 2)), 0.9 * model(torch.ones(4, 2))

    optimizer.backward(batch)
    assert True not in looked
    optimizer.step()
    assert looked[-1]
    count = len(looked)
    optimizer.backward(batch)
    optimizer.step()
    assert len(looked) == count  # settled


@pytest.mark.filterwarnings("ignore")  # of torch's own imports
def test_sharded_parameters_are_refused(one_rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(mlp(), mesh=init_device_mesh("cpu", (1,)))
    for params in (model, model.parameters(), [{"params": model}]):
        with pytest.raises(TypeError, match="these parameters are sharded over ranks"):
            unstale.CorrectedSGD(params, lr=0.1)


# --------------------------------------------------------------------------------- memories, without processes


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("name", ["diagonal", "blocks", "dense", "merged", "window", "refresh", "reservoir"])
def test_memories_divide_and_join(name, ranks):
    """η of the whole is the mean of the parts', now and after a displacement; and the parts join to the whole."""
    options = options_of("CorrectedSGD", {"merged": "dense", "refresh": "window"}.get(name, name))
    options |= dict(refresh=(1, 2)) if name == "refresh" else {}
    problem = Problem("CorrectedSGD", **options)
    if name == "merged":
        problem.rows = slice(0, 3)  # few samples, which are buffered
    problem.train(9)
    state = problem.optimizer.state_of("group 0")
    group = problem.optimizer.ready_groups()[0]
    correction, memory = group._build(state["plan"]), state["memory"]
    assert name != "merged" or int(memory["buffer"]["samples"])
    parts = [_copy(correction.part_of(_copy(memory), rank, ranks)) for rank in range(ranks)]
    joined = correction.joined([_copy(part) for part in parts])
    displacement = torch.randn(group.params.size)
    expected = _moved(correction, memory, displacement)
    assert expected.abs().max() > 1e-3
    assert_close(torch.stack([_moved(correction, part, displacement) for part in parts]).mean(0), expected, **EXACT)
    assert_close(_moved(correction, joined, displacement), expected, **EXACT)


def _copy(memory):
    return copied(memory, "cpu")


def _moved(correction, memory, displacement):
    """η after a displacement, without a new batch."""
    memory = _copy(memory)
    if "eta" in memory and "step" not in memory:
        return memory["eta"] - memory["zeta"] * displacement
    if "eta" in memory:
        correction._move(memory, displacement)
        return memory["eta"]
    slots.move(memory, displacement, 1.0)
    return slots.eta(memory) + memory.get("base", 0.0)


def test_a_reservoir_says_which_numbers_of_ranks_it_can_have():
    with pytest.raises(ValueError, match="generations of 6 samples, which 4 ranks cannot share equally"):
        Reservoir(ReservoirPlan(6, 1, 2, 2), part=(0, 4))


def test_states_of_different_steps_do_not_join():
    problem = Problem("CorrectedSGD", **options_of("CorrectedSGD", "window"))
    states = []
    for rank in range(2):
        problem.step()
        state = problem.optimizer.state_dict()
        states.append({**state, "state": _copy(state["state"]), "unstale": {**state["unstale"], "rank": (rank, 2)}})
    with pytest.raises(ValueError, match="states are of different steps"):
        problem.optimizer.load_state_dict(states)
    with pytest.raises(ValueError, match="saved by rank 1 of 2, and this is rank 0 of 1"):
        problem.optimizer.load_state_dict(states[::-1])


def test_a_state_that_remembers_nothing_is_any_ranks():
    problem = Problem("CorrectedSGD", **options_of("CorrectedSGD", "none"))
    problem.step()
    state = problem.optimizer.state_dict()
    state["unstale"]["rank"] = (2, 4)
    other = Problem("CorrectedSGD", **options_of("CorrectedSGD", "none"))
    other.optimizer.load_state_dict(state)
    assert_close(other.optimizer.state_of("group 0")["mu"], state["state"]["group 0"]["mu"])
