"""Experts: small networks that act, kept as safetensors files beside this module."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .control import Task

DIRECTORY = Path(__file__).parent / "experts"


class ExpertError(ValueError):
    """An expert's file cannot be used."""


@dataclass(frozen=True)
class Expert:
    """The action with the largest output of a network with one hidden layer of tanh, in float32. Any dimensions before
    the last two are of many networks side by side."""

    hidden_weight: Tensor  # [..., inputs, hidden]
    hidden_bias: Tensor  # [..., 1, hidden]
    output_weight: Tensor  # [..., hidden, actions]
    output_bias: Tensor  # [..., 1, actions]

    def __call__(self, observation: Tensor) -> Tensor:
        hidden = torch.tanh(observation.float() @ self.hidden_weight + self.hidden_bias)
        return (hidden @ self.output_weight + self.output_bias).argmax(-1)


def shapes(task: Task, hidden: int) -> list[tuple[int, int]]:
    """Of the fields of an expert for the task."""
    return [(task.inputs, hidden), (1, hidden), (hidden, task.actions), (1, task.actions)]


def expert_path(problem: str) -> Path:
    """Where the project keeps the expert."""
    return DIRECTORY / f"{problem}.safetensors"


def making_of(problem: str) -> str:
    """The command that makes the expert."""
    return f"unstale train-expert {problem}"


def save_expert(expert: Expert, path: Path, about: dict[str, str]) -> None:
    """Writes the file at once or not at all, with what is to be known about it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    save_file({f.name: getattr(expert, f.name) for f in fields(expert)}, unfinished, metadata=about)
    unfinished.replace(path)


def load_expert(path: Path, task: Task) -> Expert:
    """An expert for the task, or an ``ExpertError`` of one line that says what is wrong with the file."""

    def refused(why: object) -> ExpertError:
        what = " ".join(str(why).split())
        return ExpertError(f"cannot use the expert {path}: {what}. Make it again with `{making_of(task.name)}`.")

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise refused(error) from error
    names = [f.name for f in fields(Expert)]
    if sorted(tensors) != sorted(names):
        raise refused(f"it holds {', '.join(sorted(tensors)) or 'nothing'} instead of {', '.join(names)}")
    found = [tuple(tensors[name].shape) for name in names]
    wanted = shapes(task, hidden=found[1][-1] if found[1] else 0)
    if found != wanted:
        raise refused(f"its shapes are {found}, not {wanted}")
    if not all(tensor.isfinite().all() for tensor in tensors.values()):
        raise refused("some of its numbers are not finite")
    return Expert(**{name: tensor.float() for name, tensor in tensors.items()})
