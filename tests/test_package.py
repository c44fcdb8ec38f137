"""What is released: one version everywhere, and a wheel and an sdist with everything in them."""

from __future__ import annotations

import email
import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import unstale

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("check_package", ROOT / "tools/check_package.py")
check_package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_package)


def project(path):
    return tomllib.loads((ROOT / path).read_text("utf-8"))["project"]


def test_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    newest = re.search(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.M)[1]
    found = [project("pyproject.toml")["version"], project("lab/pyproject.toml")["version"], newest]
    found += [citation["version"], citation["preferred-citation"]["version"]]
    assert set(found) == {unstale.__version__}


def test_citation_has_what_the_format_asks_for():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["cff-version"] == "1.2.0" and citation["license"] == project("pyproject.toml")["license"]
    assert {"message", "title", "authors"} <= citation.keys() and citation["authors"]
    names = [author["family-names"] for author in citation["references"][0]["authors"]]
    assert f"({', '.join(names)}, {citation['references'][0]['year']})" in (ROOT / "README.md").read_text("utf-8")


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def archive(request, tmp_path_factory):
    return check_package.build(request.param, tmp_path_factory.mktemp(request.param))


def test_archives_are_complete(archive):
    found = check_package.contents(archive)
    assert not check_package.missing(archive)
    assert any(name.endswith("unstale/py.typed") for name in found)
    assert not any(re.search(r"__pycache__|unstale_lab|(^|/)tests?/", name) for name in found)
    if archive.suffix == ".whl":
        tops = {name.split("/")[0] for name in found}
        assert tops == {"unstale", f"unstale-{unstale.__version__}.dist-info"}


@pytest.mark.parametrize("archive", ["wheel"], indirect=True)
def test_wheel_needs_torch_alone(archive):
    opened, info = zipfile.ZipFile(archive), f"unstale-{unstale.__version__}.dist-info"
    metadata = email.message_from_bytes(opened.read(f"{info}/METADATA"))
    needed = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert [re.match(r"[\w-]+", line)[0] for line in needed] == ["torch"]
    assert {"dev", "docs"} <= set(metadata.get_all("Provides-Extra"))
    assert "unstale = unstale.__main__:main" in opened.read(f"{info}/entry_points.txt").decode()
    assert f"{info}/licenses/LICENSE" in opened.namelist()


def test_a_missing_file_is_noticed(archive, tmp_path, monkeypatch):
    source = tmp_path / "src/unstale"
    source.mkdir(parents=True)
    (source / "new.py").touch()
    monkeypatch.setattr(check_package, "ROOT", tmp_path)
    assert {Path(name).name for name in check_package.missing(archive)} == {"new.py"}


def test_the_typed_program_runs():
    """make package also type-checks it, which takes most of a minute."""
    done = subprocess.run([sys.executable, ROOT / "tools/typed_program.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(unstale.__version__)
