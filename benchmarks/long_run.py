"""Does anything change over 200,000 steps that should not? Memory, rounding, slots, and checkpoints.

    PYTHONPATH=src python benchmarks/long_run.py                            # about an hour; --jobs 7 for seven cores
    PYTHONPATH=src python benchmarks/long_run.py --steps 2000 --out x.json  # to see that it runs
    PYTHONPATH=src python benchmarks/long_run.py --device cuda              # memory and checkpoints; no slots

A tiny network learns values of an endless stream of random transitions with every correction. Checked are:

- memory: the resident set of the process (and what torch has allocated on CUDA) does not grow after a tenth of the run;
- rounding: window and dense, two forms of one correction, stay together in float32;
- slots: whenever the slots of a window or the newest ones of a reservoir have all been written again, each holds the
  sample, the weight and the shift that a list of all past batches says, computed anew in float64;
- checkpoints: an optimizer that loads a state from the middle goes on bit for bit (an oracle cannot, because its past
  batches are functions).

Results go to ``results/long_run.json`` and ``results/long_run.md``, or ``long_run-cuda`` on CUDA.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
from machine import describe
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import unstale
from unstale._random import uniform

BATCH, INPUTS, GAMMA, LR, BETA = 2, 3, 0.9, 0.05, 0.9
BLOCK = 1000  # batches that are drawn at a time
HORIZON = 200  # 0.9^200 is below the rounding of float32, so that a window forgets nothing that counts
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "diagonal": {},
    "blocks": {},
    "dense": {},
    "window": dict(horizon=HORIZON),
    "reservoir": dict(slots=24),
    "oracle": dict(horizon=4),
}
FULL = 200_000  # steps
SAMPLES = 100  # of memory and parameters during a run
RESULTS = Path(__file__).parent / "results"


class Transitions(NamedTuple):
    """One batch."""

    state: Tensor  # [BATCH, INPUTS]
    following: Tensor
    reward: Tensor
    terminated: Tensor


class Stream:
    """Batches by their number, so that a run can go on anywhere."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._number = -1

    def batch(self, number: int) -> Transitions:
        if number // BLOCK != self._number:
            self._number = number // BLOCK
            generator = torch.Generator().manual_seed(self._number)
            drawn = torch.randn(BLOCK, BATCH, 2 * INPUTS + 2, generator=generator).to(self.device)
            self._state, self._following = drawn[..., :INPUTS], drawn[..., INPUTS : 2 * INPUTS]
            self._reward, self._terminated = drawn[..., -2], (drawn[..., -1] > 1).float()
        at = number % BLOCK
        return Transitions(self._state[at], self._following[at], self._reward[at], self._terminated[at])


def evaluate(model: nn.Module, batch: Transitions) -> tuple[Tensor, Tensor]:
    value, following = model(batch.state).squeeze(-1), model(batch.following).squeeze(-1)
    return value, batch.reward + GAMMA * (1 - batch.terminated) * following


