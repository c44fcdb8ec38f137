"""examples/resumable.py is killed with SIGKILL at many points, and ends with the same bits as without."""

import importlib.util
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from problems import assert_same

ROOT = Path(__file__).parents[1]
STEPS = 24  # with two copies of the target network
# Where a process kills itself: at the n-th time that it comes there.
POINTS = [
    ("forward", 9), ("backward", 1), ("step", 3), ("save", 3), ("half a file", 2), ("fsync", 5), ("replace", 3),
    ("replaced", 2), ("last save", 1),
]  # fmt: skip

# Imports torch once, and forks a process for every life of the program.
DRIVER = """
import json, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
import resumable

def dies(point, times):
    count = 0
    def at(function, before=True):
        def wrapped(*args, **options):
            nonlocal count
            if not before:
                result = function(*args, **options)
            count += 1
            if count == times:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options) if before else result
        return wrapped
    def half(state, file):
        nonlocal count
        count += 1
        original(state, file)
        if count == times:
            file.truncate(file.tell() // 2)
            os.kill(os.getpid(), signal.SIGKILL)
    original = torch.save
    Adam = resumable.unstale.CorrectedAdam
    if point == "forward":
        resumable.Walk.step = at(resumable.Walk.step)
    elif point == "backward":
        Adam.backward = at(Adam.backward, before=False)
    elif point == "step":
        Adam.step = at(Adam.step, before=False)
    elif point == "save":
        resumable.save = at(resumable.save)
    elif point == "last save":
        save = resumable.save
        def only_last(state, path):
            if state["step"] == STEPS:
                os.kill(os.getpid(), signal.SIGKILL)
            save(state, path)
        resumable.save = only_last
    elif point == "half a file":
        torch.save = half
    elif point == "fsync":
        os.fsync = at(os.fsync)
    elif point == "replace":
        os.replace = at(os.replace)
    elif point == "replaced":
        os.replace = at(os.replace, before=False)

STEPS = int(sys.argv[3])
ends = []
for name, points in json.loads(sys.argv[2]).items():
    for point in [*points, None]:
        child = os.fork()
        if child == 0:
            if point:
                dies(*point)
            resumable.main(Path(name), STEPS, save_every=0.0)
            os._exit(0)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(ends))
"""


def test_training_that_is_killed_ends_with_the_same_bits(tmp_path):
    lives = {str(tmp_path / "undisturbed.pt"): [], str(tmp_path / "killed.pt"): POINTS}
    found = subprocess.run(
        [sys.executable, "-c", DRIVER, str(ROOT / "examples"), json.dumps(lives), str(STEPS)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *printed, ends = found.stdout.splitlines()
    assert json.loads(ends) == [0, *[-signal.SIGKILL] * len(POINTS), 0], found.stderr
    assert printed[0] == f"saved {tmp_path}/undisturbed.pt at step {STEPS} of {STEPS}"
    resumed = [int(step) for step in re.findall(rf"resumed from \S+killed.pt at step (\d+) of {STEPS}", found.stdout)]
    assert resumed == sorted(resumed) and len(resumed) >= len(POINTS) - 2  # some are killed before the first save
    undisturbed, killed = (torch.load(path, weights_only=True) for path in lives)
    assert undisturbed["step"] == STEPS
    assert_same(killed, undisturbed)


@pytest.fixture
def resumable():
    spec = importlib.util.spec_from_file_location("resumable", ROOT / "examples/resumable.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.set_default_dtype(torch.float32)
    return module


@pytest.mark.parametrize(
    ("others", "theirs", "ours"),
    [
        (dict(seed=1), "--seed 0", "--seed 1"),
        (dict(steps=6, lr=0.1), "--steps 3 --lr 0.01", "--steps 6 --lr 0.1"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(others, theirs, ours, resumable, tmp_path):
    path = tmp_path / "walk.pt"
    resumable.main(path, steps=3)
    before = path.read_bytes()
    with pytest.raises(SystemExit) as refused:
        resumable.main(path, **(dict(steps=3) | others))
    assert str(refused.value) == (
        f"{path} was saved with {theirs}, but this run has {ours}; "
        f"pass {theirs} to resume it, or name another file to start a new run."
    )
    assert path.read_bytes() == before


NO_CHECKPOINTS = {
    **{"empty": "", "text": "no checkpoint", "CSV": "a,b\n1,2\n", "word": "build\n", "opcodes": "\x80\x02"},
    **{"other": {"weight": torch.zeros(3)}, "list": [1, 2], "tensor": torch.zeros(2)},
    **{"number as settings": {"settings": 1}, "settings alone": {"settings": {"steps": 3, "lr": 0.01, "seed": 0}}},
}


@pytest.mark.parametrize("content", NO_CHECKPOINTS.values(), ids=NO_CHECKPOINTS.keys())
def test_a_file_that_is_no_checkpoint_is_refused(content, resumable, tmp_path):
    path = tmp_path / "walk.pt"
    if isinstance(content, str):
        path.write_text(content)
    else:
        torch.save(content, path)
    with pytest.raises(SystemExit, match=r"walk.pt is not a checkpoint of this program; name another file\.$"):
        resumable.main(path, steps=3)
