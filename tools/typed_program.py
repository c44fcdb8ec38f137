"""A small user program. tools/check_package.py type-checks it strictly against the built wheel, and runs it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import unstale


def batch_of(model: nn.Module, state: Tensor, reward: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
    value, next_value = model(state).squeeze(-1), model(following).squeeze(-1)
    return value, unstale.targets.td(reward, next_value, torch.zeros(len(reward), dtype=torch.bool), 0.9)


def train_corrected(model: nn.Module) -> dict[str, float]:
    optimizer = unstale.CorrectedAdam(model, lr=1e-3, betas=(None, 0.999), correction="auto", budget=2.5)
    for _ in range(3):
        value, target = batch_of(model, torch.randn(8, 2), torch.randn(8), torch.randn(8, 2))
        loss: Tensor = optimizer.backward(value, target, loss="huber", weight=0.5)
        optimizer.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        assert bool(loss.isfinite())
    return unstale.diagnostics.read(optimizer)


def train_monitored(model: nn.Module) -> str:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = unstale.Monitor(model, optimizer, horizon=5)
    for _ in range(6):
        state, reward, following = torch.randn(8, 2), torch.randn(8), torch.randn(8, 2)

        def batch(s: Tensor = state, r: Tensor = reward, n: Tensor = following) -> tuple[Tensor, Tensor | float]:
            return batch_of(model, s, r, n)

        value, target = monitor.observe(batch)
        assert isinstance(target, Tensor)
        nn.functional.mse_loss(value, target.detach()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return monitor.advice()


def main() -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    reading = train_corrected(model)
    assert reading["steps"] == 3.0
    print(unstale.__version__, train_monitored(model))


if __name__ == "__main__":
    main()