class Trainer:
    """A model and its optimizer, some steps into a run."""

    def __init__(self, correction: str, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.correction = correction
        self.model = nn.Sequential(nn.Linear(INPUTS, 4), nn.Tanh(), nn.Linear(4, 1)).to(device, dtype)
        self.optimizer = unstale.CorrectedSGD(
            self.model, lr=LR, beta=BETA, correction=correction, **OPTIONS[correction]
        )
        self.stream = Stream(device)
        self.steps = 0

    def step(self) -> None:
        batch = self.stream.batch(self.steps)
        if self.correction == "oracle":
            self.optimizer.backward(lambda: evaluate(self.model, batch))
        else:
            self.optimizer.backward(*evaluate(self.model, batch))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1

    @property
    def parameters(self) -> Tensor:
        """In the order of the optimizer's flat vectors."""
        ordered = self.optimizer.ready_groups()[0].params.parameters
        return torch.cat([p.detach().flatten() for p in ordered])

    @property
    def memory(self) -> dict[str, Any]:
        found: dict[str, Any] = self.optimizer.state_of("group 0")["memory"]
        return found

    def save(self) -> bytes:
        file = io.BytesIO()
        torch.save((self.steps, self.model.state_dict(), self.optimizer.state_dict()), file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        self.steps, model, optimizer = torch.load(io.BytesIO(saved), weights_only=True)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)


# ----------------------------------------------------------------------------------------- slots, by lists of batches


class Remembered(NamedTuple):
    """A sample in a slot: its batch, its row, and its weight divided by β^age."""

    step: int
    row: int
    weight: float


class Literal:
    """What the slots of a window or reservoir hold, from lists of past batches. Nothing is updated in place."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.points: dict[int, dict[str, Tensor]] = {}  # parameters when a batch was linearized
        self.batches: dict[int, Transitions] = {}
        self.generations: list[list[Remembered]] = []  # that entered, of a window or among the newest of a reservoir
        self.pool: list[list[Remembered]] = []
        self.entered = 0

    def before_step(self) -> None:
        """Look at the batch that the next step takes."""
        step = self.trainer.steps
        plan = self.trainer.optimizer.state_of("group 0").get("plan")
        every = 1 if plan is None or plan["reservoir"] is None else plan["reservoir"][1]
        if (step - step // every) % every:
            return
        self.points[step] = {name: p.detach().double().clone() for name, p in self.trainer.model.named_parameters()}
        self.batches[step] = Transitions(*(x.double() for x in self.trainer.stream.batch(step)))

    def after_step(self) -> bool:
        """Add the batch that was looked at. Whether the slots have all been written again since the last time."""
        step, plan = self.trainer.steps - 1, self.trainer.optimizer.state_of("group 0")["plan"]
        if step not in self.batches:
            return False
        share = (1 - BETA) / BATCH
        if plan["reservoir"] is None:
            self.generations.append([Remembered(step, row, share) for row in range(BATCH)])
            self.generations = self.generations[-plan["horizon"] :]
            period = plan["horizon"]
        else:
            self._enter(step, share, *plan["reservoir"])
            period = plan["reservoir"][2]
        self.entered += 1
        held = {one.step for part in (*self.generations, *self.pool) for one in part}
        self.points = {step: point for step, point in self.points.items() if step in held}
        self.batches = {step: batch for step, batch in self.batches.items() if step in held}
        return self.entered % period == 0

    def _enter(self, step: int, share: float, samples: int, every: int, newest: int, pool: int) -> None:
        """A generation enters; the oldest of the newest ones moves to the pool."""
        number = torch.tensor(self.entered)
        parts = uniform(0, number, samples, stream=1).tolist()
        rows = [int((part + random) * BATCH / samples) for part, random in enumerate(parts)]
        if samples == BATCH:
            rows = list(range(BATCH))
        if len(self.generations) == newest:
            leaving, self.generations = self.generations[0], self.generations[1:]
            if len(self.pool) < pool:
                self.pool.append(leaving)
            else:
                scale = 1 / (1 - 1 / pool)  # survivors count for those that are replaced
                replaced = [int(random * pool) for random in uniform(0, number, samples, stream=-1).tolist()]
                self.pool = [
                    [
                        leaving[column] if replaced[column] == place else one._replace(weight=one.weight * scale)
                        for column, one in enumerate(row)
                    ]
                    for place, row in enumerate(self.pool)
                ]
                # The one that has just moved is scaled only from the next time on.
        self.generations.append([Remembered(step, row, share * every * BATCH / samples) for row in rows])

    def errors(self) -> dict[str, float]:
        """The largest relative errors of weights and shifts in slots, and that of η."""
        memory = self.trainer.memory
        places, held = [], []
        for place, generation in self._placed(memory):
            places += place
            held += generation
        at = self.trainer.steps - 1  # the memory counts from where the last batch was linearized
        now = {name: p.double() for name, p in self._anchor().items()}
        v, u = self._gradients(held)
        weight = torch.tensor([one.weight * BETA ** (at - one.step) for one in held], dtype=torch.float64)
        shift = sum(
            (u[name] * (now[name] - torch.stack([self.points[one.step][name] for one in held]))).flatten(1).sum(1)
            for name in now
        )
        names = {id(p): name for name, p in self.trainer.model.named_parameters()}
        order = [names[id(p)] for p in self.trainer.optimizer.ready_groups()[0].params.parameters]
        eta = -torch.cat([torch.einsum("k,k...->...", weight * shift, v[name]).flatten() for name in order])
        found = {"weight": memory["weight"][places].double().cpu(), "shift": memory["shift"][places].double().cpu()}
        others = torch.ones(len(memory["weight"]), dtype=torch.bool)
        others[places] = False
        if bool(memory["weight"].cpu()[others].any()):
            raise AssertionError("a slot that should be empty has a weight")
        errors = {name: _relative(found[name], expected) for name, expected in (("weight", weight), ("shift", shift))}
        own = unstale.corrections.slots.eta(memory).double().cpu()
        return {**errors, "eta": _relative(own, eta)}

    def _placed(self, memory: dict[str, Any]) -> list[tuple[list[int], list[Remembered]]]:
        """The slots of every generation."""
        if "newest" not in memory:
            count = OPTIONS["window"]["horizon"]
            return [([one.step % count * BATCH + one.row for one in part], part) for part in self.generations]
        newest, pool = memory["newest"].tolist(), memory["pool"].tolist()
        first = self.entered - len(self.generations)
        rows = [(newest[(first + number) % len(newest)], part) for number, part in enumerate(self.generations)]
        return rows + list(zip(pool, self.pool, strict=False))

    def _anchor(self) -> dict[str, Tensor]:
        flat = self.trainer.optimizer.state_of("group 0")["anchor"].cpu()
        ordered = self.trainer.optimizer.ready_groups()[0].params.parameters
        parts = flat.split([p.numel() for p in ordered])
        by_id = {id(p): part.view(p.shape) for p, part in zip(ordered, parts, strict=True)}
        return {name: by_id[id(p)] for name, p in self.trainer.model.named_parameters()}

    def _gradients(self, held: list[Remembered]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """``v`` and ``u`` of every sample, by parameter, each at the parameters of its own time."""
        model = self.trainer.model
        names = [name for name, _ in model.named_parameters()]
        points = {name: torch.stack([self.points[one.step][name] for one in held]).cpu() for name in names}
        batches = [self.batches[one.step] for one in held]
        state, following, terminated = (
            torch.stack([getattr(batch, field)[one.row] for batch, one in zip(batches, held, strict=True)]).cpu()
            for field in ("state", "following", "terminated")
        )

        def value(point: dict[str, Tensor], x: Tensor) -> Tensor:
            found: Tensor = functional_call(model, point, (x,)).squeeze(-1)
            return found

        gradients = vmap(grad(value))
        v, after = gradients(points, state), gradients(points, following)
        discount = GAMMA * (1 - terminated)
        return v, {name: v[name] - torch.einsum("k,k...->k...", discount, after[name]) for name in names}


def _relative(found: Tensor, expected: Tensor) -> float:
    """The largest error, relative to the largest entry."""
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


# ------------------------------------------------------------------------------------------------------------- a run


def resident_bytes(device: str) -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    found = {"resident": pages * os.sysconf("SC_PAGE_SIZE")}
    return found | ({"cuda": torch.cuda.memory_allocated()} if device == "cuda" else {})


def run(correction: str, steps: int, device: str = "cpu") -> dict[str, Any]:
    """Train, with all checks; what was measured."""
    torch.set_num_threads(1)
    trainer = Trainer(correction, device)
    has_slots = correction in ("window", "reservoir") and device == "cpu"
    literal = Literal(trainer) if has_slots else None
    found: dict[str, Any] = dict(correction=correction, steps=steps, wraps=0, errors={}, resident=[], path=[])
    saved, resumed_until, snapshot = b"", steps // 2 + max(1, steps // 10), b""
    start = time.perf_counter()
    while trainer.steps < steps:
        if literal is not None:
            literal.before_step()
        trainer.step()
        if literal is not None and literal.after_step():
            found["wraps"] += 1
            for name, error in literal.errors().items():
                found["errors"][name] = max(found["errors"].get(name, 0.0), error)
        if trainer.steps % max(1, steps // SAMPLES) == 0:
            found["resident"].append(resident_bytes(device))
            found["path"].append(trainer.parameters.tolist())
        if trainer.steps == steps // 2:
            saved = trainer.save()
        if trainer.steps == resumed_until:
            snapshot = trainer.save()
    found["seconds"] = time.perf_counter() - start
    found["is_finite"] = bool(trainer.parameters.isfinite().all())
    later = found["resident"][len(found["resident"]) // 10 :]
    found["growth"] = {name: max(each[name] for each in later) - later[0][name] for name in later[0]}
    found["is_exact"] = None if correction == "oracle" else resumes_exactly(correction, saved, snapshot, device)
    return found


def resumes_exactly(correction: str, saved: bytes, later: bytes, device: str = "cpu") -> bool:
    """Whether training that loads ``saved`` arrives at ``later``, in all bits of parameters and state."""
    resumed, expected = Trainer(correction, device), Trainer(correction, device)
    resumed.load(saved)
    expected.load(later)
    while resumed.steps < expected.steps:
        resumed.step()
    one, other = ((t.model.state_dict(), t.optimizer.state_dict()) for t in (resumed, expected))
    return _same(one, other)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of parameters of two runs, relative to their largest."""
    a, b = (torch.tensor(each["path"]) for each in (one, other))
    return float((a - b).abs().max() / a.abs().max())


# ---------------------------------------------------------------------------------------------------------- the page


def page(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    machine = results["machine"]
    lines = [
        "# Long runs",
        "",
        "Does anything change over many steps that should not? One network of 21 parameters, `CorrectedSGD` at a "
        f"constant learning rate, β = {BETA}, batches of {BATCH}, float32.",
        "",
        f"`{results['command']}`, {machine['date']}, {machine.get('gpu', machine['cpu'])}, torch {machine['torch']}, "
        "one thread per run.",
        "",
        "- *memory growth*: of the resident set, from a tenth of the run on, at 100 samples"
        + (" (and of CUDA allocations)" if results["device"] == "cuda" else ""),
        "- *wrap-arounds*: how often all slots had been written again; at each of them every slot was compared with a "
        "list of past batches, computed in float64",
        "- *weight, shift, η*: the largest error of these comparisons, relative to the largest entry; the terms "
        "of η can cancel, and their rounding is then large beside what is left",
        "- *resumes exactly*: loading the state from the middle of the run gives the same bits a tenth of the run "
        "later",
        "",
        "| correction | steps | memory growth | wrap-arounds | weight | shift | η | resumes exactly | µs per step |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in results["runs"]:
        growth = ", ".join(f"{size / 2**20:.2f} MiB" for size in each["growth"].values())
        errors = [f"{each['errors'][name]:.1e}" if each["errors"] else "" for name in ("weight", "shift", "eta")]
        exact = {True: "yes", False: "**no**", None: "no¹"}[each["is_exact"]]
        wraps = f"{each['wraps']:,}" if each["wraps"] else ""
        microseconds = f"{each['seconds'] / each['steps'] * 1e6:.0f}"
        cells = [each["correction"], f"{each['steps']:,}", growth, wraps, *errors, exact, microseconds]
        lines.append(f"| {' | '.join(cells)} |")
    if any(each["steps"] < FULL for each in results["runs"]):
        lines += ["", f"A run of {FULL:,} steps, the default of the command, has not been made yet."]
    if any(each["is_exact"] is None for each in results["runs"]):
        lines += ["", "¹ The past batches of an oracle are functions, which no file holds; loading warns about it."]
    if results["distance"] is not None:
        lines += [
            "",
            f"Window and dense are two forms of one correction. Over the whole run their parameters differ by at most "
            f"{results['distance']:.1e}, relative to the largest parameter, at 100 samples.",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=FULL)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", nargs="*", default=list(OPTIONS), choices=list(OPTIONS))
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--out", type=Path, help="JSON file; the page is written beside it")
    arguments = parser.parse_args()
    device = arguments.device
    out = arguments.out or RESULTS / f"long_run{'' if device == 'cpu' else '-cuda'}.json"
    runs: dict[str, Any] = {}
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run, name, arguments.steps, device) for name in arguments.only]):
            found = done.result()
            runs[found["correction"]] = found
            write(runs, arguments.steps, device, out)
            print(f"{found['correction']}: {found['seconds']:.0f} s, exact: {found['is_exact']}", flush=True)


def write(runs: dict[str, Any], steps: int, device: str, out: Path) -> None:
    """The results of all runs so far, and their page."""
    both = [runs[name] for name in ("window", "dense") if "path" in runs.get(name, {})]
    shown = [{k: v for k, v in runs[name].items() if k not in ("path", "resident")} for name in OPTIONS if name in runs]
    results = dict(
        command=f"python benchmarks/long_run.py --steps {steps} --device {device}",
        machine=describe(torch.device(device)),
        device=device,
        steps=steps,
        distance=distance(*both) if len(both) == 2 else None,
        runs=shown,
    )
    out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    out.with_suffix(".md").write_text(page(results), "utf-8")


if __name__ == "__main__":
    main()
