"""Checks what a correction remembers before it is loaded: a damaged file must not become a wrong correction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from .._checks import is_count, is_finite, is_number
from .base import Correction, Memory
from .blocks import Blocks
from .diagonal import Diagonal
from .oracle import Oracle
from .reservoir import MIN_GENERATIONS, Reservoir
from .select import NAMES, Plan
from .window import Window


class Layout(NamedTuple):
    """What the tensors of a parameter group look like."""

    size: int  # parameters, n
    followed: int  # parameters of followed networks, p
    dtype: torch.dtype

    @property
    def joint(self) -> int:
        return self.size + self.followed


def refuse(what: str) -> NoReturn:
    raise ValueError(
        f"this state_dict is damaged: {what}. The optimizer is unchanged. Load another checkpoint, or save it again."
    )


def check_entries(where: str, saved: Any, required: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    """The dictionary itself, if it has the required entries and no unknown ones."""
    if not isinstance(saved, dict):
        refuse(f"{where} is a {type(saved).__name__} instead of a dictionary")
    missing = [name for name in required if name not in saved]
    unknown = [name for name in saved if name not in required and name not in optional]
    if missing or unknown:
        refuse(f"{where} has no {missing[0]!r}" if missing else f"{where} has the unknown entry {unknown[0]!r}")
    return saved


def check_tensor(
    where: str, saved: Any, shape: Sequence[int], dtype: torch.dtype | None = None, may_be_infinite: bool = False
) -> Tensor:
    """The tensor itself, if it has this shape and dtype and all its entries are finite."""
    if not isinstance(saved, Tensor) or saved.layout != torch.strided or saved.is_meta:
        refuse(f"{where} is a {type(saved).__name__} instead of a dense tensor")
    if saved.shape != torch.Size(shape):
        refuse(f"{where} has shape {list(saved.shape)} instead of {list(shape)}")
    if dtype is not None and saved.dtype != dtype:
        refuse(f"{where} has dtype {saved.dtype} instead of {dtype}")
    if not may_be_infinite and not bool(saved.isfinite().all()):
        refuse(f"{where} has entries that are not finite")
    return saved


def check_counter(where: str, saved: Any, most: float, least: int = 0) -> int:
    """A whole number, or a tensor of one, from ``least`` to ``most``."""
    number = saved.item() if isinstance(saved, Tensor) and saved.numel() == 1 and not saved.is_meta else saved
    if not is_count(number, least) or number > most:
        refuse(f"{where} is {saved!r}, not a whole number from {least} to {most:g}")
    return int(number)


def check_plan(where: str, saved: Any, correction: str) -> Plan:
    """The plan itself, if it can have been made for ``correction``."""
    plan = check_entries(where, saved, list(Plan.__annotations__))
    planned = {"auto": ("dense", "window", "reservoir")}.get(correction, (correction,))
    if plan["correction"] not in NAMES or plan["correction"] not in planned:
        refuse(f"{where} is for correction={plan['correction']!r}, but the option is {correction!r}")
    for name in ("horizon", "batch", "every"):
        check_counter(f"{name} of {where}", plan[name], most=1 << 62, least=1)
    if not is_finite(plan["max_memory"]) or not plan["max_memory"] >= 1:
        refuse(f"max_memory of {where} is {plan['max_memory']!r}")
    if not isinstance(plan["reason"], str):
        refuse(f"reason of {where} is a {type(plan['reason']).__name__}")
    reservoir = plan["reservoir"]
    if (reservoir is not None) != (plan["correction"] == "reservoir"):
        refuse(f"{where} has {'a' if reservoir else 'no'} reservoir for correction={plan['correction']!r}")
    if reservoir is not None and not (
        isinstance(reservoir, list | tuple) and len(reservoir) == 4 and all(map(is_count, reservoir))
    ):
        refuse(f"the reservoir of {where} is {reservoir!r}, not four whole numbers")
    if reservoir is not None and (reservoir[3] < 2 or reservoir[2] + reservoir[3] < MIN_GENERATIONS):
        refuse(f"the reservoir of {where} has {reservoir[2]} + {reservoir[3]} generations")
    return saved  # type: ignore[no-any-return]


def check_memory_of(correction: Correction, where: str, memory: Any, layout: Layout, steps: int) -> None:
    """Raise ValueError unless ``memory`` is what ``correction`` can have left after ``steps`` steps."""
    if not isinstance(memory, dict):
        refuse(f"{where} is a {type(memory).__name__} instead of a dictionary")
    checks: dict[type[Correction], Any] = {
        Diagonal: _check_diagonal,
        Blocks: _check_blocks,
        Window: _check_window,
        Reservoir: _check_reservoir,
        Oracle: _check_oracle,
    }
    checks[type(correction)](correction, where, memory, layout, steps)


def _check_oracle(correction: Oracle, where: str, memory: Memory, layout: Layout, steps: int) -> None:
    if memory:  # it is empty after loading
        check_entries(where, memory, ["stale"])
        check_tensor(f"stale of {where}", memory["stale"], [layout.size], layout.dtype)


def _check_diagonal(correction: Diagonal, where: str, memory: Memory, layout: Layout, steps: int) -> None:
    check_entries(where, memory, ["eta", "zeta"])
    check_tensor(f"eta of {where}", memory["eta"], [layout.size], layout.dtype)
    check_tensor(f"zeta of {where}", memory["zeta"], [layout.joint], layout.dtype)


def _check_blocks(correction: Blocks, where: str, memory: Memory, layout: Layout, steps: int) -> None:
    names = ["step", "decay", "eta", "zeta"] + (["buffer"] if correction.merge_every > 1 else [])
    check_entries(where, memory, names)
    check_counter(f"step of {where}", memory["step"], most=steps, least=1)
    if not is_number(memory["decay"]) or not 0 <= memory["decay"] <= 1:
        refuse(f"decay of {where} is {memory['decay']!r}, not in [0, 1]")
    check_tensor(f"eta of {where}", memory["eta"], [layout.size], layout.dtype)
    shapes = correction.shapes
    if not isinstance(memory["zeta"], list) or len(memory["zeta"]) != len(shapes):
        refuse(f"zeta of {where} is not a list of {len(shapes)} tensors")
    for zeta, shape in zip(memory["zeta"], shapes, strict=True):
        check_tensor(f"zeta of {where}", zeta, shape, layout.dtype)
    if memory.get("buffer", {}) != {}:
        where = f"the buffer of {where}"
        buffer = check_entries(where, memory["buffer"], ["weight", "v", "u", "samples"])
        room = _length(f"weight of {where}", buffer["weight"])
        for name, axes in (("weight", [room]), ("v", [room, layout.size]), ("u", [room, layout.joint])):
            check_tensor(f"{name} of {where}", buffer[name], axes, layout.dtype)
        check_tensor(f"samples of {where}", buffer["samples"], [], torch.int64)
        check_counter(f"samples of {where}", buffer["samples"], most=room)


def _check_window(correction: Window, where: str, memory: Memory, layout: Layout, steps: int) -> None:
    refreshed = ["slope", "base"] if correction.refresh else []
    check_entries(where, memory, ["shift", "weight", "pieces", "batches", *refreshed, *_followed(layout)])
    slots = _check_slots(where, memory, layout)
    if slots == 0 or slots % correction.horizon:
        refuse(f"{where} has {slots} slots, which {correction.horizon} batches cannot share equally")
    check_tensor(f"batches of {where}", memory["batches"], [], torch.int64)
    check_counter(f"batches of {where}", memory["batches"], most=steps, least=1)
    if refreshed:
        check_tensor(f"slope of {where}", memory["slope"], [slots], layout.dtype)
        check_tensor(f"base of {where}", memory["base"], [layout.size], layout.dtype)


def _check_reservoir(correction: Reservoir, where: str, memory: Memory, layout: Layout, steps: int) -> None:
    places = ["generation", "newest", "pool"]
    names = ["shift", "weight", "pieces", *places, *_followed(layout)] if "weight" in memory else []
    check_entries(where, memory, ["step", *names])
    step = check_counter(f"step of {where}", memory["step"], most=steps, least=1)
    if not names:
        return
    plan = correction.plan
    slots = _check_slots(where, memory, layout)
    if slots != plan.slots:
        refuse(f"{where} has {slots} slots, but its plan has {plan.slots}")
    check_tensor(f"generation of {where}", memory["generation"], [], torch.int64)
    check_counter(f"generation of {where}", memory["generation"], most=step, least=1)
    for name, rows in (("newest", plan.newest), ("pool", plan.pool)):
        check_tensor(f"{name} of {where}", memory[name], [rows, plan.samples], torch.int64)
    used = torch.cat([memory["newest"].flatten(), memory["pool"].flatten()]).sort().values
    if not torch.equal(used.cpu(), torch.arange(slots)):
        refuse(f"newest and pool of {where} do not name every slot once")


def _followed(layout: Layout) -> list[str]:
    return ["followed"] if layout.followed else []


def _length(where: str, saved: Any) -> int:
    if not isinstance(saved, Tensor) or saved.ndim != 1:
        refuse(f"{where} is not a vector")
    return len(saved)


def _check_slots(where: str, memory: Memory, layout: Layout) -> int:
    """The number of slots."""
    slots = _length(f"weight of {where}", memory["weight"])
    for name in ("weight", "shift"):
        check_tensor(f"{name} of {where}", memory[name], [slots], layout.dtype)
    if layout.followed and memory["followed"] != layout.followed:
        refuse(f"{where} follows {memory['followed']!r} parameters instead of {layout.followed}")
    if not isinstance(memory["pieces"], list) or not memory["pieces"]:
        refuse(f"pieces of {where} are not a list of dictionaries")
    end = 0
    for number, piece in enumerate(memory["pieces"]):
        end = _check_piece(f"piece {number} of {where}", piece, end, slots, layout)
    if end != layout.joint:
        refuse(f"pieces of {where} cover {end} parameters instead of {layout.joint}")
    return slots


def _check_piece(where: str, piece: Any, start: int, slots: int, layout: Layout) -> int:
    """Where the parameters of a piece end, which begin at ``start``."""
    check_entries(where, piece, ["kind", "start", "stop", "head", "tensors"])
    last = layout.size if start < layout.size else layout.joint
    check_counter(f"start of {where}", piece["start"], most=start, least=start)
    stop = check_counter(f"stop of {where}", piece["stop"], most=last, least=start)
    kind, tensors = piece["kind"], piece["tensors"]
    count = {"matrix": 2, "residual": 1, "outer": 2, "lookup": 2}.get(kind if isinstance(kind, str) else "")
    if count is None or not isinstance(tensors, list | tuple) or len(tensors) != count:
        refuse(f"{where} is not one of per-sample gradients")
    if kind == "residual" and start < layout.size:
        refuse(f"{where} has no gradients of predictions")
    if kind in ("matrix", "residual"):
        check_counter(f"head of {where}", piece["head"], most=0)
        for tensor in tensors:
            check_tensor(where, tensor, [slots, stop - start], layout.dtype)
        return stop
    last_tensor = tensors[1]
    if not isinstance(last_tensor, Tensor) or last_tensor.ndim != 3:
        refuse(f"{where} has no tensor of three axes")
    positions, _, outputs = last_tensor.shape
    check_counter(f"head of {where}", piece["head"], most=positions)
    check_tensor(where, last_tensor, [positions, slots, outputs], layout.dtype)
    width = stop - start
    if width % max(1, outputs):
        refuse(f"{where} has {outputs} outputs for {width} parameters")
    rows = width // max(1, outputs)
    if kind == "outer":
        check_tensor(where, tensors[0], [positions, slots, rows], layout.dtype)
        return stop
    index = check_tensor(where, tensors[0], [positions, slots])
    if index.dtype not in (torch.int32, torch.int64):
        refuse(f"{where} looks up rows by {index.dtype}")
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < rows:
        refuse(f"{where} looks up rows from {int(index.min())} to {int(index.max())} of {rows}")
    return stop
