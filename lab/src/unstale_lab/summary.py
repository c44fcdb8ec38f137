"""Summaries of figures: everything that a report needs, as small JSON files."""

from __future__ import annotations

import json
import math
import re
import reprlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from .analysis.panels import Panel, Series, Table
from .analysis.statistics import Comparison
from .claims.judging import answer_at_reduced_scale, combine_parts
from .claims.verdict import ANSWERS, READINGS, Effect, Part, Verdict
from .errors import DataError, one_line
from .experiment import SCALES, Scale
from .files import write_file

T = TypeVar("T")
NAME = re.compile(r"[a-z0-9_]+")
# Types of fields that are checked, by annotation.
SIMPLE_TYPES = {"str": str, "bool": bool, "dict[str, str]": dict}
TEXTS = ("Sequence[str]", "tuple[str, ...]")
MAY_BE_LEFT_OUT = ("tables", "findings", "measured")  # by versions that had no studies


@dataclass(frozen=True)
class Summary:
    """The content of a figure at one scale: panels to draw, verdicts or findings, and provenance."""

    name: str  # "fig3"; part of file names, so of lower-case letters, digits and underscores only
    title: str
    claims: tuple[int, ...]
    settings: str
    scale: Scale
    command: str  # reproduces the figure
    panels: Sequence[Panel]
    verdicts: Sequence[Verdict]
    runs: int
    diverged: int
    seconds: float  # of all runs together
    findings: Sequence[str] = ()  # of a study: sentences, the answer first
    tables: Sequence[Table] = ()  # of a study
    measured: Sequence[str] = ()  # sentences without verdicts: the answer of a small run
    cut: str = ""
    machines: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)  # of the libraries
    commit: str = ""
    date: str = ""

    @property
    def is_judged(self) -> bool:
        """Whether its verdicts count. A small run may say what it measured instead."""
        return self.scale == "paper" or not self.measured

    def to_json(self) -> str:
        return json_text(asdict(self))

    @staticmethod
    def from_json(text: str) -> Summary:
        own = json.loads(text)
        if not (isinstance(own, dict) and isinstance(own.get("name"), str) and NAME.fullmatch(own["name"])):
            raise ValueError("its name must consist of lower-case letters, digits and underscores")
        if own.get("scale") not in SCALES:
            raise ValueError(f"its scale {own.get('scale')!r} is none of {', '.join(SCALES)}")
        json.dumps(own, ensure_ascii=False).encode()  # half of a character in a text is a UnicodeEncodeError
        is_reduced = bool(own.get("cut"))
        own["panels"] = tuple(_panel(panel) for panel in _items(own, "panels"))
        own["verdicts"] = tuple(_verdict(verdict, own["claims"], is_reduced) for verdict in _items(own, "verdicts"))
        own["tables"] = tuple(_table(table) for table in _items(own, "tables"))
        own["seconds"] = float(own["seconds"])
        if not 0 <= own["seconds"] < math.inf:
            raise ValueError("its seconds are not a finite number of at least 0")
        if not all(isinstance(text, str) for text in dict(own.get("versions", {})).values()):
            raise ValueError("its versions are not all texts")
        lists = ("claims", "machines", "findings", "measured")
        return _make(Summary, own | {name: tuple(_items(own, name)) for name in lists})


def write_summary(summary: Summary, out: Path) -> Path:
    """Writes ``<out>/summaries/fig3.json`` atomically."""
    return write_file(out / "summaries" / f"{summary.name}.json", summary.to_json().encode())


def read_summaries(out: Path) -> list[Summary]:
    """All summaries in ``<out>/summaries``, in the order of the paper."""
    return in_order(_read(path) for path in (out / "summaries").glob("*.json"))


def _read(path: Path) -> Summary:
    try:
        summary = Summary.from_json(path.read_text("utf-8"))
        if summary.name != path.stem:
            raise ValueError(f"it is the summary of {summary.name}")
        return summary
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise DataError(
            f"{path} is not a summary ({one_line(error)}). If a later version has written it, update; otherwise delete "
            "it and reproduce its figure again."
        ) from error


def in_order(summaries: Iterable[Summary]) -> list[Summary]:
    """Figures by number, then claims without a figure by number, then studies by name."""

    def place(summary: Summary) -> tuple[bool, bool, int, str]:
        digits = re.search(r"\d+", summary.name)
        return not summary.claims, not summary.name.startswith("fig"), int(digits[0]) if digits else 0, summary.name

    return sorted(summaries, key=place)


def json_text(value: Any) -> str:
    """Compact JSON that is easy to compare: sorted keys, six digits, infinities as strings, lists on one line.

    >>> print(json_text({"p": 0.12345678, "effect": math.inf, "at": (1, 2)}), end="")
    {
     "at": [1, 2],
     "effect": "inf",
     "p": 0.123457
    }
    >>> print(json_text({"p": 2e-310}), end="")
    {
     "p": 0.0
    }
    """
    return _format(_plain(value)) + "\n"


