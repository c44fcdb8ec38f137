"""Files for ``unstale evaluate`` that are damaged or hostile: an EvaluationError, before anything large is unpacked."""

import io
import json
import sys
import tracemalloc
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from evaluation_problems import mlp_weights, save_sb3
from fuzz_inputs import REFUSED, attempt, fuzzed
from hypothesis import given
from hypothesis import strategies as st

from unstale.evaluation import EvaluationError, files
from unstale.evaluation.policies import load_policy
from unstale.evaluation.spaces import Discrete

OBSERVATIONS = np.zeros((2, 3), np.float32)


def columns(rows=6):
    generator = np.random.default_rng(0)
    return dict(
        observations=generator.normal(size=(rows, 3)).astype(np.float32),
        actions=np.arange(rows) % 2,
        rewards=np.ones(rows),
        terminated=np.arange(rows) % 3 == 2,
    )


@st.composite
def damaged(draw, content):
    """Some bytes changed, left out or repeated."""
    whole, content = content, bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        how = draw(st.sampled_from(["flip", "cut", "double", "zero"]))
        if how == "flip" and content:
            content[at] ^= draw(st.integers(1, 255))
        elif how == "cut":
            del content[at : at + draw(st.integers(1, 64))]
        elif how == "double":
            content[at:at] = content[at : at + draw(st.integers(1, 64))]
        else:
            content[at : at + 8] = bytes(8)
    return bytes(content) if content != whole else whole[:-1]


def as_npz(rows=6):
    file = io.BytesIO()
    np.savez_compressed(file, **columns(rows))
    return file.getvalue()


def as_parquet(rows=6):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    own = columns(rows)
    own["observations"] = list(own["observations"])
    file = io.BytesIO()
    pq.write_table(pa.table(own), file)
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_damaged_transitions(folder, suffix):
    content = {".npz": as_npz, ".parquet": as_parquet}[suffix]()
    path = folder / f"transitions{suffix}"
    path.write_bytes(content)
    whole = files.read(path)

    @fuzzed(60)
    @given(damaged(content))
    def check(changed):
        path.write_bytes(changed)
        found = attempt(lambda: files.read(path))
        if found is not REFUSED and suffix == ".npz":  # which has checksums
            assert len(found) == len(whole)
            assert np.array_equal(found.rewards, whole.rewards)

    check()


kinds = st.sampled_from([np.float64, np.int64, np.bool_, np.complex128, np.dtype("U2"), object, np.float16])
arrays = st.builds(
    lambda shape, kind: np.ones(shape, kind), st.lists(st.integers(0, 3), max_size=3), kinds
)  # fmt: skip


@fuzzed(80)
@given(st.dictionaries(st.sampled_from([*files.REQUIRED, *files.OPTIONAL]), st.one_of(arrays, st.none(), st.text())))
def test_columns_of_every_kind(changes):
    attempt(lambda: files.read({**columns(), **changes}))


def policy_file(path):
    weights = mlp_weights({"mlp_extractor.policy_net.0": (3, 8), "action_net": (8, 2)})
    return save_sb3(path, weights, 3, 2)


def use(path):
    policy = load_policy(str(path))
    policy.check(None, Discrete(2))
    return policy.act(OBSERVATIONS)


def test_damaged_policies(folder):
    path = policy_file(folder / "policy.zip")
    content, expected = path.read_bytes(), use(path)

    @fuzzed(60)
    @given(damaged(content))
    def check(changed):
        path.write_bytes(changed)
        found = attempt(lambda: use(path))
        assert found is REFUSED or np.array_equal(found, expected)

    check()


def test_policies_whose_data_are_of_every_kind(folder):
    path = policy_file(folder / "data.zip")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    data = json.loads(members["data"])
    scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
    anything = st.recursive(
        scalars, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3)
    )

    @fuzzed(80)
    @given(st.data())
    def check(draws):
        changed = json.loads(json.dumps(data))
        place, key = changed, draws.draw(st.sampled_from(sorted(changed)))
        if isinstance(place[key], dict) and place[key] and draws.draw(st.booleans()):
            place = place[key]
            key = draws.draw(st.sampled_from(sorted(place)))
        place[key] = draws.draw(anything)
        with zipfile.ZipFile(path, "w") as archive:
            for name, member in members.items():
                archive.writestr(name, json.dumps(changed) if name == "data" else member)
        attempt(lambda: use(path))

    check()


