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
    {"_checks"},
    {
        "losses",
        "targets",
        "distributions",
        "momentum",
        "_flat_params",
        "_grad_scaling",
        "_late_binding",
        "_params",
        "_random",
        "_ranks",
        "_warnings",
        "_compat",
    },
    {"per_sample", "_batch", "_follow"},
    {"corrections"},
    {"_options"},
    {"_state"},
    {"_param_group"},
    {"_batch_graph"},
    {"_optimizer"},
    {"optimizers", "diagnostics", "_torch_momentum", "_advice"},
    {"_step_cost"},
    {"monitor", "evaluation"},
    {"__init__", "sb3"},
    {"__main__"},
]
# Within per_sample likewise. Only the first touches torch's internals.
PER_SAMPLE_LAYERS = [
    "autograd_graph",
    "owners",
    "gradients",
    "jacobian",
    "row_rules",
    "layer_rules",
    "trace",
    "sample_rows",
    "linearize",
    "slow",
]
# What parts that come with an extra may import beside torch.
EXTRAS = {"sb3": {"stable_baselines3", "gymnasium", "numpy"}, "evaluation": {"numpy"}, "__main__": {"unstale"}}


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


def test_evaluate_imports_nothing_until_it_is_called():
    for stem in ("__init__", "command", "errors"):
        names = {name for name, is_ours in imports(SOURCE / "evaluation" / f"{stem}.py") if not is_ours}
        assert names <= sys.stdlib_module_names, stem


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


INTERNALS = ("_saved_", "_input_metadata", "next_functions", "AccumulateGrad", "grad_fn", ".metadata")


def test_only_one_module_reads_the_autograd_graph():
    for path in sorted(SOURCE.rglob("*.py")):
        if path.stem != "autograd_graph":
            used = [word for word in INTERNALS if word in path.read_text()]
            assert not used, f"{path.name} uses {used}"


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
            known = name == "torch" or name in sys.stdlib_module_names or name in EXTRAS.get(own, ())
            assert known, f"{path.name} imports {name}"
        elif own == "corrections" and (SOURCE / own / f"{name}.py").exists():
            assert path.stem in ("__init__", "select", "memory", "saved") or name in ("base", "slots"), (
                f"{path.name} imports {name}"
            )
        elif own == "evaluation" and (name == "evaluate" or (SOURCE / own / f"{name}.py").exists()):
            pass
        elif own == "per_sample" and name in PER_SAMPLE_LAYERS:
            order = PER_SAMPLE_LAYERS.index
            assert order(name) < order(path.stem), f"{path.name} imports {name}"
        elif own == "sb3" and (SOURCE / own / f"{name}.py").exists():
            assert path.stem == "__init__" or name == "base", f"{path.name} imports {name}"
        else:
            assert name in allowed, f"{path.name} imports {name}"
