"""A checkpoint is loaded exactly as it was saved, or not at all."""

from __future__ import annotations

import errno
import io
import os
import tracemalloc
from contextlib import contextmanager

import pytest
import torch

import unstale
from unstale_lab import checkpoint
from unstale_lab.checkpoint import Checkpoint

STATE = {"theta": torch.arange(12.0).reshape(3, 4), "step": 7, "curve": [(1, 0.5), (2, float("inf"))]}


@pytest.fixture
def saved(tmp_path):
    """A checkpoint, and a list of its warnings."""
    warned = []
    kept = Checkpoint(tmp_path / "run.pt", warned.append)
    kept.save(STATE)
    return kept, warned


def assert_not_loaded(kept, warned):
    assert kept.load("cpu") is None
    assert len(warned) == 1 and str(kept.path) in warned[0] and "\n" not in warned[0]
    warned.clear()


def test_a_state_is_loaded_as_it_was_saved(saved):
    kept, warned = saved
    loaded = kept.load("cpu")
    assert loaded.keys() == STATE.keys()
    assert torch.equal(loaded["theta"], STATE["theta"])
    assert (loaded["step"], loaded["curve"]) == (STATE["step"], STATE["curve"])
    assert warned == []
    assert [path.name for path in kept.path.parent.iterdir()] == ["run.pt"]


def test_no_file_is_no_checkpoint(tmp_path):
    assert Checkpoint(tmp_path / "none.pt").load("cpu") is None


def test_no_single_flipped_bit_is_loaded(saved):
    kept, warned = saved
    content = kept.path.read_bytes()
    for bit in range(0, 8 * len(content), 7):  # every byte, and every bit of a byte in turn
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        kept.path.write_bytes(changed)
        assert_not_loaded(kept, warned)


def test_no_truncated_or_extended_file_is_loaded(saved):
    kept, warned = saved
    content = kept.path.read_bytes()
    for length in [*range(0, 300), *range(300, len(content), 13), len(content) - 1]:
        kept.path.write_bytes(content[:length])
        assert_not_loaded(kept, warned)
    kept.path.write_bytes(content + b"\0")
    assert_not_loaded(kept, warned)


def test_a_plain_file_of_torch_is_not_loaded(saved):
    kept, warned = saved
    torch.save({"version": unstale.__version__, "state": STATE}, kept.path)
    assert_not_loaded(kept, warned)


def test_a_directory_in_its_place_is_not_loaded(saved):
    kept, warned = saved
    kept.remove()
    kept.path.mkdir()
    assert_not_loaded(kept, warned)


@pytest.mark.parametrize("owner, name, value", [(checkpoint, "RESULTS_VERSION", 0), (unstale, "__version__", "0.0.0")])
def test_another_version_is_not_loaded(saved, monkeypatch, owner, name, value):
    kept, warned = saved
    monkeypatch.setattr(owner, name, value)
    assert_not_loaded(kept, warned)


@pytest.mark.parametrize(
    "key", ["torch 2.9, cpu, data 123", "torch 2.9, cuda, data 124", "torch 2.8, cpu, data 124", ""]
)
def test_another_key_is_not_loaded(tmp_path, key):
    warned = []
    mine, other = (Checkpoint(tmp_path / "run.pt", warned.append, owner) for owner in ("torch 2.9, cpu, data 124", key))
    mine.save(STATE)
    assert mine.load("cpu")["step"] == STATE["step"] and warned == []
    assert_not_loaded(other, warned)


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_leaves_the_last_checkpoint_and_is_reported_once(saved, monkeypatch, call):
    kept, warned = saved
    with monkeypatch.context() as full:
        fill_disk(full, call)
        for step in (8, 9):
            kept.save({"step": step})
    assert len(warned) == 1 and "No space left on device" in warned[0] and "\n" not in warned[0]
    assert kept.load("cpu")["step"] == STATE["step"]
    kept.save({"step": 10})
    assert kept.load("cpu")["step"] == 10 and len(warned) == 1
    assert [path.name for path in kept.path.parent.iterdir()] == ["run.pt"]


def fill_disk(monkeypatch, call):
    """Makes writes fail after some bytes, or at the end."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class SmallFile(io.BytesIO):
        def write(self, data):
            if self.tell() > 500:
                raise full
            return super().write(data)

    @contextmanager
    def small_file(path):
        yield SmallFile()

    def fail(handle):
        raise full

    owner, name, function = {"write": (checkpoint, "atomic_write", small_file), "fsync": (os, "fsync", fail)}[call]
    monkeypatch.setattr(owner, name, function)


def test_no_copy_of_a_large_state_is_in_memory(tmp_path):
    state = {"theta": torch.zeros(1 << 20, dtype=torch.uint8)}
    tracemalloc.start()
    try:
        Checkpoint(tmp_path / "run.pt").save(state)
        assert tracemalloc.get_traced_memory()[1] < 1 << 19
    finally:
        tracemalloc.stop()
