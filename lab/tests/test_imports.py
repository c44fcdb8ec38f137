"""The parts of the laboratory import one another in one direction only, and each only the packages it needs."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import unstale_lab

LAB = Path(unstale_lab.__file__).parent
# The laboratory, likewise from the bottom up, with the packages that each part may use.
LAB_LAYERS: list[dict[str, set[str]]] = [
    {"errors": set(), "files": set(), "versions": set()},
    {"processes": set(), "checkpoint": {"torch"}, "precision": {"torch"}},
    {
        "experiment": set(),
        "methods": set(),
        "records": {"numpy"},
        "provenance": set(),
    },
    {
        "problems": {"torch", "safetensors", "numpy", "scipy", "PIL"},
        "atari": {"torch", "safetensors", "numpy", "ale_py", "gymnasium"},
        "batch_file": {"numpy", "pyarrow"},
    },
    {"cross_entropy_search": {"torch"}, "store": {"pyarrow"}},
    {"engine": {"torch", "numpy", "ray"}, "analysis": {"numpy", "scipy"}},
    {"claims": {"numpy", "scipy"}},
    {"figures": {"numpy", "scipy"}},
    {"summary": {"numpy"}},
    {"report": {"jinja2", "matplotlib"}, "reproduce": set()},
    {"progress": {"rich"}, "command_options": {"rich", "tyro"}},
    {"data_commands": {"tyro"}},
    {"commands": {"rich", "tyro"}},
    {"cli": set(), "__init__": set(), "__main__": set()},
]


@pytest.mark.parametrize("path", sorted(LAB.rglob("*.py")), ids=lambda p: str(p.relative_to(LAB)))
def test_the_laboratory_knows_the_library_and_its_parts_one_another_one_way(path):
    own = path.relative_to(LAB).parts[0].removesuffix(".py")
    height, packages = next((i, layer[own]) for i, layer in enumerate(LAB_LAYERS) if own in layer)
    below = {name for layer in LAB_LAYERS[: height + 1] for name in layer}
    depth = len(path.relative_to(LAB).parts)  # dots that lead to the laboratory
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for name in (alias.name.split(".")[0] for alias in node.names):
                assert name in packages | {"unstale"} or name in sys.stdlib_module_names, f"{path.name} imports {name}"
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            name = node.module.split(".")[0]
            assert name in packages | {"unstale"} or name in sys.stdlib_module_names, f"{path.name} imports {name}"
        elif isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
            assert set(names) <= below, f"{path.name} imports {names}"