# -------------------------------------------------------------------------------------------------------- large files


def huge_npy(rows, content=b""):
    """A header that declares many rows, with little behind it."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, dict(descr="<f8", fortran_order=False, shape=(rows,)))
    return file.getvalue() + content


def refused_without_memory(call, match):
    tracemalloc.start()
    try:
        with pytest.raises(EvaluationError, match=match):
            call()
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_arrays_that_declare_terabytes(tmp_path):
    path = tmp_path / "huge.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in files.REQUIRED:
            archive.writestr(f"{name}.npy", huge_npy(10**13))
    refused_without_memory(lambda: files.read(path), "less data than its header declares")


def test_zip_bombs_of_transitions(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 1 << 20)
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in files.REQUIRED:
            archive.writestr(f"{name}.npy", huge_npy(1 << 19, bytes(1 << 22)))
    assert path.stat().st_size < 1 << 18
    refused_without_memory(lambda: files.read(path), "GiB of data when unpacked")


def test_parquet_bombs(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 1 << 20)
    path = tmp_path / "bomb.parquet"
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zeros = np.zeros(1 << 18)
    pq.write_table(pa.table(dict.fromkeys(files.REQUIRED, zeros)), path)
    assert path.stat().st_size < 1 << 14
    refused_without_memory(lambda: files.read(path), "GiB of data when unpacked")


ARROW_POOLS: list = []


@pytest.fixture
def arrow_memory():
    """The memory pool of Arrow in this test. It is never deleted: threads of Arrow may free memory of it later."""
    pa = pytest.importorskip("pyarrow")
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    ARROW_POOLS.append(pool)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(usual)


def repeated_text(rows):
    """A column that takes 200 kB in a file, and 200 kB per row in memory."""
    pa = pytest.importorskip("pyarrow")
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array(["x" * 200_000]))


@pytest.mark.parametrize("name", ["note", "observations", "observations.note"])
def test_repeated_text_in_parquet_is_not_unpacked(tmp_path, arrow_memory, name):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, own = tmp_path / "text.parquet", columns(rows=600)
    own["observations"] = list(own["observations"])
    pq.write_table(pa.table({**own, name: repeated_text(600)}), path, store_schema=False)
    if name == "note":
        assert len(files.read(path)) == 600
    else:
        with pytest.raises(EvaluationError, match=r"the column observations of .* does not hold real numbers"):
            files.read(path)
    assert arrow_memory.max_memory() < 32 << 20


def test_half_precision_in_parquet(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    own = {**columns(), "observations": np.arange(6, dtype=np.float16)}
    pq.write_table(pa.table(own), tmp_path / "half.parquet")
    assert np.array_equal(files.read(tmp_path / "half.parquet").observations.ravel(), own["observations"])


def test_minari_datasets_that_are_too_large(monkeypatch):
    """Reading stops at the limit."""
    read = []

    def episodes():
        for number in range(100):
            read.append(number)
            yield SimpleNamespace(
                observations=np.zeros((1025, 32)), actions=np.zeros(1024, int), rewards=np.zeros(1024),
                terminations=np.zeros(1024, bool),
            )  # fmt: skip

    dataset = SimpleNamespace(iterate_episodes=episodes)
    monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(load_dataset=lambda name: dataset))
    monkeypatch.setattr(files, "MAX_BYTES", 2 << 20)
    with pytest.raises(EvaluationError, match=r"the Minari dataset large has .* GiB of data when unpacked"):
        files.read("minari:large", Discrete(2))
    assert len(read) == 4  # of 0.5 MiB each


def test_policies_that_unpack_to_more(tmp_path, monkeypatch):
    """A zip in the zip, and a tensor that repeats one number."""
    monkeypatch.setattr("unstale.evaluation.sb3.MAX_BYTES", 1 << 20)
    path = policy_file(tmp_path / "policy.zip")
    with zipfile.ZipFile(path) as archive:
        data = archive.read("data")
    inner, repeated = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 24))
    torch.save({"action_net.weight": torch.zeros(1).expand(1 << 11, 1 << 11)}, repeated)
    for content in (inner.getvalue(), repeated.getvalue()):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data", data)
            archive.writestr("policy.pth", content)
        with pytest.raises(EvaluationError, match="MiB when unpacked"):
            load_policy(str(path))
