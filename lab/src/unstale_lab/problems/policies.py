"""Expert policies: small networks, stored as safetensors files in the package."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from .environment import Task
from .tensor_file import TensorFile

DIRECTORY = Path(__file__).parent / "experts"


@dataclass(frozen=True)
class Expert:
    """The greedy policy of a network with one hidden layer of tanh units, in float32.

    Leading dimensions of the weights are a batch of networks.
    """

    hidden_weight: Tensor  # [..., inputs, hidden]
    hidden_bias: Tensor  # [..., 1, hidden]
    output_weight: Tensor  # [..., hidden, actions]
    output_bias: Tensor  # [..., 1, actions]

    def __call__(self, observation: Tensor) -> Tensor:
        hidden = torch.tanh(observation.float() @ self.hidden_weight + self.hidden_bias)
        return (hidden @ self.output_weight + self.output_bias).argmax(-1)

    def tensors(self) -> dict[str, Tensor]:
        """The weights by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def fingerprint(self) -> str:
        """Twelve characters of a hash of the weights."""
        return hashlib.sha256(save(self.tensors())).hexdigest()[:12]


def shapes(task: Task, hidden: int) -> list[tuple[int, int]]:
    """The shapes of the fields of an ``Expert`` for the task."""
    return [(task.inputs, hidden), (1, hidden), (hidden, task.actions), (1, task.actions)]


def expert_path(problem: str) -> Path:
    """The file of the expert that comes with the package."""
    return DIRECTORY / f"{problem}.safetensors"


def training_command(problem: str) -> str:
    """The command that trains the expert."""
    return f"unstale-lab data expert {problem}"


def save_expert(expert: Expert, path: Path, task: Task, about: dict[str, str]) -> None:
    """Writes the file, with metadata."""
    _file(path, task).write(expert.tensors(), about)


def load_expert(path: Path, task: Task) -> Expert:
    """The expert in a file.

    Raises:
        DataError: the file is missing, damaged, or of another task.
    """
    file = _file(path, task)
    names = [f.name for f in fields(Expert)]
    tensors, _ = file.read(names)
    found = [tuple(tensors[name].shape) for name in names]
    wanted = shapes(task, hidden=found[1][-1] if found[1] else 0)
    if found != wanted:
        raise file.refused(f"its shapes are {found}, not {wanted}")
    return Expert(**{name: tensor.float() for name, tensor in tensors.items()})


def _file(path: Path, task: Task) -> TensorFile:
    return TensorFile(path, "expert", training_command(task.name))
