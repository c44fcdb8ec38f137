"""Break the code on purpose, one line at a time, and check that the tests notice.

    python tools/mutants.py                # all mutants
    python tools/mutants.py flip window    # those whose names contain one of these words

Each mutant is applied to a copy of the project in a temporary directory, and the tests that should fail are run there.
A mutant that survives is a gap in the tests. The exit status is the number of surviving mutants.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("src", "lab", "tests", "docs", "pyproject.toml", "conftest.py")


class Mutant(NamedTuple):
    """``old`` occurs once in ``file`` and is replaced by ``new``. One of ``tests`` has to fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


BLOCKS, DIAGONAL, WINDOW, RESERVOIR, SLOTS, SELECT = (
    f"src/unstale/corrections/{name}.py" for name in ("blocks", "diagonal", "window", "reservoir", "slots", "select")
)
GRADIENTS, LINEARIZE, LAYER_RULES, ROW_RULES, OWNERS, SAMPLE_ROWS = (
    f"src/unstale/per_sample/{name}.py"
    for name in ("gradients", "linearize", "layer_rules", "row_rules", "owners", "sample_rows")
)
MOMENTUM, OPTIMIZER, OPTIMIZERS, PARAM_GROUP, MONITOR, TORCH_MOMENTUM = (
    f"src/unstale/{name}.py"
    for name in ("momentum", "_optimizer", "optimizers", "_param_group", "monitor", "_torch_momentum")
)
RANDOM, BATCH, BATCH_GRAPH, GRAD_SCALING = (
    f"src/unstale/{name}.py" for name in ("_random", "_batch", "_batch_graph", "_grad_scaling")
)
NETWORK, TRAINING, DATA = (f"lab/src/unstale_lab/engine/{name}.py" for name in ("network", "training", "data"))

REFERENCE, RUNS, WINDOWS, CHANGING, CONTRACT, LINEARIZATIONS, RULES, FUZZ, RESERVOIRS, PLANS, INPUTS = (
    f"tests/test_{name}.py"
    for name in (
        "against_reference",
        "runs",
        "window",
        "changing_graphs",
        "optimizer_contract",
        "linearize",
        "row_rules",
        "fuzz",
        "reservoir",
        "plans",
        "inputs",
    )
)
FOLLOW, ROWS, SAMPLED, RANKS = (
    f"tests/test_{name}.py" for name in ("follow", "distributional", "sampled_rows", "distributed")
)
ENGINE = "lab/tests/test_engine.py"
CORRECTIONS = (REFERENCE, RUNS, WINDOWS)
PER_SAMPLE = (RULES, LINEARIZATIONS, CHANGING, FUZZ)


def in_reservoirs(*names: str) -> tuple[str, ...]:
    """Single tests of the reservoir: the whole file takes a minute."""
    return tuple(f"{RESERVOIRS}::test_{name}" for name in names)


