"""Learn to play an Atari game by 5-step Sarsa, with a network of 12,745 parameters and no replay buffer, for a minute.

Momentum is corrected or not; for either, the table shows how far the targets of recent batches drifted since they were
used, and how well their gradients of then agree with those of now: as they were, and as the correction expects them to
be now. A minute on a CPU is enough to see that. To play better than at random (about 250 points in Ms. Pac-Man) takes
some minutes, ``--seconds 300``.

    pip install 'unstale[lab,atari]'
    python examples/atari_sarsa.py                          # Adam
    python examples/atari_sarsa.py --correction diagonal    # the same, corrected
"""

from __future__ import annotations

import argparse

import torch

from unstale.lab.atari.measuring import Point, measured
from unstale.lab.atari.sarsa import Sarsa, Settings
from unstale.lab.atari.scoring import evaluate

COLUMNS = ("steps", "seconds", "score", "drift", "agreement", "stale_agreement", "bounded_share")


def main(settings: Settings, seconds: float = 60, device: str = "cpu", updates: int = 100, games: int = 8) -> Point:
    """Train for so long, print a row every so many updates, and then the score over whole games."""
    training = Sarsa(settings, device)
    print("".join(f"{name:>16}" for name in COLUMNS))
    for point in measured(training, every=updates):
        print("".join(f"{getattr(point, name):>16.4g}" for name in COLUMNS), flush=True)
        if point.seconds > seconds:
            break
    scores = torch.tensor(evaluate(training.policy(), games))
    print(f"mean score of {games} whole games, 1 action in 100 at random: {scores.mean():.0f}")
    return point


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="ms_pacman")
    parser.add_argument("--correction", default="none", help="none, diagonal, window, ...")
    parser.add_argument("--lr", type=float, default=Settings.lr)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    settings = Settings(
        game=chosen.game,
        lr=chosen.lr,
        correction=chosen.correction,
        horizon=20,
        epsilon_steps=10_000,
        seed=chosen.seed,
    )
    main(settings, chosen.seconds, chosen.device)
