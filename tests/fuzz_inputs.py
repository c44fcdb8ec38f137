"""What the tests named ``test_fuzz_*`` share: strategies of valid and invalid arguments, and what may come of them.

A call has to succeed, or to be refused by a ``raise`` of this project. Errors that only happen to come up inside of
Python, torch or another package count as crashes.

``UNSTALE_FUZZ_EXAMPLES=2000`` draws that many examples of every property, new ones in every run.
"""

from __future__ import annotations

import linecache
import math
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]
OWN = tuple(str(ROOT / part) for part in ("src", "lab/src"))
ASKED = int(os.environ.get("UNSTALE_FUZZ_EXAMPLES", "0"))


def fuzzed(examples=25):
    """Settings of a property: ``examples`` in a usual run, the same ones every time."""
    return settings(max_examples=ASKED or examples, derandomize=not ASKED, print_blob=True)


REFUSED = object()


def attempt(call, *also):
    """What ``call`` returns, or ``REFUSED``; anything but a clear refusal is raised again.

    Args:
        also: errors that are as good as TypeError and ValueError here.
    """
    try:
        return call()
    except (TypeError, ValueError, *also) as error:
        if not is_own(error):
            raise AssertionError(f"not refused by this project: {type(error).__name__}: {error}") from error
        assert len(str(error)) > 20, error  # says what was wrong
        return REFUSED


def is_own(error):
    """Whether a ``raise`` of this project raised an error, or torch's own base class of optimizers."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename
    line = linecache.getline(file, trace.tb_lineno).strip()
    is_ours = file.startswith(OWN) or file.endswith(("torch/optim/optimizer.py",))
    return is_ours and line.startswith(("raise", "refuse("))


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)

# Never a valid number, whatever the argument.
NO_NUMBERS = st.sampled_from(
    [
        math.nan,
        "0.5",
        "",
        b"1",
        [],
        (),
        {},
        {1},
        1 + 2j,
        object(),
        torch.ones(2),
        np.ones(2),
        torch.tensor(True),
        slice(1),
    ]
)
ODD_NUMBERS = st.sampled_from(
    [0, -0.0, 1, -1, 2, 0.5, 1e-300, 1e300, -1e300, math.inf, -math.inf, 10**400, -(10**400), True, False, None,
     Fraction(1, 3), np.float32(0.25), np.int64(3), np.float64("nan"), torch.tensor(0.5), torch.tensor(2)]
)  # fmt: skip
ANY_NUMBER = st.one_of(NO_NUMBERS, ODD_NUMBERS, st.floats(), st.integers())
NO_TENSORS = st.sampled_from(
    [None, 0.5, 1, "x", [1.0, 2.0], (1.0,), {}, np.ones(3), object(), torch.ones(3).to_sparse()]
)  # fmt: skip


@st.composite
def tensors(draw, shape, dtypes=DTYPES, low=-4, high=4):
    """A tensor of multiples of a quarter, which all floating-point dtypes hold exactly."""
    dtype = draw(st.sampled_from(dtypes))
    count = math.prod(shape)
    quarters = draw(st.lists(st.integers(4 * low, 4 * high), min_size=count, max_size=count))
    x = torch.tensor(quarters, dtype=torch.float64).reshape(shape) / 4
    return (x != 0) if dtype == torch.bool else x.to(dtype)


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
any_tensor = st.one_of(shapes.flatmap(tensors), NO_TENSORS)


@st.composite
def spoiled(draw, arguments, **kinds):
    """Valid arguments, of which at most two are replaced by something odd.

    Args:
        arguments: a strategy of dictionaries.
        kinds: by the name of an argument, a strategy of odd values for it.
    """
    found = dict(draw(arguments))
    for name in draw(st.lists(st.sampled_from(sorted(kinds)), max_size=2, unique=True)):
        found[name] = draw(kinds[name])
    return found
