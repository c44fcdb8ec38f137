"""The script that types pages into an empty environment; ``make package`` runs it on the README and the tutorial."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("check_first_steps", ROOT / "tools/check_first_steps.py")
check_first_steps = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_first_steps)

PAGE = """# A page

    echo hello > greeting    # a comment
    make coffee

Text, with `code`.

```python
number = 6

print(open("greeting").read(), number)
```

```text
no code
```

```python
print(number * 7)
```
"""


def typed(page, tmp_path, *, python=sys.executable):
    (tmp_path / "page.md").write_text(page, "utf-8")
    folder = tmp_path / "empty"
    folder.mkdir()
    command = [python, "-P", ROOT / "tools/check_first_steps.py", "no wheel", "no environment", "--type"]
    return subprocess.run([*command, tmp_path / "page.md"], cwd=folder, capture_output=True, text=True)


def test_blocks_and_their_lines():
    found = check_first_steps.blocks(PAGE)
    assert [(block.line, block.language) for block in found] == [(3, "sh"), (9, "python"), (15, "text"), (19, "python")]
    lines = PAGE.splitlines()
    for block in found:
        assert lines[block.line - 1].strip() == block.code.splitlines()[0]
    assert found[0].code == "echo hello > greeting    # a comment\nmake coffee\n"


def test_a_page_is_one_session_in_an_empty_folder(tmp_path):
    done = typed(PAGE, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "skipped: make coffee" in done.stdout and "hello\n 6" in done.stdout and "42" in done.stdout
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["greeting"]


@pytest.mark.parametrize(
    ("right", "wrong", "line", "why"),
    [
        ("number = 6", "number = 6 / 0", 9, "ZeroDivisionError"),
        ("number * 7", "missing * 7", 19, "NameError"),
        ("echo hello", "no-such-command", 3, "CalledProcessError"),
        ("print(number", "import sys; sys.exit(3); print(number", 19, "SystemExit"),
        ("print(number", "print(number(", 19, "SyntaxError"),
    ],
)
def test_a_broken_block_is_named_with_its_line(right, wrong, line, why, tmp_path):
    done = typed(PAGE.replace(right, wrong), tmp_path)
    assert done.returncode == 1
    assert f"FAILED: page.md, line {line}:" in done.stderr and wrong in done.stderr and why in done.stderr


def test_pip_installs_the_wheel(monkeypatch):
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command[-1]))
    check_first_steps.run_commands(
        "pip install .    # a comment\npip install torch\n# alone\n\ngit clone x\n", Path("a b.whl")
    )
    assert commands == ["pip install --quiet 'a b.whl'", "pip install torch"]


def test_what_is_typed_is_there():
    """The README says how to install, before the first code that needs it."""
    readme = check_first_steps.blocks((ROOT / "README.md").read_text("utf-8"))
    assert readme[0].code.startswith("pip install .") and readme[1].language == "python"
    for page in check_first_steps.PAGES:
        found = check_first_steps.blocks((ROOT / page).read_text("utf-8"))
        assert {block.language for block in found} <= {"sh", "python", "text"}
        assert "import unstale" in "".join(block.code for block in found if block.language == "python")
