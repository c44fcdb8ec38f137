"""Malformed and hostile files of Stable-Baselines3 are refused in one line, and never unpacked without a limit."""

from __future__ import annotations

import io
import os
import pickle
import tracemalloc
import zipfile

import pytest
import torch

from unstale_lab.atari import sb3
from unstale_lab.atari.actor import Actor, load_expert
from unstale_lab.errors import DataError
from unstale_lab.problems.tensor_file import TensorFile

pytest.importorskip("ale_py")


def weights():
    """The policy of a PPO."""
    own = Actor(9, torch.Generator().manual_seed(0)).state_dict()
    return {
        f"{theirs}.{kind}": own[f"{ours}.{kind}"]
        for ours, theirs in sb3.PPO_OR_A2C.items()
        for kind in ("weight", "bias")
    }


def saved(policy) -> bytes:
    buffer = io.BytesIO()
    torch.save(policy, buffer)
    return buffer.getvalue()


def archive(path, content: bytes, name="policy.pth", compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("data", "{}")
        file.writestr(name, content)
    return path


def refusal(path) -> str:
    with pytest.raises(DataError) as error:
        load_expert(path)
    message = str(error.value)
    assert "\n" not in message and str(path) in message
    return message


def test_a_sound_file_is_read(tmp_path):
    expert = load_expert(archive(tmp_path / "a.zip", saved(weights())))
    assert torch.equal(expert.actor.policy.weight, weights()["action_net.weight"]) and not expert.greedy


def repacked(content: bytes, size: int) -> bytes:
    """The archive of a saved policy with one more member, so many zeros, compressed."""
    buffer = io.BytesIO(content)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data/more", bytes(size))
    return buffer.getvalue()


@pytest.mark.parametrize("where", ["outer", "inner", "outer, wrong size"])
def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path, monkeypatch, where):
    monkeypatch.setattr(sb3, "MAX_BYTES", 8 << 20)
    size = 64 << 20
    content = repacked(saved(weights()), size) if where == "inner" else saved(weights()) + bytes(size)
    path = archive(tmp_path / "bomb.zip", content, compression=zipfile.ZIP_DEFLATED)
    if where == "outer, wrong size":  # in the local header and in the directory
        true, small = (len(content)).to_bytes(4, "little"), (1 << 20).to_bytes(4, "little")
        assert path.read_bytes().count(true) == 2
        path.write_bytes(path.read_bytes().replace(true, small))
    assert path.stat().st_size < 8 << 20
    del content
    tracemalloc.start()
    message = refusal(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 << 20
    if where != "outer, wrong size":
        assert "is larger than 8 MiB when unpacked" in message


class Exploit:
    def __reduce__(self):
        return os.mkdir, ("exploited",)


NOT_MODELS = {
    "a list": [1, 2],
    "numbers as names": {1: torch.zeros(1)},
    "a number": 3,
    "a tensor": torch.zeros(3),
    "a string in place of a tensor": weights() | {"action_net.bias": "zero"},
    "a sparse tensor": weights() | {"action_net.bias": torch.zeros(9).to_sparse()},
    "a meta tensor": weights() | {"action_net.bias": torch.zeros(9, device="meta")},
    "whole numbers": weights() | {"action_net.bias": torch.zeros(9, dtype=torch.int64)},
    "not a number": weights() | {"action_net.bias": torch.full((9,), torch.nan)},
    "another shape": weights() | {"action_net.bias": torch.zeros(6)},
    "a huge expanded tensor": weights() | {"action_net.bias": torch.zeros(1).expand(1 << 40)},
}


@pytest.mark.parametrize("what", NOT_MODELS)
def test_a_policy_that_is_not_of_the_network_is_refused(tmp_path, what):
    refusal(archive(tmp_path / "a.zip", saved(NOT_MODELS[what])))


def test_pickled_code_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in (saved({"action_net.bias": Exploit()}), pickle.dumps(Exploit())):
        refusal(archive(tmp_path / "a.zip", content))
    assert not (tmp_path / "exploited").exists()


def test_a_damaged_file_never_ends_in_a_traceback(tmp_path):
    path = archive(tmp_path / "a.zip", saved(weights()), compression=zipfile.ZIP_DEFLATED)
    content = path.read_bytes()
    file, expected = TensorFile(path, "expert", "make it"), Actor(9).state_dict()
    for place in [*range(0, 200, 5), *range(len(content) - 400, len(content), 5)]:
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            sb3.read_sb3(file, expected)  # some bits mean nothing
        except DataError as error:
            assert "\n" not in str(error)
    for length in range(0, len(content), len(content) // 20):
        path.write_bytes(content[:length])
        refusal(path)
    path.unlink()
    path.mkdir()
    refusal(path)
