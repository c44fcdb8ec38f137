"""Mutants of tools/mutants.py can be applied to the code as it is."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))
mutants = import_module("mutants")


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_mutants_can_be_applied(mutant):
    """The mutated line occurs once, and the tests that should notice it exist."""
    assert (ROOT / mutant.file).read_text("utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / file).read_text("utf-8")


def test_mutants_have_names_of_their_own():
    names = [mutant.name for mutant in mutants.MUTANTS]
    assert len(set(names)) == len(names)
