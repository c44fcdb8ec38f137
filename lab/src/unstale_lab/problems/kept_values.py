"""True values that are means of many rollouts, kept in a file beside the expert whose values they are.

They take seconds to estimate. And where rounding ends a rollout a step sooner or later, as another machine's does, the
random numbers of all that follow are others: estimated anew, the values would be as good, but not the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from .base import ValueSet
from .environment import Task
from .policies import Expert, making_of
from .tensor_file import TensorFile

SETS = ("training", "evaluation")
FIELDS = ("state", "value", "standard_error")


def values_path(expert_path: Path) -> Path:
    """Where the values of the expert's policy are kept."""
    return expert_path.with_name(f"{expert_path.stem}_values.safetensors")


def save_values(
    values: Mapping[str, ValueSet], path: Path, task: Task, expert: Expert, rollouts: int
) -> dict[str, str]:
    """Writes the file, and returns what it says about itself."""
    file = _file(path, task)
    about = {"problem": task.name, "command": file.command, **_made_of(expert, rollouts)}
    for name in SETS:
        error = values[name].standard_error.square().mean().sqrt().item()
        about[f"standard_error_{name}"] = f"{error:.4f}"  # root mean square over the states
    file.write({f"{name}.{field}": getattr(values[name], field) for name in SETS for field in FIELDS}, about)
    return about


def load_values(path: Path, task: Task, expert: Expert, states: int, rollouts: int) -> dict[str, ValueSet]:
    """Values of so many states in each set; an ``ExpertError`` where the file has others, or those of another expert's
    policy."""
    file = _file(path, task)
    tensors, about = file.read([f"{name}.{field}" for name in SETS for field in FIELDS])
    for what, wanted in _made_of(expert, rollouts).items():
        if about.get(what) != wanted:
            raise file.refused(f"its {what} is {about.get(what, 'not told')}, not {wanted}")
    values = {name: _value_set(tensors, name) for name in SETS}
    wanted_shapes = [(states, task.inputs), (states,), (states,)]
    for name, held in values.items():
        found = [tuple(getattr(held, field).shape) for field in FIELDS]
        if found != wanted_shapes:
            raise file.refused(f"the shapes of its {name} set are {found}, not {wanted_shapes}")
    return values


def _value_set(tensors: Mapping[str, Tensor], name: str) -> ValueSet:
    state, value, standard_error = (tensors[f"{name}.{field}"] for field in FIELDS)
    return ValueSet(state, value, standard_error)


def _made_of(expert: Expert, rollouts: int) -> dict[str, str]:
    """What tells a file that belongs to an expert from one left over from another."""
    return {"expert": expert.fingerprint(), "rollouts": str(rollouts)}


def _file(path: Path, task: Task) -> TensorFile:
    return TensorFile(path, "values", f"{making_of(task.name)} --values-only")
