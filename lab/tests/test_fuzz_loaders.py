"""Files of the laboratory that are damaged or hostile: an error of its own, before anything large is unpacked."""

import io
import json
import lzma
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from atari_samples import recording
from fuzz_inputs import REFUSED, attempt, fuzzed
from hypothesis import given
from hypothesis import strategies as st
from lab_samples import summaries
from PIL import Image
from safetensors.torch import save
from test_fuzz_files import damaged, huge_npy

from unstale_lab import batch_file
from unstale_lab.atari import tape
from unstale_lab.atari.tape import Tape
from unstale_lab.checkpoint import Checkpoint
from unstale_lab.errors import DataError
from unstale_lab.experiment import Run
from unstale_lab.problems import svhn_files
from unstale_lab.problems.tensor_file import TensorFile
from unstale_lab.records import Record
from unstale_lab.summary import read_summaries, write_summary

DAMAGED = (DataError, batch_file.DamagedFileError, batch_file.OtherVersionError, batch_file.OutdatedResultsError)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


def fuzz_bytes(content, path, read, same):
    """Read many damaged copies of a file: each is refused, or is the same to ``same``."""

    @fuzzed(40)
    @given(damaged(content))
    def check(changed):
        path.write_bytes(changed)
        found = attempt(read, *DAMAGED)
        assert found is REFUSED or same(found)

    check()


def test_damaged_recordings(folder):
    path = folder / "tape.safetensors"
    recording().save(path)
    assert torch.equal(Tape.load(path).frames, recording().frames)

    def same(found):  # what was not noticed is at least consistent
        observations = found.observations(torch.arange(len(found)))
        return observations.shape == (len(found), 4, 84, 84) and len(found.state(0).machine) == 10

    fuzz_bytes(path.read_bytes(), path, lambda: Tape.load(path), same)


columns_of_tape = st.sampled_from(tape.TENSORS)


@fuzzed(60)
@given(columns_of_tape, st.sampled_from(["-1", "99", "shorter", "float64", "2d", "empty"]))
def test_columns_of_recordings(name, how):
    whole = recording()
    tensors = {key: getattr(whole, key) for key in tape.TENSORS}
    tensors |= {key: tape._compress(tensors[key]) for key in tape.COMPRESSED}
    column = tensors[name]
    tensors[name] = {
        "-1": lambda: torch.full_like(column, -1) if column.dtype == torch.int64 else column[:0],
        "99": lambda: torch.full_like(column, 99) if column.dtype == torch.int64 else column[:3],
        "shorter": lambda: column[:-1],
        "float64": column.double,
        "2d": lambda: column.unsqueeze(0),
        "empty": lambda: column[:0],
    }[how]().contiguous()
    assert how not in ("-1", "99") or not torch.equal(column, tensors[name])
    with TemporaryDirectory() as directory:
        path = Path(directory) / "tape.safetensors"
        path.write_bytes(save(tensors, dict(whole.about)))
        found = attempt(lambda: Tape.load(path), DataError)
    if found is not REFUSED:  # an action or a held one is any number
        assert name in ("action", "held")


def test_recordings_that_unpack_to_more(tmp_path):
    tensors = {key: getattr(recording(), key) for key in tape.TENSORS}
    tensors |= {key: tape._compress(tensors[key]) for key in tape.COMPRESSED}
    bomb = lzma.compress(bytes(64 << 20), preset=1)
    assert len(bomb) < 1 << 14
    for name in tape.COMPRESSED:
        content = {**tensors, name: torch.frombuffer(bytearray(bomb), dtype=torch.uint8)}
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(save(content, {"game": "ms_pacman"}))
        with pytest.raises(DataError, match="bytes when unpacked"):
            Tape.load(path)


def test_damaged_tensors(folder):
    path, tensors = folder / "tensors.safetensors", dict(a=torch.ones(3), b=torch.zeros(2, 2))
    file = TensorFile(path, "tensors", "make tensors")
    file.write(tensors, {"problem": "test"})
    fuzz_bytes(path.read_bytes(), path, lambda: file.read(["a", "b"]), lambda found: found[0].keys() == tensors.keys())


def test_tensors_that_declare_terabytes(tmp_path):
    header = json.dumps({"a": {"dtype": "F64", "shape": [10**12], "data_offsets": [0, 8 * 10**12]}}).encode()
    path = tmp_path / "huge.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(DataError, match="cannot use the tensors"):
        TensorFile(path, "tensors", "make tensors").read(["a"])


