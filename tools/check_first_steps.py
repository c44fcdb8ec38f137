"""Type the README and the tutorial into an empty environment, block by block, as a reader does.

    python tools/check_first_steps.py WHEEL ENVIRONMENT

ENVIRONMENT is a folder that does not exist yet. A virtual environment is made there with nothing in it, so that what is
installed is what the README says, with the versions of constraints.txt. Every page is then typed into one session in an
empty folder: its ``python`` blocks, and the shell commands of its indented blocks. The exit status is 1 if one fails;
the block and its line are printed. Rules for shell commands, because there is no clone around them:

- ``make`` and ``git`` are skipped;
- ``pip install .`` installs the wheel.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/tutorial.md")
SKIPPED = ("make", "git")
OUTPUT = "text"  # the language of blocks that show what is printed


class Block(NamedTuple):
    """A block of a page."""

    line: int  # of its first line of code, counted from 1
    language: str  # of its fence; "sh" for an indented block
    code: str


def blocks(page: str) -> list[Block]:
    """All blocks of code on a page, in order."""
    found: list[Block] = []
    language, start, code = "", 0, ""  # of the block that is open
    for number, line in enumerate([*page.splitlines(keepends=True), "\n"], start=1):
        is_fence, is_indented = line.startswith("```"), line.startswith("    ")
        if (language == "sh" and not is_indented) or (language not in ("", "sh") and is_fence):
            found.append(Block(start, language, code))
            language, code = "", ""
        elif language:
            code += line[4:] if language == "sh" else line
        elif is_fence:
            language, start = line[3:].strip() or OUTPUT, number + 1
        elif is_indented:
            language, start, code = "sh", number, line[4:]
    return found


def run_commands(code: str, wheel: Path) -> None:
    """Run shell commands one by one; an error if one fails."""
    for command in code.splitlines():
        words = shlex.split(command, comments=True)
        if words[:3] == ["pip", "install", "."]:
            command = shlex.join(["pip", "install", "--quiet", str(wheel), *words[3:]])
        if words and words[0] in SKIPPED:
            print(f"skipped: {command}")
        elif words:
            subprocess.run(["bash", "-c", command], check=True)


def type_page(page: Path, wheel: Path) -> int:
    """Run all blocks of a page with this interpreter, in this folder; 1 if one fails."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page.read_text("utf-8")):
        started = time.perf_counter()
        try:
            if block.language == "python":
                importlib.invalidate_caches()  # a command may have installed something
                exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)
            elif block.language != OUTPUT:
                run_commands(block.code, wheel)
        except BaseException:
            traceback.print_exc()
            print(f"FAILED: {page.name}, line {block.line}:\n\n{block.code}", file=sys.stderr)
            return 1
        if block.language != OUTPUT:
            print(f"-- {page.name}, line {block.line}: {time.perf_counter() - started:.1f} s", flush=True)
    return 0


def check(wheel: Path, environment: Path, pages: list[Path]) -> int:
    """Type the pages into a new environment; the number of pages that fail."""
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    constraints = str(ROOT / "constraints.txt")
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    variables |= {"PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}", "PIP_CONSTRAINT": constraints}
    variables |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }  # several threads wait for each other on a busy machine
    failed = 0
    for page in pages:
        with tempfile.TemporaryDirectory() as empty:
            # -P: the folder of this file is not on the path.
            typed = [str(environment / "bin/python"), "-P", __file__, str(wheel), str(environment), "--type", str(page)]
            failed += subprocess.run(typed, cwd=empty, env=variables).returncode != 0
    return failed


def main(arguments: list[str] | None = None) -> int:
    """Check all pages, or type one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("environment", type=Path)
    parser.add_argument("--type", type=Path, metavar="PAGE", help="only type this page, with this interpreter")
    chosen = parser.parse_args(arguments)
    if chosen.type is not None:
        return type_page(chosen.type, chosen.wheel)
    return 1 if check(chosen.wheel.resolve(), chosen.environment.resolve(), [ROOT / page for page in PAGES]) else 0


if __name__ == "__main__":
    sys.exit(main())
