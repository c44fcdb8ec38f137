"""How much of a run survives in lower precision: one run in float64, float32, bfloat16, and under autocast.

    PYTHONPATH=src python benchmarks/precision.py     # prints the table of docs/precision.md; half a minute

All runs start from the same weights (those that bfloat16 holds exactly) and see the same batches. Reported is how far
the parameters end from those of float64, relative to how far those have moved; and the staleness at the last step.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
from torch import Tensor, nn

import unstale

STEPS, BATCH, INPUTS, GAMMA = 300, 16, 4, 0.9
CORRECTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "diagonal": {},
    "blocks": {},
    "dense": {},
    "window": dict(horizon=100),
    "reservoir": dict(slots=256),
}
FORMS = ("float64", "float32", "bfloat16", "autocast")


class End(NamedTuple):
    """Where a run ends."""

    start: Tensor
    parameters: Tensor
    eta: float  # ‖η‖ / ‖μ‖ of the last step
    state_dtype: torch.dtype


def train(correction: str, form: str, steps: int = STEPS, seed: int = 0) -> End:
    """Train in one of the forms; ``"autocast"`` has parameters in float32 and forward passes in bfloat16."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    dtype = torch.float32 if form == "autocast" else getattr(torch, form)
    model = nn.Sequential(nn.Linear(INPUTS, 16), nn.Tanh(), nn.Linear(16, 1)).bfloat16().to(dtype)
    start = _flat(model)
    optimizer = unstale.CorrectedSGD(model, lr=0.1, beta=0.9, correction=correction, **CORRECTIONS[correction])
    for _ in range(steps):
        drawn = torch.randn(BATCH, 2 * INPUTS + 1, generator=generator, dtype=torch.float64)
        state, following, reward = (x.to(dtype) for x in drawn.split([INPUTS, INPUTS, 1], -1))
        with torch.autocast("cpu", torch.bfloat16) if form == "autocast" else contextlib.nullcontext():
            value, next_value = model(state).squeeze(-1), model(following).squeeze(-1)
        optimizer.backward(value, reward.squeeze(-1) + GAMMA * next_value)
        optimizer.step()
        optimizer.zero_grad()
    staleness = unstale.diagnostics.read(optimizer)["staleness"]
    return End(start, _flat(model), staleness, optimizer.state_of("group 0")["mu"].dtype)


def error(found: End, exact: End) -> float:
    """How far a run ends from the exact one, relative to how far that has moved."""
    return float((found.parameters - exact.parameters).norm() / (exact.parameters - exact.start).norm())


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def main() -> None:
    torch.set_num_threads(1)
    print("| correction | float32 | bfloat16 | autocast | staleness: float64 | float32 | bfloat16 | autocast |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for correction in CORRECTIONS:
        ends = {form: train(correction, form) for form in FORMS}
        errors = [f"{error(ends[form], ends['float64']):.1e}" for form in FORMS[1:]]
        stale = ["" if correction == "none" else f"{ends[form].eta:.4f}" for form in FORMS]
        print(f"| {' | '.join([correction, *errors, *stale])} |", flush=True)


if __name__ == "__main__":
    main()
