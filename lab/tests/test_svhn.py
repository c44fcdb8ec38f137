"""SVHN: both forms of its files, what is said of bad ones, the download, and the problem made of the images."""

from __future__ import annotations

import hashlib
import math
import socket
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from unstale_lab.errors import DataError
from unstale_lab.problems import svhn, svhn_download
from unstale_lab.problems.data_folder import data_folder
from unstale_lab.problems.svhn import SVHN
from unstale_lab.problems.svhn_download import download
from unstale_lab.problems.svhn_files import load_images

Split = tuple[np.ndarray, np.ndarray]  # images as bytes [images, row, column, colour], and their digits


def random_images(count: int, seed: int) -> Split:
    numbers = np.random.default_rng(seed)
    return numbers.integers(256, size=(count, 32, 32, 3), dtype=np.uint8), np.arange(count) % 10


SETS = {"train": random_images(60, 0), "test": random_images(13, 1)}


def write_official(folder: Path, split: str, image: np.ndarray, digit: np.ndarray) -> None:
    label = np.where(digit == 0, 10, digit).astype(np.uint8)[:, None]
    savemat(folder / f"{split}_32x32.mat", {"X": image.transpose(1, 2, 3, 0), "y": label}, do_compression=True)


def write_sheets(folder: Path, split: str, image: np.ndarray, digit: np.ndarray) -> None:
    """Paste one image after another."""
    np.save(folder / f"{split}_y.npy", digit.astype(np.uint8))
    for number in range(math.ceil(len(image) / 2500)):
        part = image[2500 * number : 2500 * (number + 1)]
        sheet = Image.new("RGB", (50 * 32, math.ceil(len(part) / 50) * 32))
        for i, tile in enumerate(part):
            sheet.paste(Image.fromarray(tile), (i % 50 * 32, i // 50 * 32))
        sheet.save(folder / f"{split}_{number:02}.webp", lossless=True, method=0, quality=0)


WRITERS = {"official": write_official, "sheets": write_sheets}


@pytest.fixture(params=WRITERS)
def written(request, tmp_path) -> Path:
    """A folder with the images, in each of the forms."""
    for split, (image, digit) in SETS.items():
        WRITERS[request.param](tmp_path, split, image, digit)
    return tmp_path


@pytest.fixture
def official(tmp_path) -> Path:
    for split, (image, digit) in SETS.items():
        write_official(tmp_path, split, image, digit)
    return tmp_path


@pytest.fixture
def sheets(tmp_path) -> Path:
    for split, (image, digit) in SETS.items():
        write_sheets(tmp_path, split, image, digit)
    return tmp_path


# ---------------------------------------------------------------------- files


def test_both_forms_give_every_pixel_and_digit(written):
    loaded = load_images(written)
    for split, (image, digit) in SETS.items():
        found = getattr(loaded, split)
        assert found.image.dtype == torch.uint8 and found.label.dtype == torch.int64
        assert found.image.is_contiguous()
        assert np.array_equal(found.image.numpy(), np.moveaxis(image, 3, 1))
        assert np.array_equal(found.label.numpy(), digit)  # in the official form a 0 was written as 10


def test_images_continue_on_a_second_sheet(sheets):
    colour = np.arange(2551)[:, None] // np.array([1, 256, 1]) % 256  # uniform images, which compress at once
    image = np.broadcast_to(colour[:, None, None].astype(np.uint8), (2551, 32, 32, 3))
    write_sheets(sheets, "test", image, np.arange(2551) % 10)
    found = load_images(sheets).test
    assert np.array_equal(found.image.numpy(), np.moveaxis(image, 3, 1))

    (sheets / "test_01.webp").unlink()
    with pytest.raises(DataError, match=r"test_01\.webp cannot be read"):
        load_images(sheets)


def test_the_official_form_goes_first_but_only_when_whole(sheets):
    image, digit = random_images(5, 2)
    write_official(sheets, "train", image, digit)
    assert len(load_images(sheets).train.label) == 60
    write_official(sheets, "test", image, digit)
    assert len(load_images(sheets).train.label) == 5


def refused(folder: Path, match: str) -> None:
    with pytest.raises(DataError, match=match) as caught:
        load_images(folder)
    line = str(caught.value)
    assert "\n" not in line
    for part in (str(folder), "train_32x32.mat", "train_00.webp", "`unstale-lab data svhn`", "UNSTALE_DATA"):
        assert part in line


def test_an_absent_folder_and_an_empty_one_are_refused(tmp_path):
    refused(tmp_path / "nowhere", "none of its files is there")
    refused(tmp_path, "none of its files is there")


@pytest.mark.parametrize("name", ["train_32x32.mat", "test_32x32.mat"])
def test_half_of_the_official_form_is_refused(official, name):
    (official / name).unlink()
    refused(official, "there is only t[a-z]+_32x32.mat[.]")


@pytest.mark.parametrize("name", ["train_y.npy", "test_y.npy", "train_00.webp", "test_00.webp"])
def test_half_of_the_sheets_is_refused(sheets, name):
    (sheets / name).unlink()
    refused(sheets, "there is only t")


LONG_HEADER = (
    b"\x93NUMPY\x01\x00" + (20_000).to_bytes(2, "little") + b" " * 20_000
)  # numpy takes two lines to refuse it


def test_damaged_files_are_refused(written):
    for path in sorted(written.iterdir()):
        whole = path.read_bytes()
        for damaged in (b"", b"<html>\nnot found", whole[: len(whole) // 2], LONG_HEADER):
            path.write_bytes(damaged)
            refused(written, path.name)
        path.write_bytes(whole)
    load_images(written)


@pytest.mark.parametrize(
    "content",
    [
        {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones((5, 1), np.uint8)},
        {"X": np.zeros((4, 32, 32, 3), np.uint8), "y": np.ones((4, 1), np.uint8)},
        {"X": np.zeros((32, 32, 3, 4)), "y": np.ones((4, 1), np.uint8)},
        {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.zeros((4, 1), np.uint8)},
        {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.full((4, 1), 11, np.uint8)},
        {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.full((4, 1), 1.5)},
        {"X": np.zeros((32, 32, 3, 4), np.uint8)},
        {"other": np.zeros(3)},
    ],
    ids=["fewer images", "order of axes", "no bytes", "label 0", "label 11", "label 1.5", "no labels", "other"],
)
def test_an_official_file_of_something_else_is_refused(official, content):
    savemat(official / "train_32x32.mat", content)
    refused(official, "train_32x32.mat")


@pytest.mark.parametrize(
    "label", [np.arange(110) % 10, np.full(60, 10), np.full(60, -1), np.full(60, 0.5), np.array([])]
)
def test_labels_that_do_not_fit_the_sheets_are_refused(sheets, label):
    np.save(sheets / "train_y.npy", label)
    refused(sheets, "train_00.webp holds" if len(label) > 60 else "labels in train_y.npy")


# ------------------------------------------------------------------- download


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def served(tmp_path, monkeypatch) -> tuple[Path, str]:
    """A folder of two files whose checksums are expected, and its address."""
    folder = tmp_path / "served"
    folder.mkdir()
    for name in svhn_download.CHECKSUMS:
        content = name.encode() * 100_000
        (folder / name).write_bytes(content)
        checksum = hashlib.md5(content, usedforsecurity=False).hexdigest()
        monkeypatch.setitem(svhn_download.CHECKSUMS, name, checksum)
    monkeypatch.setattr(svhn_download, "TIMEOUT", None)
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_fetch_brings_both_files_and_says_how_far_it_is(served, tmp_path):
    folder, address = served
    seen: list[tuple[str, int, int]] = []
    download(tmp_path / "new" / "svhn", lambda *news: seen.append(news), address)
    assert contents(tmp_path / "new" / "svhn") == contents(folder)
    size = (folder / "train_32x32.mat").stat().st_size
    assert [came for name, came, _ in seen if name.startswith("train")] == [1 << 20, size]
    assert {total for name, _, total in seen if name.startswith("train")} == {size}


def test_fetch_replaces_what_is_damaged_and_keeps_what_is_right(served, tmp_path):
    folder, address = served
    download(tmp_path, source=address)
    (tmp_path / "test_32x32.mat").write_bytes(b"half")
    (folder / "train_32x32.mat").unlink()  # asked for again, it would not be found
    download(tmp_path, source=address)
    assert (tmp_path / "test_32x32.mat").read_bytes() == (folder / "test_32x32.mat").read_bytes()


def test_a_wrong_checksum_leaves_nothing(served, tmp_path):
    folder, address = served
    (folder / "train_32x32.mat").write_bytes(b"something else")
    with pytest.raises(DataError, match="14 bytes received have MD5") as caught:
        download(tmp_path / "new", source=address)
    assert "\n" not in str(caught.value)
    assert not contents(tmp_path / "new")


@pytest.mark.parametrize("error", [ConnectionRefusedError("refused"), socket.gaierror("name\nnot known")], ids=repr)
def test_no_network_is_one_line(tmp_path, monkeypatch, error):
    def connect(*given, **options):
        raise error

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setenv("no_proxy", "*")
    address = "http://nowhere.invalid/"
    with pytest.raises(DataError, match=f"cannot download {address}train_32x32.mat to {tmp_path}") as caught:
        download(tmp_path, source=address)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_served_is_one_line(served, tmp_path):
    folder, address = served
    (folder / "test_32x32.mat").unlink()
    with pytest.raises(DataError, match=r"test_32x32\.mat .*404"):
        download(tmp_path / "new", source=address)
    assert list(contents(tmp_path / "new")) == ["train_32x32.mat"]


# -------------------------------------------------------------------- problem


def test_the_problem_reads_no_file_before_it_is_asked(tmp_path):
    problem = SVHN(tmp_path)
    with pytest.raises(DataError, match="cannot load SVHN"):
        problem.stream(0, 4, 1)
    with pytest.raises(DataError, match="cannot load SVHN"):
        problem.values()


def test_the_problem_looks_where_the_environment_says(written, monkeypatch):
    monkeypatch.delenv("UNSTALE_DATA", raising=False)
    assert data_folder("svhn") == Path("data/svhn")
    monkeypatch.setenv("UNSTALE_DATA", str(written.parent))
    assert data_folder(written.name) == written
    monkeypatch.setattr(svhn, "data_folder", lambda name: data_folder(written.name))
    assert len(SVHN().images("cpu").pixels) == 73


def test_training_images_precede_test_images(official):
    images = SVHN(official).images("cpu").pixels.numpy()
    assert np.array_equal(images, np.moveaxis(np.concatenate([SETS["train"][0], SETS["test"][0]]), 3, 1))


def test_the_offset_is_the_mean_colour_of_the_training_set(official):
    problem = SVHN(official)
    assert problem.offset.dtype == torch.float32
    image = SETS["train"][0] / 255
    mean = [np.mean([one[:, :, colour] for one in image]) for colour in range(3)]
    torch.testing.assert_close(problem.offset.double(), torch.tensor(mean), rtol=1e-6, atol=0)
    seen = problem.images("cpu").load(torch.arange(60), torch.float64)
    assert seen.mean((0, 2, 3)).abs().max() < 1e-6
    assert seen.square().mean().item() == pytest.approx(1.0, rel=1e-6)


def test_a_stream_draws_from_the_training_set_with_its_labels(official):
    taken = SVHN(official).stream(seed=3, batch=7, n_step=1)(200)
    number, label = taken.state.unbind(-1)
    assert taken.state.dtype == torch.int64 and taken.state.shape == (200, 7, 2)
    assert set(number.flatten().tolist()) == set(range(60))
    assert torch.equal(label, torch.from_numpy(SETS["train"][1])[number])
    counts = torch.bincount(number.flatten())
    assert ((counts - 1400 / 60) ** 2 / (1400 / 60)).sum() < 115  # χ² of 59 degrees: p < 1e-5
    for field in (taken.reward, taken.discount):
        assert field.dtype == torch.float32 and field.shape == (200, 7) and not field.any()


def test_a_stream_is_that_of_its_seed_however_it_is_taken(official):
    problem = SVHN(official)
    whole = problem.stream(3, 7, 1)(20).state
    again = problem.stream(3, 7, 1)
    assert torch.equal(whole, torch.cat([again(8).state, again(12).state]))
    assert not torch.equal(whole, problem.stream(4, 7, 1)(20).state)


def test_values_are_measured_on_part_of_the_training_set_and_the_whole_test_set(official, monkeypatch):
    monkeypatch.setattr(svhn, "TRAINING_SUBSET", 20)
    values = SVHN(official).values()
    assert values["training"].state.shape == (20, 2) and values["evaluation"].state.shape == (13, 2)
    assert len(set(values["training"].state[:, 0].tolist())) == 20
    assert values["training"].state[:, 0].max() < 60
    assert values["evaluation"].state[:, 0].tolist() == list(range(60, 73))
    digits = np.concatenate([SETS["train"][1], SETS["test"][1]])
    for found in values.values():
        assert found.state.dtype == torch.int64
        assert np.array_equal(found.state[:, 1].numpy(), digits[found.state[:, 0].numpy()])
        assert found.value.shape == found.standard_error.shape == found.state.shape[:1]
        assert not found.value.any() and not found.standard_error.any()
    assert torch.equal(values["training"].state, SVHN(official).values()["training"].state)