def _plain(value: Any) -> Any:
    """Converts arrays to lists, rounds floats (subnormal ones to 0), and writes infinities as strings."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return str(value)
    # Whether subnormal numbers are 0 depends on the state of the processor, which torch can set.
    return float(f"{value:.6g}") if abs(value) >= sys.float_info.min else 0.0


def _format(value: Any, margin: str = "") -> str:
    """One key or object per line; lists of numbers stay on one line."""
    inner = margin + " "
    if isinstance(value, dict) and value:
        lines = [f"{json.dumps(key)}: {_format(value[key], inner)}" for key in sorted(value)]
        return f"{{\n{inner}" + f",\n{inner}".join(lines) + f"\n{margin}}}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return f"[\n{inner}" + f",\n{inner}".join(_format(item, inner) for item in value) + f"\n{margin}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _items(own: dict[str, Any], name: str) -> list[Any]:
    value = own.get(name, []) if name in MAY_BE_LEFT_OUT else own[name]
    if not isinstance(value, list):
        raise ValueError(f"its {name} is {reprlib.repr(value)}, which is no list")
    return value


def _make(kind: type[T], own: dict[str, Any]) -> T:
    """Returns the object with these fields; counts, texts, lists of texts and flags are checked."""
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name not in own:
            continue
        value = own[each.name]
        if each.type in TEXTS:
            is_right = not isinstance(value, str) and all(isinstance(text, str) for text in value)
        elif each.type == "int":
            is_right = type(value) is int and value >= 0
        else:
            is_right = type(value) is SIMPLE_TYPES.get(str(each.type), type(value))
        if not is_right:
            raise ValueError(f"its {each.name} is {reprlib.repr(value)}, which is no {each.type}")
    return kind(**own)


def _table(own: dict[str, Any]) -> Table:
    if not all(isinstance(cell, str) for row in own["rows"] for cell in row):
        raise ValueError(f"the table {own['title']!r} has cells that are not texts")
    return _make(Table, own)


def _panel(own: dict[str, Any]) -> Panel:
    return _make(Panel, own | {"series": tuple(_series(series) for series in own["series"])})


def _series(own: dict[str, Any]) -> Series:
    values = {name: _floats(own[name]) for name in ("x", "y", "low", "high")}
    count = len(values["x"])
    if len(values["y"]) != count or {len(values["low"]), len(values["high"])} not in ({0}, {count}):
        raise ValueError(f"the line {own.get('label')!r} has values of different lengths")
    if not all(map(math.isfinite, values["x"])):
        raise ValueError(f"the line {own.get('label')!r} has a place that is not finite")
    return _make(Series, own | values)


def _verdict(own: dict[str, Any], claims: Sequence[int], is_reduced: bool) -> Verdict:
    for answer in (own["answer"], *(part["answer"] for part in own["parts"])):
        if answer not in ANSWERS:
            raise ValueError(f"the answer {answer!r} is none of {', '.join(ANSWERS)}")
    if own["reading"] not in READINGS:
        raise ValueError(f"the reading {own['reading']!r} is none of {', '.join(READINGS)}")
    if own["claim"] not in claims:
        raise ValueError(f"it judges claim {own['claim']!r}, which is not among its claims {claims}")
    verdict = _make(Verdict, own | {"parts": tuple(_part(part) for part in _items(own, "parts"))})
    if not verdict.parts and verdict.answer != "shown":
        raise ValueError(f"its answer to claim {verdict.claim} has no parts")
    combined = combine_parts(verdict.parts) if verdict.parts else verdict.answer
    if is_reduced:
        combined = answer_at_reduced_scale(combined)
    if verdict.answer != combined:
        raise ValueError(f"its answer to claim {verdict.claim} is {verdict.answer!r}, that of its parts {combined!r}")
    return verdict


def _part(own: dict[str, Any]) -> Part:
    effect, comparison = own["effect"], own["comparison"]
    read = {
        "effect": None if effect is None else _effect(effect),
        "comparison": None if comparison is None else _comparison(comparison),
    }
    return _make(Part, own | read | {"unstable": tuple(_items(own, "unstable"))})


def _effect(own: dict[str, Any]) -> Effect:
    interval, value = own["interval"], float(own["value"])
    if math.isnan(value):
        raise ValueError(f"the effect {own['quantity']!r} has no value")
    return _make(Effect, own | {"value": value, "interval": None if interval is None else _interval(interval)})


def _comparison(own: dict[str, Any]) -> Comparison:
    numbers = {name: float(own[name]) for name in ("ratio", "iqm_a", "iqm_b")}
    shares = {name: float(own[name]) for name in ("p_welch", "p_paired", "p_holm", "improvement")}
    for name, value in (numbers | shares).items():
        if not value >= 0 or (name in shares and value > 1):
            raise ValueError(f"its {name} is {value}, which is impossible")
    return _make(Comparison, own | numbers | shares | {"interval": _interval(own["interval"])})


def _interval(ends: Iterable[float | str]) -> tuple[float, float]:
    low, high = _floats(ends)
    if not low <= high:
        raise ValueError(f"the interval from {low} to {high} is empty")
    return low, high


def _floats(values: Iterable[float | str]) -> tuple[Any, ...]:
    return tuple(float(value) for value in values)
