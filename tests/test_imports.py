"""The library needs torch and nothing else, and its parts know one another in one direction only."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import unstale

SOURCE = Path(unstale.__file__).parent
# From the bottom up: a module may know those of lines above its own, and of its own line.
LAYERS = [
    {"running", "losses", "layers", "targets", "momentum", "block"},
    {"samples", "observe", "inputs", "gradients"},
    {"graph", "corrections"},
    {"rows", "options"},
    {"linearize"},
    {"group"},
    {"base"},
    {"optimizers", "diagnostics"},
    {"__init__"},
]


def imports(path: Path):
    """Absolute imports by name, and relative ones as parts of the library."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], False) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0], False
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.split(".")[0], True
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.name, True) for alias in node.names)


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


LAB = SOURCE / "lab"
# The laboratory, likewise from the bottom up, with the packages that each part may use.
LAB_LAYERS: list[dict[str, set[str]]] = [
    {"mistakes": set(), "processes": set(), "checkpoint": {"torch"}, "precision": {"torch"}},
    {"experiment": set(), "records": {"numpy"}, "statistics": {"numpy", "scipy"}, "provenance": set()},
    {
        "problems": {"torch", "safetensors", "numpy", "scipy", "PIL"},
        "atari": {"torch", "safetensors", "numpy", "ale_py", "gymnasium"},
        "batch_file": {"numpy", "pyarrow"},
    },
    {"experts": {"torch"}, "store": {"pyarrow"}},
    {"engine": {"torch", "numpy"}, "figures": {"numpy", "scipy"}},
    {"drawing": {"numpy"}, "summary": {"numpy"}},
    {"plots": {"matplotlib", "numpy"}},
    {"report": {"jinja2", "plotly", "numpy"}, "reproduce": set()},
    {"progress": {"rich"}},
    {"cli": {"rich", "tyro"}, "__init__": set(), "__main__": set()},
]


@pytest.mark.parametrize("path", sorted(LAB.rglob("*.py")), ids=lambda p: str(p.relative_to(LAB)))
def test_the_laboratory_knows_the_library_and_its_parts_one_another_one_way(path):
    own = path.relative_to(LAB).parts[0].removesuffix(".py")
    height, packages = next((i, layer[own]) for i, layer in enumerate(LAB_LAYERS) if own in layer)
    below = {name for layer in LAB_LAYERS[: height + 1] for name in layer}
    depth = len(path.relative_to(LAB).parts)  # dots that lead to the laboratory
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for name in (alias.name.split(".")[0] for alias in node.names):
                assert name in packages | {"unstale"} or name in sys.stdlib_module_names, f"{path.name} imports {name}"
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            name = node.module.split(".")[0]
            assert name in packages or name in sys.stdlib_module_names, f"{path.name} imports {name}"
        elif isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]
            assert set(names) <= below, f"{path.name} imports {names}"


@pytest.mark.parametrize(
    "path",
    sorted(path for path in SOURCE.rglob("*.py") if LAB not in path.parents),
    ids=lambda p: str(p.relative_to(SOURCE)),
)
def test_imports_go_one_way(path):
    own = part_of(path)
    height = next(i for i, names in enumerate(LAYERS) if own in names)
    allowed = set().union(*LAYERS[: height + 1])
    for name, is_ours in imports(path):
        if not is_ours:
            assert name == "torch" or name in sys.stdlib_module_names, f"{path.name} imports {name}"
        elif own == "corrections" and (SOURCE / own / f"{name}.py").exists():
            assert path.name == "__init__.py", f"{path.name} imports {name}: corrections do not know one another"
        else:
            assert name in allowed, f"{path.name} imports {name}"
