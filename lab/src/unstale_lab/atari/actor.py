"""An actor that sees frames, and an expert: an actor that plays a game, kept in a file."""

from __future__ import annotations

import copy
import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from ..problems.policies import making_of
from ..problems.tensor_file import TensorFile
from .games import STACK, action_count, check_game
from .sb3 import read_sb3

CURVE = "curve"


class Actor(nn.Module):
    """The network of Mnih et al. (2015) with two heads: logits of actions ``[n, actions]`` and values ``[n]``."""

    def __init__(self, actions: int, numbers: torch.Generator | None = None) -> None:
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
                _orthogonal(layer, math.sqrt(2), numbers)
        _orthogonal(self.policy, 0.01, numbers)  # all actions begin equally likely
        _orthogonal(self.value, 1.0, numbers)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Of frames in bytes, ``[n, 4, 84, 84]``."""
        # A GPU convolves faster what has its channels side by side.
        order = torch.channels_last if observations.is_cuda else torch.contiguous_format
        features = self.trunk(observations.to(torch.float32, memory_format=order) / 255)
        return self.policy(features), self.value(features).squeeze(-1)


@dataclass(frozen=True)
class Expert:
    """Draws actions as likely as its actor likes them, or if ``greedy`` takes the one it likes best; and any one in a
    share of ``epsilon`` of all steps. Action values are meant to be followed greedily. A policy that was trained
    by drawing from it is to be drawn from: taken at its best it may walk into a corner and stay there."""

    game: str
    actor: Actor
    epsilon: float = 0.01
    greedy: bool = False

    @torch.no_grad()
    def act(self, observations: Tensor, numbers: torch.Generator) -> Tensor:
        """Actions ``[n]``, on the CPU, for frames ``[n, 4, 84, 84]``. The random numbers are drawn on the CPU, as many
        at every step, so that chance is the same on every machine."""
        weight = self.actor.policy.weight
        likes = self.actor(observations.to(weight.device, non_blocking=True))[0].cpu()
        own = likes.argmax(-1)
        if not self.greedy:
            own = torch.multinomial(likes.softmax(-1), 1, generator=numbers).squeeze(-1)
        other = torch.randint(len(weight), own.shape, generator=numbers)
        at_random = torch.rand(own.shape, generator=numbers, dtype=torch.float64) < self.epsilon
        return torch.where(at_random, other, own)

    def rounded(self) -> Expert:
        """The same to half precision, as a file keeps it: whoever loads it plays exactly like this one."""
        actor = copy.deepcopy(self.actor)
        return replace(self, actor=actor.half().float())

    def fingerprint(self) -> str:
        """Twelve characters that tell how it plays from how others do."""
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.actor.state_dict().items()}
        return hashlib.sha256(save(weights) + repr((self.epsilon, self.greedy)).encode()).hexdigest()[:12]


def save_expert(path: Path, expert: Expert, curve: Tensor, about: dict[str, str]) -> None:
    """With its learning curve (rows of steps, seconds and score) and what is to be known about it. In half precision:
    see ``rounded``."""
    weights = {name: tensor.detach().cpu().half().contiguous() for name, tensor in expert.actor.state_dict().items()}
    _file(path, expert.game).write({**weights, CURVE: curve}, {**about, "game": expert.game})


def about_expert(path: Path, game: str) -> tuple[Tensor, dict[str, str]]:
    """The learning curve of an expert of this project's, and what its file says about it."""
    tensors, about = _file(path, game).read([*Actor(action_count(game)).state_dict(), CURVE])
    return tensors[CURVE], about


def load_expert(path: Path | str, game: str = "ms_pacman") -> Expert:
    """An expert for the game, from a file of this project's or a ``.zip`` of Stable-Baselines3's; or an ``DataError``
    of one line that says what is wrong with the file."""
    check_game(game)
    path = Path(path)
    file = _file(path, game)
    actor = Actor(action_count(game))
    wanted = actor.state_dict()
    greedy = False
    if path.suffix == ".zip":
        weights, greedy = read_sb3(file, wanted)
    else:
        weights, about = file.read([*wanted, CURVE])
        if about.get("game") != game:
            raise file.refused(f"it plays {about.get('game', 'no game that it names')}, not {game}")
    for name, tensor in wanted.items():
        if weights[name].shape != tensor.shape:
            raise file.refused(f"the shape of {name} is {list(weights[name].shape)}, not {list(tensor.shape)}")
    actor.load_state_dict({name: weights[name] for name in wanted})
    return Expert(game, actor.requires_grad_(False), greedy=greedy)


def _orthogonal(layer: nn.Conv2d | nn.Linear, gain: float, numbers: torch.Generator | None) -> None:
    nn.init.orthogonal_(layer.weight, gain, generator=numbers)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)


def _file(path: Path, game: str) -> TensorFile:
    return TensorFile(path, "expert", making_of(game))
