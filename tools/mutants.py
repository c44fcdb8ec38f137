"""Break the mathematics on purpose, one line at a time, and see that the tests notice.

    python tools/mutants.py

Copies the project to a temporary folder for each mutant, changes it there, and runs the tests that compare with the
slow oracles. A mutant that survives is a hole in the tests; the exit status says how many there were.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TESTS = [
    f"tests/test_{name}.py"
    for name in ("against_reference", "runs", "window", "graphs_that_change", "optimizer_contract", "lab_engine")
]


class Mutant(NamedTuple):
    """``old`` stands once in ``file`` and becomes ``new``."""

    name: str
    file: str
    old: str
    new: str


BLOCKS, DIAGONAL, WINDOW = (f"corrections/{name}.py" for name in ("blocks", "diagonal", "window"))
NETWORK, TRAINING = (f"lab/src/unstale_lab/engine/{name}.py" for name in ("network", "training"))
MUTANTS = [
    Mutant(
        "no transpose on ζ (dense)",
        BLOCKS,
        "_by_block(weighted, span, size), _by_block(u, span, size)",
        "_by_block(u, span, size), _by_block(weighted, span, size)",
    ),
    Mutant("what waits is not decayed (dense)", BLOCKS, 'decay_(waiting["weight"], beta)', "pass"),
    Mutant("ζ is not decayed while samples wait (dense)", BLOCKS, 'waiting["decay"] * beta', 'waiting["decay"]'),
    Mutant(
        "ζ_t for ζ_{t-1} (diagonal)",
        DIAGONAL,
        "        decay_(eta.addcmul_(zeta, displacement, value=-1), beta)\n        batch.mix_diagonal(zeta, beta)\n",
        "        batch.mix_diagonal(zeta, beta)\n        decay_(eta.addcmul_(zeta, displacement, value=-1), beta)\n",
    ),
    Mutant("a missing β (dense)", BLOCKS, 'return decay_(memory["eta"], beta)', 'return memory["eta"]'),
    Mutant("a missing β (diagonal)", DIAGONAL, "value=-1), beta)", "value=-1), 1.0)"),
    Mutant("a missing β (window)", WINDOW, 'for name in ("weight", ', "for name in ("),
    Mutant("the bootstrap's gradient dropped (written out)", "linearize.py", "else both[0] + both[1]", "else both[0]"),
    Mutant(
        "the bootstrap's gradient dropped (factored)",
        "samples.py",
        "a, b = self.tensors\n        d = self._matrix",
        "a, b = (t[: self.head] for t in self.tensors)\n        d = self._matrix",
    ),
    Mutant("μ for μ̂ (literal recursion)", "base.py", '["literal"] = momentum *', '["literal"] = state["mu"] *'),
    Mutant("the new batch shifted by the last move (window)", WINDOW, "start, width).zero_()", "start, width)"),
    Mutant("no trust bound", "momentum.py", ".clamp(max=1.0)", ".clamp(max=1.0) * 0 + 1"),
    Mutant(
        "rows never confirmed",
        "rows.py",
        "if plan is None or not plan.in_order or graph.surface is None:",
        "if plan is None:",
    ),
    Mutant("scaling never noticed", "gradients.py", "return torch.equal(", "return True or torch.equal("),
    Mutant(
        "factored gradients compared once",
        "linearize.py",
        "uses.bit_count() == 1 or signature in self._moving",
        "uses == 1",
    ),
    Mutant(
        "the bootstrap's gradient dropped (engine)", NETWORK, "torch.cat([ones, -discount], -1)", "ones.repeat(1, 2)"
    ),
    Mutant("the oracle counts batches that never were", TRAINING, "self.ages <= self.step_number", "self.ages >= 0"),
    Mutant(
        "diverged runs go on", TRAINING, "< DIVERGENCE_THRESHOLD) & (self.diverged_at < 0)", "< DIVERGENCE_THRESHOLD)"
    ),
    Mutant("targets are frozen once", TRAINING, "self.method.target_every == 0", "self.method.target_every < 0"),
    Mutant(
        "drift of the next batch",
        "lab/src/unstale_lab/engine/data.py",
        "self._position - skip - self._ages",
        "self._position - self._ages",
    ),
    Mutant("v for u (window)", "samples.py", "return (self.tensors[1] @ d", "return (self.tensors[0] @ d"),
]


def survives(mutant: Mutant) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        for part in ("src", "tests", "pyproject.toml"):
            source, copy = ROOT / part, Path(folder) / part
            shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
        target = Path(folder) / "src/unstale" / mutant.file
        text = target.read_text()
        if text.count(mutant.old) != 1:
            sys.exit(
                f"{mutant.name}: its line is {text.count(mutant.old)} times in {mutant.file}; mend tools/mutants.py"
            )
        target.write_text(text.replace(mutant.old, mutant.new))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *TESTS]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if run.returncode not in (0, 1):
            sys.exit(f"{mutant.name}: the tests did not run\n{run.stdout}{run.stderr}")
        return run.returncode == 0


def main() -> int:
    alive = 0
    for mutant in MUTANTS:
        lives = survives(mutant)
        alive += lives
        print(f"{'SURVIVES' if lives else 'killed  '}  {mutant.name}", flush=True)
    print(f"{len(MUTANTS) - alive} of {len(MUTANTS)} killed")
    return alive


if __name__ == "__main__":
    sys.exit(main())
