"""Build wheel and sdist, list what is in them, and use the wheel as a stranger would.

    python tools/check_package.py

The README and the tutorial are typed into an empty environment (tools/check_first_steps.py), which installs the wheel
with torch and nothing else. A small user program (tools/typed_program.py) is run there too, and type-checked by mypy
--strict, which reads the library's types because of its ``py.typed``. The exit status is 1 if anything fails.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff")


def build(kind: str, directory: Path) -> Path:
    """Build a ``"wheel"`` or ``"sdist"`` from a copy of the sources, with the setuptools of this environment."""
    sources = directory / f"{kind}-sources"
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, sources)
    code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(directory)], cwd=sources, check=True, capture_output=True)
    (found,) = directory.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return found


def contents(archive: Path) -> set[str]:
    """The files in a wheel or sdist; those of an sdist without its top directory."""
    if archive.suffix == ".whl":
        return set(zipfile.ZipFile(archive).namelist())
    with tarfile.open(archive) as opened:
        return {member.name.split("/", 1)[1] for member in opened.getmembers() if member.isfile()}


def missing(archive: Path) -> set[str]:
    """What has to be in the archive and is not."""
    package = [p for p in (ROOT / "src/unstale").rglob("*") if p.suffix == ".py" or p.name == "py.typed"]
    is_wheel = archive.suffix == ".whl"
    expected = {str(path.relative_to(ROOT / "src" if is_wheel else ROOT)) for path in package}
    return (expected if is_wheel else expected | {"pyproject.toml", "README.md", "LICENSE"}) - contents(archive)


def check_first_steps(wheel: Path, environment: Path) -> bool:
    """Type the README and the tutorial into a new environment."""
    command = [sys.executable, str(ROOT / "tools/check_first_steps.py"), str(wheel), str(environment)]
    return subprocess.run(command).returncode == 0


def check_types(environment: Path, directory: Path) -> bool:
    """Type-check and run the user program in an environment that has the wheel."""
    python, program = str(environment / "bin/python"), shutil.copy(ROOT / "tools/typed_program.py", directory)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(directory / "cache")]
    commands = [[*mypy, "--python-executable", python, program], [python, program]]
    return all(subprocess.run(command, cwd=directory).returncode == 0 for command in commands)


def main() -> int:
    """Build and check."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        wheel, sdist = build("wheel", directory), build("sdist", directory)
        for archive in (wheel, sdist):
            print(f"{archive.name}: {len(contents(archive))} files, missing: {sorted(missing(archive)) or 'none'}")
        is_complete = not missing(wheel) and not missing(sdist)
        environment = directory / "environment"
        is_usable = check_first_steps(wheel, environment) and check_types(environment, directory)
        return 0 if is_complete and is_usable else 1


if __name__ == "__main__":
    sys.exit(main())
