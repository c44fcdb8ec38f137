"""Cosines of past gradients with the true ones, as figures draw them and as claims compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..records import Record
from ..statistics import Array
from .base import Series
from .curves import learning
from .layout import Fields, lay_out

OPPOSITE = 2.0  # 1 - cosine at its worst, as which a diverged run counts
KINDS = {
    "samples": "agreement",
    "batches": "agreement of batches",
    "batches, uncorrected": "agreement if uncorrected",
}


def cosines(records: Sequence[Record], kind: str = "samples", by: Fields = ("method",)) -> list[Series]:
    """The mean cosine along training, a diverged run counting as the worst that there is."""
    apart = learning(_disagreeing(records, kind), curve=kind, by=by, worst=OPPOSITE)
    return [_cosine(series) for series in apart]


def disagreement(
    records: Sequence[Record], start: float = 0.0, end: float = 1.0, kind: str = "samples", by: Fields = ("method",)
) -> dict[str, Array]:
    """The mean of 1 - cosine over a part of the training, ``[settings, seeds]`` for each line; like an error it is 0 or
    more, and infinite for a diverged run."""
    return lay_out(_disagreeing(records, kind), by).along(kind, start, end)


def _disagreeing(records: Sequence[Record], kind: str) -> list[Record]:
    curves = [np.asarray(record.curves[KINDS[kind]], dtype=float) for record in records]
    # Rounding makes cosines a little larger than 1.
    apart = [np.where(np.isinf(curve), np.inf, np.clip(1 - curve, 0, None)) for curve in curves]
    return [replace(record, curves={kind: own}) for record, own in zip(records, apart, strict=True)]


def _cosine(series: Series) -> Series:
    y, low, high = ([1 - value for value in values] for values in (series.y, series.high, series.low))
    return replace(series, y=y, low=low, high=high)
