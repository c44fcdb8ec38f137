"""A plain TD(0) training loop with Adam, and the same loop with corrected momentum.

The problem is a random walk over 19 states in a row. Walking off the left end pays -1, off the right end +1, and a
network learns the value of each state from single transitions. Its target contains its own next value, so momentum
averages gradients of targets that have moved since. The correction accounts for that, which allows a long memory.

    python examples/td_loop.py                # torch.optim.Adam
    python examples/td_loop.py --corrected    # unstale.CorrectedAdam
    python examples/td_loop.py --compare      # both, over 5 seeds (half a minute)
    python examples/td_loop.py --compare --anneal --lr 0.003
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import unstale

STATES, GAMMA = 19, 0.95


def walk(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Uniform states, and where one step to the left or right leads from each: state, reward, next, terminated."""
    state = torch.randint(1, STATES + 1, (samples,), generator=generator)
    following = state + 2 * torch.randint(2, (samples,), generator=generator) - 1
    terminated = (following == 0) | (following == STATES + 1)
    reward = torch.where(terminated, (following - state).float(), 0.0)
    return position(state), reward, position(following), terminated.float()


def position(state: Tensor) -> Tensor:
    """What the network sees: one number from -1 to 1."""
    return (2 * state.float() / (STATES + 1) - 1).unsqueeze(-1)


def true_values() -> Tensor:
    """The solution of V(s) = ½ (γ V(s-1) + γ V(s+1)), with what the ends pay in place of their values."""
    beside = torch.diag(torch.ones(STATES - 1), 1) + torch.diag(torch.ones(STATES - 1), -1)
    pay = torch.zeros(STATES)
    pay[0], pay[-1] = -0.5, 0.5
    return torch.linalg.solve(torch.eye(STATES) - GAMMA / 2 * beside, pay)


def main(steps: int = 2000, corrected: bool = False, seed: int = 0, lr: float = 1e-3, anneal: bool = False) -> float:
    """Train, and return the mean squared error against the true values."""
    torch.set_num_threads(1)  # several threads are slower for so small a network
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(1, 32), nn.LeakyReLU(), nn.Linear(32, 32), nn.LeakyReLU(), nn.Linear(32, 1)).float()

    optimizer = unstale.CorrectedAdam(model, lr=lr) if corrected else torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0 if anneal else 1.0, total_iters=steps)

    for _ in range(steps):
        state, reward, following, terminated = walk(16, generator)
        value, next_value = model(state).squeeze(-1), model(following).squeeze(-1)
        target = reward + GAMMA * (1 - terminated) * next_value
        if corrected:
            optimizer.backward(value, target)  # the target is not detached
        else:
            (0.5 * (value - target.detach()) ** 2).mean().backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    with torch.no_grad():
        learned = model(position(torch.arange(1, STATES + 1))).squeeze(-1)
    return float((learned - true_values().float()).square().mean())


def compare(steps: int = 2000, lr: float = 1e-3, anneal: bool = False, seeds: int = 5) -> None:
    """Print the errors of both optimizers. With one seed, both start from the same weights and see the same data."""
    for name, corrected in (("torch.optim.Adam", False), ("unstale.CorrectedAdam", True)):
        errors = [main(steps, corrected, seed, lr, anneal) for seed in range(seeds)]
        print(f"{name:22} {sum(errors) / seeds:.5f} ({min(errors):.5f} to {max(errors):.5f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corrected", action="store_true", help="use unstale.CorrectedAdam")
    parser.add_argument("--compare", action="store_true", help="train with both optimizers, 5 seeds each")
    parser.add_argument("--anneal", action="store_true", help="let the learning rate fall to 0")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.compare:
        compare(chosen.steps, chosen.lr, chosen.anneal)
    else:
        error = main(chosen.steps, chosen.corrected, chosen.seed, chosen.lr, chosen.anneal)
        print(f"mean squared error of the values: {error:.5f}")