# ---------------------------------------------------------------------------------------------------------------- SVHN


def images(count=2):
    return np.arange(32 * 32 * 3 * count, dtype=np.uint8).reshape(32, 32, 3, count), np.array([[1], [10]])[:count]


def test_damaged_matlab_files(folder):
    from scipy.io import savemat

    own = folder / "svhn"
    own.mkdir()
    image, label = images()
    for split in svhn_files.SPLITS:
        savemat(own / f"{split}_32x32.mat", dict(X=image, y=label), do_compression=True)
    path = own / "test_32x32.mat"
    fuzz_bytes(path.read_bytes(), path, lambda: svhn_files.load_images(own), lambda found: len(found.test.image) == 2)


def test_matlab_files_with_too_many_images(tmp_path, monkeypatch):
    from scipy.io import savemat

    monkeypatch.setattr(svhn_files, "MAX_IMAGES", 1)
    image, label = images()
    for split in svhn_files.SPLITS:
        savemat(tmp_path / f"{split}_32x32.mat", dict(X=image, y=label), do_compression=True)
    with pytest.raises(DataError, match="more than 1 images"):
        svhn_files.load_images(tmp_path)


def test_damaged_sheets(folder):
    own = folder / "sheets"
    own.mkdir()
    for split in svhn_files.SPLITS:
        np.save(own / f"{split}_y.npy", np.array([1, 2]))
        Image.fromarray(np.zeros((32, 1600, 3), np.uint8)).save(own / f"{split}_00.webp", lossless=True)
    for name in ("test_y.npy", "test_00.webp"):
        path = own / name
        content = path.read_bytes()
        fuzz_bytes(content, path, lambda: svhn_files.load_images(own), lambda found: len(found.test.image) >= 1)
        path.write_bytes(huge_npy(10**13) if name.endswith("npy") else large_sheet())
        with pytest.raises(DataError, match=r"less data|pixels"):
            svhn_files.load_images(own)
        path.write_bytes(content)


def large_sheet():
    file = io.BytesIO()
    Image.fromarray(np.zeros((1632, 1600, 3), np.uint8)).save(file, "webp", lossless=True)
    return file.getvalue()


# ------------------------------------------------------------------------------------ the store, summaries, checkpoints


def record():
    curves = {"evaluation": np.array([1.0, 0.5])}
    return Record(Run(), np.array([1, 2]), curves, None, 10, 20, 30, 0.5)


def test_damaged_files_of_the_store(folder):
    content = batch_file.encode([record()], {})
    assert len(batch_file.decode(content)) == 1
    path = folder / "store.parquet"
    fuzz_bytes(content, path, lambda: batch_file.decode(path.read_bytes()), lambda found: False)


def test_files_of_the_store_that_unpack_to_more(monkeypatch):
    content = batch_file.encode([record()], {})
    monkeypatch.setattr(batch_file, "MAX_BYTES", 100)
    with pytest.raises(batch_file.DamagedFileError, match="GiB of memory"):
        batch_file.decode(content)


@fuzzed(80)
@given(st.data())
def test_summaries_of_every_kind(tmp_path_factory, data):
    out = tmp_path_factory.mktemp("out")
    path = write_summary(data.draw(st.sampled_from(summaries())), out)
    content = json.loads(path.read_text("utf-8"))
    place = content
    while isinstance(place, dict | list) and place:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place)))))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            odd = [None, True, -1, 1e308, "", "nan", "x", [], {}, [[]], 10**400, float("inf")]
            place[key] = data.draw(st.sampled_from(odd))
            break
        place = place[key]
    path.write_text(json.dumps(content), "utf-8")
    attempt(lambda: read_summaries(out), DataError)


@pytest.mark.parametrize("text", ["", "[" * 100_000, "nan", '{"name": "fig1"}', "\x00", '"\ud800"'], ids=repr)
def test_summaries_that_are_none(tmp_path, text):
    path = tmp_path / "summaries" / "fig1.json"
    path.parent.mkdir()
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match="is not a summary"):
        read_summaries(tmp_path)


def test_damaged_checkpoints(folder):
    """They count as absent, with a warning."""
    path = folder / "checkpoint"
    said = []
    checkpoint = Checkpoint(path, said.append)
    checkpoint.save({"step": torch.tensor(3)})
    content = path.read_bytes()

    @fuzzed(40)
    @given(damaged(content))
    def check(changed):
        path.write_bytes(changed)
        said.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = checkpoint.load("cpu")
        assert (found is None and said) or changed == content

    check()
