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
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
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


@pytest.mark.parametrize(
    "path",
    sorted(SOURCE.rglob("*.py")),
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
