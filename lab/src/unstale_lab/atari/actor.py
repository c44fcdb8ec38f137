"""The actor-critic network for Atari frames, and experts: trained actors, stored in files."""

from __future__ import annotations

import copy
import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from ..problems.policies import training_command
from ..problems.tensor_file import TensorFile
from .games import STACK, action_count, check_game
from .sb3 import read_sb3

CURVE = "curve"  # the tensor of the learning curve in the file


class Actor(nn.Module):
    """The network of Mnih et al. (2015) with two heads: logits ``[n, actions]`` and values ``[n]``."""

    def __init__(self, actions: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        single = torch.float32
        self.trunk = nn.Sequential(
            nn.Conv2d(STACK, 32, 8, stride=4, dtype=single),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2, dtype=single),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, dtype=single),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 512, dtype=single),
            nn.ReLU(),
        )
        self.policy = nn.Linear(512, actions, dtype=single)
        self.value = nn.Linear(512, 1, dtype=single)
        for layer in self.trunk:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                _orthogonal(layer, math.sqrt(2), generator)
        _orthogonal(self.policy, 0.01, generator)  # all actions are almost equally likely at first
        _orthogonal(self.value, 1.0, generator)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and values of frames, uint8 ``[n, 4, 84, 84]``."""
        # Convolutions on a GPU are faster in this memory format.
        memory_format = torch.channels_last if observations.is_cuda else torch.contiguous_format
        features = self.trunk(observations.to(torch.float32, memory_format=memory_format) / 255)
        return self.policy(features), self.value(features).squeeze(-1)


@dataclass(frozen=True)
class Expert:
    """The policy of an actor with ε random actions.

    Actions are sampled from the softmax of the logits, or are their argmax if ``greedy``. A network of action values is
    meant to act greedily; a policy that was trained by sampling is not, and may get stuck if it does.
    """

    game: str
    actor: Actor
    epsilon: float = 0.01
    greedy: bool = False

    @torch.no_grad()
    def act(self, observations: Tensor, generator: torch.Generator) -> Tensor:
        """Actions ``[n]`` on the CPU for frames ``[n, 4, 84, 84]``.

        Random numbers are drawn on the CPU, equally many in every step, so that they are the same on all machines.
        """
        weight = self.actor.policy.weight
        logits = self.actor(observations.to(weight.device, non_blocking=True))[0].cpu()
        action = logits.argmax(-1)
        if not self.greedy:
            action = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
        random_action = torch.randint(len(weight), action.shape, generator=generator)
        is_random = torch.rand(action.shape, generator=generator, dtype=torch.float64) < self.epsilon
        return torch.where(is_random, random_action, action)

    def rounded(self) -> Expert:
        """The expert in half precision, as it is stored: it acts exactly like the one that is loaded."""
        actor = copy.deepcopy(self.actor)
        return replace(self, actor=actor.half().float())

    def fingerprint(self) -> str:
        """Twelve characters of a hash of the weights and of how actions are chosen."""
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.actor.state_dict().items()}
        return hashlib.sha256(save(weights) + repr((self.epsilon, self.greedy)).encode()).hexdigest()[:12]


def save_expert(path: Path, expert: Expert, curve: Tensor, about: dict[str, str]) -> None:
    """Writes an expert in half precision (see ``rounded``).

    Args:
        curve: the learning curve, rows of steps, seconds and score.
        about: metadata.
    """
    weights = {name: tensor.detach().cpu().half().contiguous() for name, tensor in expert.actor.state_dict().items()}
    _file(path, expert.game).write({**weights, CURVE: curve}, {**about, "game": expert.game})


def read_metadata(path: Path, game: str) -> tuple[Tensor, dict[str, str]]:
    """The learning curve and the metadata of an expert that ``save_expert`` wrote."""
    tensors, about = _file(path, game).read([*Actor(action_count(game)).state_dict(), CURVE])
    return tensors[CURVE], about


def load_expert(path: Path | str, game: str = "ms_pacman") -> Expert:
    """The expert in a file of this package, or in a ``.zip`` of Stable-Baselines3.

    Raises:
        DataError: the file is missing, damaged, or of another game.
    """
    check_game(game)
    path = Path(path)
    file = _file(path, game)
    actor = Actor(action_count(game))
    expected = actor.state_dict()
    greedy = False
    if path.suffix == ".zip":
        weights, greedy = read_sb3(file, expected)
    else:
        weights, about = file.read([*expected, CURVE])
        if about.get("game") != game:
            raise file.refused(f"it plays {about.get('game', 'an unknown game')}, not {game}")
    for name, tensor in expected.items():
        if weights[name].shape != tensor.shape:
            raise file.refused(f"the shape of {name} is {list(weights[name].shape)}, not {list(tensor.shape)}")
    actor.load_state_dict({name: weights[name] for name in expected})
    return Expert(game, actor.requires_grad_(False), greedy=greedy)


def _orthogonal(layer: nn.Conv2d | nn.Linear, gain: float, generator: torch.Generator | None) -> None:
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)


def _file(path: Path, game: str) -> TensorFile:
    return TensorFile(path, "expert", training_command(game))
