"""Files of true values that are means of many rollouts, stored beside the expert whose policy they belong to.

They are stored because they cannot be reproduced exactly: where rounding on another machine ends a rollout one step
earlier or later, all following random numbers differ. New estimates would be as good, but not the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from .environment import Task
from .policies import Expert, training_command
from .problem import ValueSet
from .tensor_file import TensorFile

SETS = ("training", "evaluation")
FIELDS = ("state", "value", "standard_error")


def values_path(expert_path: Path) -> Path:
    """The file of the values of an expert's policy."""
    return expert_path.with_name(f"{expert_path.stem}_values.safetensors")


def save_values(
    values: Mapping[str, ValueSet], path: Path, task: Task, expert: Expert, rollouts: int
) -> dict[str, str]:
    """Writes the file and returns its metadata."""
    file = _file(path, task)
    about = {"problem": task.name, "command": file.command, **_identity(expert, rollouts)}
    for name in SETS:
        rms_error = values[name].standard_error.square().mean().sqrt().item()
        about[f"standard_error_{name}"] = f"{rms_error:.4f}"
    file.write({f"{name}.{field}": getattr(values[name], field) for name in SETS for field in FIELDS}, about)
    return about


def load_values(path: Path, task: Task, expert: Expert, states: int, rollouts: int) -> dict[str, ValueSet]:
    """The values of ``states`` states in each set.

    Raises:
        DataError: the file is missing or damaged, or belongs to another expert, or has other shapes.
    """
    file = _file(path, task)
    tensors, about = file.read([f"{name}.{field}" for name in SETS for field in FIELDS])
    for what, wanted in _identity(expert, rollouts).items():
        if about.get(what) != wanted:
            raise file.refused(f"its {what} is {about.get(what, 'missing')}, not {wanted}")
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


def _identity(expert: Expert, rollouts: int) -> dict[str, str]:
    """Metadata that must match for a file to belong to an expert."""
    return {"expert": expert.fingerprint(), "rollouts": str(rollouts)}


def _file(path: Path, task: Task) -> TensorFile:
    return TensorFile(path, "values", f"{training_command(task.name)} --values-only")
