"""What the ranks of ``test_distributed.py`` do. Every process runs all cases, one after another."""

from __future__ import annotations

import copy
import datetime
import gc
import os
import pickle
import re
import signal
import traceback
import warnings
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from problems import mlp, parameters_of
from torch import nn

import unstale
from unstale import _ranks
from unstale._param_group import ParamGroup

TIMEOUT = datetime.timedelta(seconds=120)  # ends a test whose ranks wait for each other
M, GAMMA = 16, 0.9
BETA = 0.7


class TwoHeads(nn.Module):
    """The second head is used in some batches only."""

    def __init__(self):
        super().__init__()
        self.trunk, self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x, both=False):
        h = self.trunk(x).tanh()
        return self.first(h) + self.second(h) if both else self.first(h)


class Problem:
    """One process with whole batches, or a rank of ``size`` with its rows of each.

    Args:
        how: a ``"wrapper"`` of DistributedDataParallel, its ``"module"`` or its ``"parameters"`` are given to the
            optimizer; or the process ``"group"``; or, for one process, nothing.
        ranks: of the run that one process is compared with.
        counts: of rows per rank, if they differ.
    """

    def __init__(
        self, kind, rank=0, size=1, group=None, how="wrapper", make=mlp, ranks=1, counts=None, ddp=None, **options
    ):
        torch.manual_seed(0)
        self.model, self.rank, self.size, self.ranks = make(), rank, size, ranks
        counts = counts or [M // size] * size
        self.rows = slice(sum(counts[:rank]), sum(counts[: rank + 1])) if size > 1 else slice(None)
        self.net, params = self.model, self.model
        if size > 1 and how == "group":
            options["process_group"] = group
        elif size > 1:
            self.net = nn.parallel.DistributedDataParallel(self.model, process_group=group, **(ddp or {}))
            params = {"wrapper": self.net, "module": self.model, "parameters": self.model.parameters()}[how]
        self.optimizer = getattr(unstale, kind)(params, **options)
        self.generator = torch.Generator().manual_seed(1)

    def batch(self, net=None, follower=None, **inputs):
        """The next batch, as a function."""
        net = net or self.net
        s, s_next = torch.randn(M, 3, generator=self.generator), torch.randn(M, 3, generator=self.generator)
        reward, rows = torch.randn(M, generator=self.generator), self.rows

        def evaluate():
            after = (follower or net)(s_next[rows], **inputs)
            return net(s[rows], **inputs).squeeze(-1), reward[rows] + GAMMA * after.squeeze(-1)

        return evaluate

    def step(self, batch=None, **keywords):
        self.optimizer.backward(batch or self.batch(), **keywords)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def train(self, steps=10):
        for _ in range(steps):
            self.step()
        return self.result()

    def result(self):
        return parameters_of(self.model).clone()


def options_of(kind, correction):
    options = dict(lr=0.3, beta=BETA) if kind != "CorrectedAdam" else dict(lr=0.05, betas=(BETA, 0.99))
    if kind == "CorrectedRMSprop":
        options = dict(lr=0.02, beta=BETA)
    if kind == "CorrectedTDprop":
        options = dict(lr=0.05, betas=(BETA, 0.99), eps=1e-3)
    options["correction"] = correction
    if correction == "reservoir":
        options["slots"] = 36
    if correction == "window":
        options["horizon"] = 6
    return options


CASES = {}  # by name: a function, and some of its arguments
SIZES = {}  # the numbers of ranks that each runs on


def case(name, sizes=(2,), **fixed):
    def add(function):
        CASES[name], SIZES[name] = (function, fixed), sizes
        return function

    return add


def trained(kind, correction, steps=10, **more):
    def run(**where):
        return Problem(kind, **where, **options_of(kind, correction), **more).train(steps)

    return run


for kind, how in (("CorrectedSGD", "group"), ("CorrectedAdam", "wrapper")):
    for correction in ("none", "diagonal", "dense", "window", "reservoir"):
        case(f"{kind} {correction} {how}", (2, 4), how=how)(trained(kind, correction))
for how in ("module", "parameters"):
    case(f"CorrectedSGD window {how}", how=how)(trained("CorrectedSGD", "window"))
for correction in ("blocks", "oracle"):
    case(f"CorrectedAdam {correction}")(trained("CorrectedAdam", correction))
case("bounded", (2, 4))(trained("CorrectedSGD", "dense", trust=0.05))
case("TDprop")(trained("CorrectedTDprop", "dense"))
case("RMSprop", how="group")(trained("CorrectedRMSprop", "window"))
case("literal")(trained("CorrectedSGD", "dense", recursion="literal"))
case("refresh")(trained("CorrectedSGD", "window", refresh=(1, 2)))
case("second order")(trained("CorrectedSGD", "dense", 3, second_order=True))
for name in ("find_unused_parameters", "static_graph", "gradient_as_bucket_view"):
    case(name, ddp={name: True})(trained("CorrectedSGD", "window"))


@case("automatic choices")
def automatic(**where):
    problem = Problem("CorrectedAdam", lr=0.02, **where)
    found = problem.train()
    (group,) = unstale.diagnostics.groups(problem.optimizer)
    assert f"{group.correction} {group.beta:.3f}" == "dense 0.900"
    return found


@case("automatic reservoir", (2, 4), how="group")
def automatic_reservoir(**where):
    """The number of slots depends on the size of the batch of all ranks."""
    problem = Problem("CorrectedSGD", lr=0.1, correction="reservoir", make=lambda: mlp(width=16), **where)
    problem.train(3)
    samples, *rest = problem.optimizer.state_of("group 0")["plan"]["reservoir"]
    return torch.tensor([float(samples - samples % 4), *map(float, rest)])


@case("several parameter groups")
def several_groups(**where):
    problem = Problem("CorrectedSGD", lr=0.3, beta=BETA, correction="window", **where)
    first, *others = problem.model.parameters()
    groups = [{"params": [first], "correction": "diagonal"}, {"params": others, "lr": 0.2, "correction": "dense"}]
    given = dict(process_group=where["group"]) if where.get("how") == "group" else {}
    problem.optimizer = unstale.CorrectedSGD(groups, lr=0.3, beta=BETA, **given)
    return problem.train()


@case("followed network")
def followed(**where):
    problem = Problem("CorrectedSGD", lr=0.3, beta=BETA, correction="dense", **where)
    target = copy.deepcopy(problem.model)
    problem.optimizer.follow(target)
    for number in range(6):
        problem.step(problem.batch(follower=target))
        if number % 3 == 2:
            target.load_state_dict(problem.model.state_dict())
    return problem.result()


@case("unequal batches", (2, 4), counts={2: [11, 5], 4: [7, 1, 5, 3]})
def unequal(counts, **where):
    """The mean of the ranks' means: for one process, a weight for every sample."""
    counts = counts[where.get("size", where.get("ranks"))]
    problem = Problem("CorrectedSGD", **where, counts=counts, lr=0.2, beta=BETA, correction="window")
    weight = 1.0 if problem.size > 1 else torch.cat([torch.full((count,), M / len(counts) / count) for count in counts])
    for _ in range(6):
        problem.step(weight=weight)
    return problem.result()


@case("accumulated and clipped, wrapper", how="wrapper")
@case("accumulated and clipped, group", how="group")
def accumulated(**where):
    problem = Problem("CorrectedSGD", **where, lr=0.3, beta=BETA, correction="window")
    for number in range(6):
        with getattr(problem.net, "no_sync", nullcontext)():
            problem.optimizer.backward(problem.batch())
        problem.optimizer.backward(problem.batch())
        if number % 2:
            problem.optimizer.clip_grad_norm_(0.1)
        else:
            torch.nn.utils.clip_grad_norm_(problem.model.parameters(), 0.1)
        problem.optimizer.step()
        problem.optimizer.zero_grad()
    return problem.result()


@case("averaged by hand", how="group")
def by_hand(**where):
    """The optimizer averages, too; an average of averages changes nothing."""
    problem = Problem("CorrectedAdam", **where, **options_of("CorrectedAdam", "dense"))
    for _ in range(6):
        problem.optimizer.backward(problem.batch())
        for p in problem.model.parameters() if problem.size > 1 else ():
            dist.all_reduce(p.grad, group=where["group"])
            p.grad /= problem.size
        problem.optimizer.step()
        problem.optimizer.zero_grad()
    return problem.result()


@case("another loss of every rank", how="group")
def another_loss(**where):
    problem = Problem("CorrectedSGD", **where, **options_of("CorrectedSGD", "dense"))
    for _ in range(6):
        problem.optimizer.backward(problem.batch())
        prediction, _ = problem.batch()()
        prediction.sin().mean().backward()
        problem.optimizer.step()
        problem.optimizer.zero_grad()
    return problem.result()


@case("a parameter that one rank uses", how="group")
@case("a parameter that one rank uses, wrapper", how="wrapper", ddp=dict(find_unused_parameters=True))
def partly_used(**where):
    """It gets a gradient and decays on all ranks. In one process, it gets a gradient from the rows of that rank."""
    options = dict(options_of("CorrectedSGD", "window"), weight_decay=0.1)
    problem = Problem("CorrectedSGD", **where, make=TwoHeads, **options)
    for number in range(6):
        if problem.size > 1:
            problem.step(problem.batch(both=problem.rank == 1 and number % 2 == 1))
            continue
        s, s_next = torch.randn(M, 3, generator=problem.generator), torch.randn(M, 3, generator=problem.generator)
        reward, part = torch.randn(M, generator=problem.generator), M // problem.ranks
        values, after = problem.net(s), problem.net(s_next)
        if number % 2:
            mask = torch.zeros(M, 1)
            mask[part : 2 * part] = 1.0
            both, both_after = problem.net(s, both=True), problem.net(s_next, both=True)
            values, after = values + mask * (both - values), after + mask * (both_after - after)
        problem.step(lambda v=values, r=reward, a=after: (v.squeeze(-1), r + GAMMA * a.squeeze(-1)))
    return problem.result()


# -------------------------------------------------------------------------------------------------------- refusals


def message_of(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def emptied(problem):
    """A batch that has no rows on rank 1."""
    rows, problem.rows = problem.rows, slice(0, 0) if problem.rank == 1 else problem.rows
    found = problem.batch()
    problem.rows = rows
    return found


def not_finite(problem):
    evaluate = problem.batch()

    def batch():
        prediction, target = evaluate()
        return prediction, target * (float("nan") if problem.rank == 1 else 1.0)

    return batch


def derivative_not_finite(problem):
    evaluate = problem.batch()

    def batch():
        prediction, target = evaluate()
        return prediction, target + (target * 0).sqrt() * 0 if problem.rank == 1 else target

    return batch


def mistaken(problem):
    evaluate = problem.batch()

    def batch():
        prediction, target = evaluate()
        return prediction, target.unsqueeze(0) if problem.rank == 1 else target

    return batch


def unrelated(problem):
    """A prediction of another network on rank 1."""
    evaluate, other = problem.batch(), mlp()

    def batch():
        prediction, target = evaluate()
        return other(torch.ones(len(prediction), 3)).squeeze(-1) if problem.rank == 1 else prediction, target

    return batch


REFUSED = {f.__name__: f for f in (emptied, not_finite, derivative_not_finite, mistaken, unrelated)}
FAULTS = {}


def fault(function):
    FAULTS[function.__name__] = function
    return function


@fault
def bad_batches(group, rank, size):
    """Each is refused by all ranks, and training goes on as if it had not been there."""
    found = {}
    for how in ("wrapper", "group"):
        problem = Problem("CorrectedSGD", rank, size, group, how, **options_of("CorrectedSGD", "window"))
        for name, make in REFUSED.items():
            problem.step()
            state, batch = problem.generator.get_state(), make(problem)
            found[f"{name} {how}"] = message_of(lambda p=problem, b=batch: p.step(b))
            problem.generator.set_state(state)
            problem.optimizer.zero_grad()
        found[f"trained {how}"] = problem.train(5)
    return found


@fault
def skipped(group, rank, size):
    problem = Problem("CorrectedSGD", rank, size, group, on_nonfinite="skip", **options_of("CorrectedSGD", "window"))
    start = problem.result()
    problem.step(not_finite(problem))
    is_first_skipped = torch.equal(start, problem.result())
    problem.step()
    for make in (not_finite, derivative_not_finite):
        problem.step(make(problem))
    problem.optimizer.backward(problem.batch())
    if rank == 1:
        next(problem.model.parameters()).grad[0] = torch.inf
    problem.optimizer.step()
    problem.optimizer.zero_grad()
    steps = unstale.diagnostics.read(problem.optimizer)
    return dict(first=is_first_skipped, skipped=steps["skipped_steps"], steps=steps["steps"], trained=problem.train(3))


@fault
def refused(group, rank, size):
    """What raises on all ranks."""
    found = {}

    def make(how="group", **more):
        return Problem("CorrectedSGD", rank, size, group, how, **{**options_of("CorrectedSGD", "window"), **more})

    problem = make("wrapper")
    found["module is called"] = message_of(lambda: problem.step(problem.batch(problem.model)))
    other = make()
    with torch.no_grad():
        next(other.model.parameters()).add_(rank)
    found["different parameters"] = message_of(other.step)
    found["different options"] = message_of(make(lr=0.1 + rank).step)
    found["memory of one rank"] = message_of(make(memory_limit=1 if rank == 1 else None).step)
    uneven = make()
    uneven.step()

    def call_twice():
        uneven.optimizer.backward(uneven.batch())
        uneven.optimizer.step() if rank else uneven.optimizer.backward(uneven.batch())

    found["different calls"] = message_of(call_twice)
    header = {"unstale": {**uneven.optimizer.state_dict()["unstale"], "rank": (4, 7)}}
    found["pickled"] = message_of(lambda: pickle.dumps(uneven.optimizer))
    found["one state"] = message_of(
        lambda: make().optimizer.load_state_dict({**uneven.optimizer.state_dict(), **header})
    )
    loaded = make()
    loaded.train(2)
    state = copy.deepcopy(loaded.optimizer.state_dict())
    state["state"]["group 0"]["mu"] *= 1 - 2 * (rank == 1)
    loaded.optimizer.load_state_dict(state)
    found["different momentum"] = message_of(loaded.step)
    scheduled = make()
    scheduled.step()
    scheduled.optimizer.param_groups[0]["lr"] = 0.1 + rank
    found["different learning rates"] = message_of(scheduled.step)
    replayed = make("wrapper", correction="oracle")
    replayed.train(2)
    batch = replayed.batch()

    def vanish():
        if rank == 1 and replayed.optimizer._calls:  # it is evaluated again
            raise OSError("evicted")
        return batch()

    replayed.step(vanish)
    found["replay of one rank"] = message_of(replayed.step)
    found["second plan of one rank"] = message_of(lambda: replanned(make(correction="reservoir", horizon=None), rank))
    hooked = make("wrapper")
    next(hooked.model.parameters()).register_hook(lambda gradient: gradient / 2)
    found["hooks"] = message_of(hooked.step)
    joining = make("wrapper")
    with joining.net.join():
        found["join"] = message_of(joining.step)
    return found


def replanned(problem, rank):
    """A step whose samples are larger than estimated, so that there is a second plan, for which rank 1 has no room."""
    calls, check = [], unstale.corrections.check_memory

    def check_or_fail(*arguments):
        calls.append(arguments)
        if rank == 1 and len(calls) == 2:
            raise MemoryError("no room")
        return check(*arguments)

    with (
        patch.object(ParamGroup, "_slot_numbers", lambda self: 1),
        patch.object(unstale.corrections, "check_memory", check_or_fail),
    ):
        problem.step()


@fault
def late(group, rank, size):
    """Ranks that are made after the optimizer has been used, has loaded a state, or has dropped a batch."""
    options = options_of("CorrectedSGD", "window")
    saved = Problem("CorrectedSGD", process_group=None, **options)
    saved.train(1)
    found = {}
    for name in ("read", "loaded"):
        problem = Problem("CorrectedSGD", rank, size, group, "wrapper", **options)
        with patch.object(dist, "is_initialized", lambda: False):
            if name == "read":
                repr(problem.optimizer), problem.optimizer.momentum_beta
            else:
                problem.optimizer.load_state_dict(saved.optimizer.state_dict())
        found[name] = attempt(problem.train) if name == "read" else message_of(problem.step)
    problem = Problem("CorrectedSGD", rank, size, group, "wrapper", **options)
    with patch.object(dist, "is_initialized", lambda: False):
        problem.optimizer.backward(problem.batch(problem.model))
        problem.optimizer.zero_grad()
    found["dropped"] = attempt(problem.train)
    return found


@fault
def changed(group, rank, size):
    """Groups that are added between backward and step, single samples of another network, and ranks that come late."""
    options = options_of("CorrectedSGD", "dense")
    found = {}
    problem = Problem("CorrectedSGD", rank, size, group, "wrapper", **options)
    problem.step()
    problem.optimizer.backward(problem.batch())
    added = nn.parallel.DistributedDataParallel(nn.Linear(1, 1), process_group=group)
    problem.optimizer.add_param_group({"params": list(added.parameters())})
    before = problem.result()
    problem.optimizer.step()
    found["moved"] = not torch.equal(before, problem.result())
    problem = Problem("CorrectedSGD", rank, size, group, "wrapper", **options)
    problem.train(2)
    problem.rows, other = slice(rank, rank + 1), mlp()
    evaluate = problem.batch()

    def single():
        prediction, target = evaluate()
        return other(torch.ones(1, 3)).squeeze(-1) if rank == 1 else prediction, target

    found["single"] = message_of(lambda: problem.step(single))
    alone = Problem("CorrectedSGD", rank, size, group, "wrapper", **options)
    with patch.object(dist, "is_initialized", lambda: False):
        alone.optimizer.backward(alone.batch(alone.model))
        alone.optimizer.step()
    found["late"] = message_of(alone.step)
    return found


@fault
def unsaid(group, rank, size):
    """Nothing says whether the ranks train one model."""
    gc.collect()
    problem = Problem("CorrectedSGD", lr=0.1)
    found = {"auto": message_of(problem.step)}
    problem = Problem("CorrectedSGD", lr=0.1, process_group=None)
    problem.rows = slice(rank, None)
    found["alone"] = problem.train(2)
    return found


@fault
def bytes_sent(group, rank, size):
    """Of three steps after the first."""
    found = {}
    for how in ("wrapper", "group"):
        for correction in ("none", "window"):
            problem = Problem("CorrectedSGD", rank, size, group, how, **options_of("CorrectedSGD", correction))
            problem.step()
            before = problem.optimizer._ranks.bytes
            problem.train(3)
            found[f"{how} {correction}"] = problem.optimizer._ranks.bytes - before
    return found


@fault
def documented(group, rank, size):
    """The programs of the page, one after another; ``run`` has made the process group."""
    page = (Path(__file__).parent.parent / "docs" / "distributed.md").read_text("utf-8")
    names = {}
    for code in re.findall(r"^```python\n(.*?)^```$", page, flags=re.M | re.S):
        exec(code.replace("dist.init_process_group", "str"), names)
    return {"trained": parameters_of(names["network"]), "steps": unstale.diagnostics.read(names["optimizer"])["steps"]}


# ----------------------------------------------------------------------------------------------------- checkpoints


RESTORED = ("diagonal", "dense", "window", "reservoir")


def restored(correction, pair, world, rank, directory):
    """Four steps on four ranks, four on two of them, and four on four again, with states from files."""
    found, states = None, []
    generator = torch.Generator().manual_seed(1).get_state()
    for number, (group, size, steps) in enumerate(((world, 4, 4), (pair, 2, 4), (world, 4, 4))):
        if rank < size:
            problem = Problem("CorrectedAdam", rank, size, group, **options_of("CorrectedAdam", correction))
            problem.generator.set_state(generator)
            if states:
                problem.model.load_state_dict(found)
                problem.optimizer.load_state_dict(states)
            problem.train(steps)
            torch.save(problem.optimizer.state_dict(), directory / f"{correction}-{number}-{rank}.pt")
            torch.save(
                (problem.model.state_dict(), problem.generator.get_state()), directory / f"{correction}-{number}.{rank}"
            )
        dist.barrier()
        states = [torch.load(directory / f"{correction}-{number}-{r}.pt") for r in range(size)]
        found, generator = torch.load(directory / f"{correction}-{number}.0")
    return problem.result()


def run(rank, size, directory):
    """All cases, on one of four ranks."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    directory = Path(directory)
    os.chdir(directory)
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=rank, world_size=size, timeout=TIMEOUT
    )
    groups = {2: dist.new_group([0, 1], timeout=TIMEOUT), 4: dist.group.WORLD}
    found = {}
    for name, (function, fixed) in CASES.items():
        for count, group in groups.items():
            if rank < count and count in SIZES[name]:
                where = dict(rank=rank, size=count, group=group, **fixed)
                found[name, count] = attempt(lambda f=function, w=where: f(**w))
    for name, function in FAULTS.items():
        found[name] = attempt(lambda f=function: f(dist.group.WORLD, rank, size))
    for name in RESTORED:
        found["restored", name] = attempt(lambda n=name: restored(n, groups[2], dist.group.WORLD, rank, directory))
    torch.save(found, directory / f"found{rank}.pt")
    dist.destroy_process_group()


def attempt(function):
    """What it returns, or its error as text."""
    try:
        return function()
    except Exception:
        return traceback.format_exc()


def run_until_killed(rank, size, directory):
    """Rank 1 is killed while rank 0 waits for its η."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=rank, world_size=size, timeout=TIMEOUT
    )
    problem = Problem("CorrectedSGD", rank, size, dist.group.WORLD, "wrapper", **options_of("CorrectedSGD", "window"))
    problem.train(2)
    if rank == 1:
        _ranks.Ranks.mean_ = lambda self, tensor: os.kill(os.getpid(), signal.SIGKILL)
    error = message_of(problem.step)
    Path(directory, f"error{rank}").write_text(error, "utf-8")
    os._exit(0)  # the group cannot be closed without the other rank