MUTANTS = [
    # Ranks
    Mutant(
        "ranks: η of every rank by itself",
        PARAM_GROUP,
        "self._ranks.mean_(self._eta(state, beta, calls))",
        "self._eta(state, beta, calls)",
        (RANKS,),
    ),
    Mutant(
        "ranks: all draw the numbers of the first",
        RESERVOIR,
        "[rank * columns : (rank + 1) * columns]",
        "[:columns]",
        (RANKS,),
    ),
    Mutant(
        "ranks: plan for the batch of one rank",
        OPTIMIZER,
        "sum(int(samples) for samples, *_ in vote.received))",
        "len(batch.prediction))",
        (RANKS,),
    ),
    Mutant(
        "ranks: joined weights are a sum",
        SLOTS,
        "batch.slope / len(memories)",
        "batch.slope",
        (f"{RANKS}::test_memories_divide_and_join",),
    ),
    Mutant(
        "ranks: parts are not weighted",
        SLOTS,
        "batch.slope * ranks",
        "batch.slope",
        (f"{RANKS}::test_memories_divide_and_join",),
    ),
    Mutant(
        "ranks: buffered samples are lost when joined",
        BLOCKS,
        "            self._merge(memory)\n            for zeta in memory",
        "            for zeta in memory",
        (f"{RANKS}::test_memories_divide_and_join",),
    ),
    Mutant(
        "ranks: gradients of other losses are not averaged",
        "src/unstale/_ranks.py",
        "return any(each != fingerprints[0] for each in fingerprints)",
        "return False",
        (RANKS,),
    ),
    # Corrections
    Mutant(
        "monitor: decay of unobserved steps forgotten",
        MONITOR,
        "slots.eta(self._memory) * self._decay",
        "slots.eta(self._memory)",
        ("tests/test_monitor.py",),
    ),
    Mutant(
        "monitor: scale of .grad forgotten", MONITOR, "scale * fresh / (1", "fresh / (1", ("tests/test_monitor.py",)
    ),
    Mutant(
        "monitor: SGD's first gradient dampened",
        TORCH_MOMENTUM,
        "fresh = 1.0 if self._is_new and",
        "fresh = 1.0 if False and",
        ("tests/test_monitor.py",),
    ),
    Mutant(
        "no transpose of ζ (dense)",
        BLOCKS,
        "_by_block(weighted, own), _by_block(u, own, copy)",
        "_by_block(u, own), _by_block(weighted, own, copy)",
        CORRECTIONS,
    ),
    Mutant(
        "buffered samples are not decayed (dense)",
        BLOCKS,
        'decay_(memory["buffer"]["weight"], beta)',
        "pass",
        CORRECTIONS,
    ),
    Mutant(
        "ζ is not decayed until it is written (dense)",
        BLOCKS,
        'memory["decay"] = _decayed(memory["decay"], beta)',
        "pass",
        (RESERVOIRS, *CORRECTIONS),
    ),
    Mutant(
        "ζ_t instead of ζ_{t-1} (diagonal)",
        DIAGONAL,
        "        n = eta.shape[-1]\n",
        "        n = eta.shape[-1]\n        batch.mix_diagonal(zeta, beta)\n",
        CORRECTIONS,
    ),
    Mutant("missing β (dense)", BLOCKS, 'return decay_(memory["eta"], beta)', 'return memory["eta"]', CORRECTIONS),
    Mutant("missing β (diagonal)", DIAGONAL, "decay_(eta, beta)", "decay_(eta, 1.0)", CORRECTIONS),
    Mutant("missing β (slots)", SLOTS, 'decay_(memory["weight"], beta)', "pass", CORRECTIONS),
    Mutant(
        "new batch keeps the shift of its slot (slots)",
        SLOTS,
        'memory["shift"].index_fill_(-1, slots, 0.0)',
        "pass",
        CORRECTIONS,
    ),
    Mutant(
        "empty slots have weight (slots)",
        SLOTS,
        "padded = weight.new_zeros(",
        "padded = weight.new_ones(",
        (RESERVOIRS, *CORRECTIONS),
    ),
    Mutant(
        "v instead of u (window)", GRADIENTS, "return (self.tensors[1] @ d", "return (self.tensors[0] @ d", CORRECTIONS
    ),
    Mutant("no trust bound", MOMENTUM, ".clamp(max=1.0)", ".clamp(max=1.0) * 0 + 1", CORRECTIONS),
    Mutant(
        "μ instead of μ̂ (literal recursion)",
        PARAM_GROUP,
        '["literal"] = momentum *',
        '["literal"] = state["mu"] *',
        CORRECTIONS,
    ),
    # Target networks
    Mutant(
        "targets of followed networks count as constant",
        BATCH_GRAPH,
        "or any(id(p) in leaves for p in self._followed)",
        "or False",
        (FOLLOW,),
    ),
    Mutant(
        "followed networks do not move",
        PARAM_GROUP,
        "self._point, self._free = self.joint.point(out=self._free), None",
        "self._point, self._free = self.joint.point(out=self._free), None\n"
        "            self._point[self.params.size :] = 0.0",
        (FOLLOW,),
    ),
    Mutant(
        "a copy's half of the diagonal meets the parameters' displacement",
        DIAGONAL,
        "eta.addcmul_(zeta[..., n:], displacement[..., n:], value=-1)",
        "eta.addcmul_(zeta[..., n:], displacement[..., :n], value=-1)",
        (FOLLOW,),
    ),
    Mutant(
        "a copy's diagonal with its own v",
        GRADIENTS,
        "for (v, _, c), (_, u, _) in zip(",
        "for (_, v, c), (_, u, _) in zip(",
        (FOLLOW,),
    ),
    Mutant(
        "blocks of a copy are not cut like the parameters",
        BLOCKS,
        "start, copy_start = 0, sum(sizes)",
        "start, copy_start = 0, 0",
        (FOLLOW,),
    ),
    Mutant(
        "the last piece of the parameters counts as followed",
        GRADIENTS,
        "piece if piece.span.stop <= size else piece.of_followed() for piece in _cut(pieces, cuts)",
        "piece if piece.span.stop < size else piece.of_followed() for piece in _cut(pieces, cuts)",
        (FOLLOW,),
    ),
    Mutant(
        "slots forget what is followed",
        SLOTS,
        'followed=memory.get("followed", 0)',
        "followed=0",
        (FOLLOW,),
    ),
    Mutant("accumulated batches forget what is followed", GRADIENTS, "hessian, first.followed)", "hessian)", (FOLLOW,)),
    Mutant(
        "every group takes the first parameters of a copy",
        "src/unstale/_follow.py",
        'start += len(group["params"])',
        "pass",
        (FOLLOW,),
    ),
    Mutant(
        "a network may change within a step",
        "src/unstale/_follow.py",
        "if not torch.equal(before, now):",
        "if False:",
        (FOLLOW,),
    ),
    Mutant(
        "a replaced network is no matter",
        "src/unstale/_follow.py",
        "        return warn_replaced_target\n",
        "        pass\n",
        (FOLLOW,),
    ),
    Mutant(
        "groups keep the network that was replaced",
        OPTIMIZER,
        "group.follow(followed_by(group.settings, self.param_groups, self.followed))",
        "pass",
        (FOLLOW,),
    ),
    Mutant(
        "monitor: the point of a followed network is forgotten",
        MONITOR,
        "mu, point = self._momentum.read(), self._joint.point()",
        "mu, point = self._momentum.read(), self._point",
        ("tests/test_monitor.py",),
    ),
    Mutant(
        "a function may read variables of the loop",
        "src/unstale/_late_binding.py",
        "            if changed:\n",
        "            if False:\n",
        ("tests/test_late_binding.py",),
    ),
    Mutant("the plan forgets followed parameters", SELECT, '+ sizes.get("followed", 0))', ")", (FOLLOW,)),
    # Losses of whole rows
    Mutant(
        "slopes of rows are held constant",
        "src/unstale/_batch.py",
        "level = prediction - slope",
        "level = prediction - prediction.detach() - slope.detach()",
        (ROWS,),
    ),
    Mutant(
        "rows count once per column",
        "src/unstale/_batch.py",
        "share = (weight / count).expand(value.shape)",
        "share = (weight / prediction.numel()).expand(value.shape)",
        (ROWS,),
    ),
    Mutant(
        "cross-entropy without the target's sum",
        "src/unstale/losses.py",
        "logits.softmax(-1) * target.sum(-1, keepdim=True) - target",
        "logits.softmax(-1) - target",
        (ROWS,),
    ),
    Mutant(
        "quantile loss with the other level",
        "src/unstale/losses.py",
        "(errors.detach() < 0)",
        "(errors.detach() > 0)",
        (ROWS,),
    ),
    Mutant(
        "quantile slopes without the Huber bound",
        "src/unstale/losses.py",
        "errors.clamp(-kappa, kappa)",
        "errors",
        (ROWS,),
    ),
    Mutant(
        "atoms are not shared by their neighbours",
        "src/unstale/distributions.py",
        ".abs() / spacing).clamp(min=0)",
        ".abs() / spacing).clamp(min=0).round()",
        (ROWS,),
    ),
    Mutant(
        "warnings look at the slopes of rows",
        "src/unstale/_follow.py",
        "traced.traces[1].reached if is_traced else reached_leaves(batch.given_target)",
        "traced.traces[1].reached",
        (ROWS,),
    ),
    # Reservoir and thinned dense
    Mutant(
        "survivors keep their weight (reservoir)",
        RESERVOIR,
        "torch.where(is_full, 1 / (1 - 1 / self.plan.pool), 1.0)",
        "torch.where(is_full, 1.0, 1.0)",
        in_reservoirs("expected_weight_at_every_age"),
    ),
    Mutant(
        "pool gains weight before it is full (reservoir)",
        RESERVOIR,
        "torch.where(is_full, 1 / (1 - 1 / self.plan.pool), 1.0)",
        "torch.where(is_full, 1 / (1 - 1 / self.plan.pool), 1 / (1 - 1 / self.plan.pool))",
        (RESERVOIRS,),
    ),
    Mutant(
        "generation that moves gains weight (reservoir)",
        RESERVOIR,
        "        in_pool = pool.view(-1)\n",
        "        pool.scatter_(0, row, newest.index_select(0, oldest))\n        in_pool = pool.view(-1)\n",
        in_reservoirs("expected_weight_at_every_age"),
    ),
    Mutant(
        "first row of the pool is always replaced (reservoir)",
        RESERVOIR,
        "stream=-1).mul_(self.plan.pool).long()",
        "stream=-1).mul_(0).long()",
        (RESERVOIRS,),
    ),
    Mutant(
        "pool is full too early (reservoir)",
        RESERVOIR,
        "is_full = number >= self.plan.pool",
        "is_full = number >= self.plan.pool - 1",
        in_reservoirs("reservoir_with_room_for_everything_is_dense"),
    ),
    Mutant(
        "youngest generation moves to the pool (reservoir)",
        RESERVOIR,
        "oldest = (generation % self.plan.newest).unsqueeze(0)",
        "oldest = ((generation - 1) % self.plan.newest).unsqueeze(0)",
        in_reservoirs("newest_generations_are_all_kept"),
    ),
    Mutant("generations are not counted (reservoir)", RESERVOIR, 'memory["generation"] += 1', "pass", (RESERVOIRS,)),
    Mutant(
        "slots are lost (reservoir)",
        RESERVOIR,
        "newest.index_copy_(0, oldest, freed)",
        "pass",
        in_reservoirs("slots_are_a_permutation"),
    ),
    Mutant(
        "inverse probability of samples is missing (reservoir)",
        RESERVOIR,
        "Selection(rows, self.every * samples / wanted)",
        "Selection(rows, float(self.every))",
        (RESERVOIRS,),
    ),
    Mutant(
        "inverse probability of steps is missing (reservoir)",
        RESERVOIR,
        "Selection(torch.arange(samples, device=device), float(self.every))",
        "Selection(torch.arange(samples, device=device), 1.0)",
        (RESERVOIRS,),
    ),
    Mutant(
        "several batches in one step have the weight of one (reservoir)",
        RESERVOIR,
        ".scaled(batch.samples / wanted)",
        "",
        (RESERVOIRS,),
    ),
    Mutant(
        "batches of one step have the same rows (reservoir)",
        RESERVOIR,
        "stream=1 + call",
        "stream=1",
        in_reservoirs("batches_of_one_step_have_choices_of_their_own"),
    ),
    Mutant(
        "first row of every part is chosen (reservoir)",
        RESERVOIR,
        "((parts + uniform) * (population / len(uniform)))",
        "((parts + 0 * uniform) * (population / len(uniform)))",
        (RESERVOIRS,),
    ),
    Mutant(
        "all seeds have one phase (reservoir)",
        RESERVOIR,
        'is_chosen(memory.get("step", 0), self.every, self.seed)',
        'is_chosen(memory.get("step", 0), self.every, 0)',
        in_reservoirs("nothing_has_entered_yet"),
    ),
    Mutant(
        "missing 1-β (reservoir)",
        RESERVOIR,
        "where, batch.curvature * (1 - per_run(beta, batch.curvature)))",
        "where, batch.curvature)",
        (RESERVOIRS,),
    ),
    Mutant(
        "missing β (reservoir)",
        RESERVOIR,
        "slots.move(memory, displacement, beta)",
        "slots.move(memory, displacement, 1.0)",
        (RESERVOIRS,),
    ),
    Mutant(
        "new samples are shifted (reservoir)",
        RESERVOIR,
        "        if batch is not None:\n            self._enter(memory, batch, beta)\n        return slots.eta(memory) "
        'if "weight" in memory',
        "        if batch is not None:\n            self._enter(memory, batch, beta)\n"
        "            slots.move(memory, displacement, 1.0)\n        return slots.eta(memory) "
        'if "weight" in memory',
        (RESERVOIRS,),
    ),
    Mutant(
        "more slots than given (reservoir)",
        RESERVOIR,
        "min(slots // samples - 1, math",
        "max(0, math",
        in_reservoirs("plans_have_at_most_the_given_slots"),
    ),
    Mutant(
        "all seeds have one phase (thinned dense)",
        BLOCKS,
        'is_chosen(memory.get("step", 0), self.every, self.seed)',
        'is_chosen(memory.get("step", 0), self.every, 0)',
        in_reservoirs("mean_over_all_phases_of_thinned_dense_is_dense"),
    ),
    Mutant(
        "inverse probability is missing (thinned dense)",
        BLOCKS,
        "Selection(None, float(self.every))",
        "Selection(None, 1.0)",
        in_reservoirs("mean_over_all_phases_of_thinned_dense_is_dense"),
    ),
    Mutant(
        "steps are not counted (thinned dense)",
        BLOCKS,
        'memory["step"] += 1',
        "pass",
        in_reservoirs("mean_over_all_phases_of_thinned_dense_is_dense", "thinned_dense_uses_one_batch_in_so_many"),
    ),
    Mutant(
        "chosen samples are not weighted (optimizer)",
        PARAM_GROUP,
        "return batch if selection.inverse_probability == 1 else batch.scaled(selection.inverse_probability)",
        "return batch",
        in_reservoirs("optimizers_are_unbiased"),
    ),
    Mutant(
        "all samples are kept (optimizer)",
        PARAM_GROUP,
        "        batch = batch.select(selection.rows)\n",
        "        pass\n",
        in_reservoirs("optimizers_are_unbiased"),
    ),
    Mutant(
        "plan is made again after loading (optimizer)",
        PARAM_GROUP,
        'state.get("plan") or self._make_plan(samples)',
        "self._make_plan(samples)",
        in_reservoirs("a_loaded_plan_is_that_of_the_first_batch"),
    ),
    Mutant(
        "seed is ignored (optimizer)",
        SELECT,
        'Reservoir(ReservoirPlan(*plan["reservoir"]), settings["seed"], part)',
        'Reservoir(ReservoirPlan(*plan["reservoir"]), 0, part)',
        in_reservoirs("same_seed_same_run"),
    ),
    Mutant(
        "batch that is not chosen is taken for cleared (optimizer)",
        PARAM_GROUP,
        "return not bool(now.any())",
        "return True",
        (f"{INPUTS}::test_a_step_with_one_bad_batch_is_skipped_whole",),
    ),
    Mutant(
        "batch that is not chosen is never taken for cleared (optimizer)",
        PARAM_GROUP,
        "return not bool(now.any())",
        "return False",
        in_reservoirs("batches_cleared_in_place_are_forgotten_by_all_groups"),
    ),
    Mutant(
        "debiasing ignores that β grew (optimizer)",
        PARAM_GROUP,
        'beta * state.get("mean_weight", 0.0) + (1 - beta)',
        '1 - beta ** float(state["step"])',
        (PLANS,),
    ),
    Mutant(
        "β grows without limit (optimizer)",
        PARAM_GROUP,
        'MIN_MEMORY if plan is None else plan["max_memory"]',
        "MIN_MEMORY if plan is None else 1e9",
        (PLANS,),
    ),
    Mutant(
        "β is unknown after loading (optimizer)",
        PARAM_GROUP,
        "self.plan or saved_plan",
        "self.plan",
        in_reservoirs("momentum_beta_is_known_after_loading"),
    ),
    Mutant(
        "β grows without a long memory (optimizer)",
        PARAM_GROUP,
        'if beta is None and self.settings["correction"] not in corrections.LONG_MEMORY:',
        "if False:",
        (PLANS,),
    ),
    Mutant(
        "slots exceed memory (plan)",
        SELECT,
        'max(1, min(slots, MAX_SLOT_BYTES // (sizes["slot_numbers"] * sizes["itemsize"])))',
        "slots",
        (PLANS,),
    ),
    Mutant(
        "numbers in a slot cost nothing (plan)",
        SELECT,
        ' + SLOT_NUMBER_WORK * sizes["slot_numbers"]',
        "",
        (PLANS,),
    ),
    Mutant(
        "slots for more samples than the memory has (plan)",
        SELECT,
        '        MAX_SAMPLING_RATIO * memory * sizes["batch"],\n',
        "",
        (PLANS,),
    ),
    Mutant(
        "slots are not a multiple of 128 (plan)",
        SELECT,
        "math.floor(slots / 128) * 128",
        "math.floor(slots)",
        (PLANS,),
    ),
    Mutant("fixed cost is ignored (plan)", SELECT, "(budget - FIXED_COST) *", "budget *", (PLANS,)),
    Mutant("batch size is ignored (plan)", SELECT, '(overhead + 6 * sizes["batch"] *', "(overhead + 6 *", (PLANS,)),
    Mutant("entries of a matrix cost nothing (plan)", SELECT, "entries * DENSE_ENTRY_WORK <=", "entries <=", (PLANS,)),
    Mutant("a matrix may be of any size (plan)", SELECT, "<= MAX_DENSE_BYTES", "<= 1 << 60", (PLANS,)),
    Mutant("entries of directions are not limited", MOMENTUM, "clamp_(-MAX_ENTRY, MAX_ENTRY)", "clone()", (PLANS,)),
    Mutant(
        "memory grows half as fast",
        MOMENTUM,
        "MEMORY_SHARE, MIN_MEMORY = 0.1,",
        "MEMORY_SHARE, MIN_MEMORY = 0.05,",
        (PLANS,),
    ),
    Mutant(
        "an entry counts for itself alone (sampled)",
        BATCH,
        "curvature=batch.curvature[entries] * columns",
        "curvature=batch.curvature[entries]",
        (SAMPLED,),
    ),
    Mutant("every step draws the same entries (sampled)", BATCH, "torch.tensor(number", "torch.tensor(0", (SAMPLED,)),
    Mutant(
        "streams are the same (hash)",
        RANDOM,
        " + stream * 0xD1B54A32D192ED03",
        "",
        in_reservoirs("neighbouring_uniform_numbers_are_not_correlated"),
    ),
    Mutant(
        "counters overlap (hash)",
        RANDOM,
        "+ counter * count",
        "+ counter",
        in_reservoirs("uniform_numbers_are_in_the_unit_interval_and_do_not_repeat"),
    ),
    Mutant(
        "one multiplication is missing (hash)",
        RANDOM,
        "x = (x ^ (x >> 29)) * MIXERS[1]",
        "x = x ^ (x >> 29)",
        in_reservoirs("uniform_numbers_are_those_of_the_definition"),
    ),
    Mutant(
        "period ignores merging (dense)",
        BLOCKS,
        "return self.every * self.merge_every",
        "return self.every",
        ("lab/tests/test_cuda_graphs.py",),
    ),
    Mutant(
        "mean of gradients is not debiased (Adam)",
        OPTIMIZERS,
        "scale = weight / math.sqrt(",
        "scale = 1 / math.sqrt(",
        (REFERENCE,),
    ),
    Mutant(
        "mean of squares is not debiased (Adam)",
        OPTIMIZERS,
        "weight / math.sqrt(1 - beta2",
        "weight / math.sqrt(1 - 0 * beta2",
        (REFERENCE,),
    ),
    Mutant(
        "ε is not debiased (Adam)",
        OPTIMIZERS,
        'add_(weight * as_scalar(settings["eps"]))',
        'add_(as_scalar(settings["eps"]))',
        (REFERENCE,),
    ),
    Mutant("few slots do not warn (plan)", SELECT, "MIN_SAMPLING_RATIO * batch * memory * 0.8", "0", (PLANS,)),
    Mutant(
        "memory does not depend on slots (plan)",
        SELECT,
        "min(MAX_MEMORY, slots / (batch * MIN_SAMPLING_RATIO))",
        "MAX_MEMORY",
        (PLANS,),
    ),
    # Per-sample gradients
    Mutant(
        "no gradient of the target (materialized)",
        LINEARIZE,
        "v if y is None else v + y",
        "v",
        (REFERENCE, *PER_SAMPLE),
    ),
    Mutant(
        "no gradient of the target (factored)",
        GRADIENTS,
        "a, b = self.tensors\n        d = self._matrix",
        "a, b = (t[: self.head] for t in self.tensors)\n        d = self._matrix",
        (REFERENCE, *PER_SAMPLE),
    ),
    Mutant("sign of the target", LINEARIZE, "1.0 if role == 0 else -1.0", "1.0", PER_SAMPLE),
    Mutant("output gradients keep the slope", LINEARIZE, "b / each if is_matrix", "b if is_matrix", (REFERENCE, FUZZ)),
    Mutant(
        "division by slopes of zero",
        LINEARIZE,
        "or not bool((slope.abs() > smallest).all())",
        "or False",
        (REFERENCE, FUZZ, CONTRACT),
    ),
    Mutant("missing rows count", SAMPLE_ROWS, "present = place < counts", "present = place <= counts", PER_SAMPLE),
    Mutant("inputs are not copied", LINEARIZE, "else parts[0].clone()", "else parts[0]", PER_SAMPLE),
    Mutant(
        "weight that is not transposed",
        LAYER_RULES,
        "(a, b_) if transposed else (b_, a)",
        "(a, b_)",
        PER_SAMPLE,
    ),
    Mutant("gradient of the padding row (embedding)", LAYER_RULES, "if padding >= 0:", "if False:", PER_SAMPLE),
    Mutant(
        "flip as an elementwise operation", ROW_RULES, '"FlipBackward0": flip,', '"FlipBackward0": unary,', PER_SAMPLE
    ),
    Mutant(
        "broadcast rows belong to one sample",
        OWNERS,
        "result = common(owner, spread, reason)",
        "result = owner[tuple(slice(1) if d in spread else slice(None) for d in range(owner.ndim))]",
        PER_SAMPLE,
    ),
    Mutant(
        "reduced rows belong to one sample",
        OWNERS,
        "highest if bool(((owner == highest) | (owner < 0)).all()) else Shared(reason)",
        "highest",
        PER_SAMPLE,
    ),
    Mutant(
        "row picked twice belongs to one sample",
        OWNERS,
        "rows if torch.equal(rows[index], owner) else Shared(reason)",
        "rows",
        PER_SAMPLE,
    ),
    Mutant(
        "row with two consumers belongs to one sample",
        OWNERS,
        "if bool(((a == b) | (a < 0) | (b < 0)).all()):",
        "if True:",
        PER_SAMPLE,
    ),
    Mutant(
        "view keeps the owner unchanged",
        OWNERS,
        "if owner.ndim == 0 or (owner.ndim == 1 and in_shape and in_shape[0] == out_shape[0]):",
        "if True:",
        PER_SAMPLE,
    ),
    # Scaled gradients
    Mutant("scaling is not inferred", PARAM_GROUP, "if not torch.equal(self._left, now):", "if False:", (CONTRACT,)),
    Mutant(
        "factor from a single entry", GRAD_SCALING, "int(telling.sum()) >= 2", "int(telling.sum()) >= 1", (CONTRACT,)
    ),
    Mutant("clipping leaves the batch unscaled", OPTIMIZER, "group.record_scaling(factor)", "pass", (CONTRACT,)),
    # The laboratory's engine
    Mutant(
        "no gradient of the target (engine)",
        NETWORK,
        "torch.cat([ones, -discount], -1)",
        "ones.repeat(1, 2)",
        (ENGINE,),
    ),
    Mutant(
        "oracle counts batches before the first", TRAINING, "self.ages <= self.step_number", "self.ages >= 0", (ENGINE,)
    ),
    Mutant(
        "diverged runs continue",
        TRAINING,
        "< DIVERGENCE_THRESHOLD) & (self.diverged_at < 0)",
        "< DIVERGENCE_THRESHOLD)",
        (ENGINE,),
    ),
    Mutant(
        "target network copied once",
        TRAINING,
        "self.method.target_every == 0",
        "self.method.target_every < 0",
        (ENGINE,),
    ),
    Mutant(
        "drift of the next batch",
        DATA,
        "self._position - skip - self._ages",
        "self._position - self._ages",
        (ENGINE,),
    ),
]


def survives(mutant: Mutant) -> bool:
    """Return whether the tests pass with the mutant."""
    with tempfile.TemporaryDirectory() as folder:
        for part in COPIED:
            source, copy = ROOT / part, Path(folder) / part
            shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
        target = Path(folder) / mutant.file
        text = target.read_text("utf-8")
        if text.count(mutant.old) != 1:
            sys.exit(
                f"{mutant.name}: its line occurs {text.count(mutant.old)} times in {mutant.file}; fix tools/mutants.py"
            )
        target.write_text(text.replace(mutant.old, mutant.new), "utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
        paths = [str(Path(folder) / part) for part in ("src", "lab/src", "tests", "lab/tests")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if run.returncode not in (0, 1):
            sys.exit(f"{mutant.name}: the tests did not run\n{run.stdout}{run.stderr}")
        return run.returncode == 0


def main(words: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    alive = 0
    for mutant in chosen:
        lives = survives(mutant)
        alive += lives
        print(f"{'SURVIVES' if lives else 'killed  '}  {mutant.name}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} killed")
    return alive


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
