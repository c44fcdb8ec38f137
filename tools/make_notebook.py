"""Write docs/tutorial.ipynb from docs/tutorial.md: its python blocks become cells of code, all else cells of text.

python tools/make_notebook.py            # write the notebook
python tools/make_notebook.py --check    # exit status 1 if it is not that of the page
python tools/make_notebook.py --run      # run the page's code, which prints the numbers that the page quotes
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$\n?", flags=re.M | re.S)


def cells_of(page: str) -> list[dict[str, Any]]:
    """The cells of a page, in order, without outputs."""
    cells: list[dict[str, Any]] = []
    for number, part in enumerate(BLOCK.split(page)):  # text and code by turns
        source = part.strip("\n")
        if not source:
            continue
        cell: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}, "source": source.splitlines(keepends=True)}
        is_code = number % 2 == 1
        cells.append({"cell_type": "code", "execution_count": None, "outputs": [], **cell} if is_code
                     else {"cell_type": "markdown", **cell})  # fmt: skip
    return cells


def notebook_of(page: str) -> str:
    """The notebook as JSON."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook = {"cells": cells_of(page), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write or check the notebook."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("--run", action="store_true", help="only run the code of the page")
    chosen, page = parser.parse_args(arguments), (DOCS / "tutorial.md").read_text("utf-8")
    if chosen.run:
        names: dict[str, Any] = {"__name__": "tutorial"}
        for code in BLOCK.findall(page):
            exec(code, names)
        return 0
    expected, path = notebook_of(page), DOCS / "tutorial.ipynb"
    if chosen.check:
        is_same = path.exists() and path.read_text("utf-8") == expected
        print("the notebook is up to date" if is_same else "run python tools/make_notebook.py")
        return 0 if is_same else 1
    path.write_text(expected, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
