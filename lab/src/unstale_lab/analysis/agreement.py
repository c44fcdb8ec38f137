"""Cosines of past gradients with the true ones: curves for figures, ``1 - cosine`` for comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..records import Record
from .curves import learning_curves
from .panels import Series
from .run_table import Fields, tabulate
from .statistics import Array

MAX_DISAGREEMENT = 2.0  # largest value of 1 - cosine; what a diverged run counts as
COSINE_CURVES = {
    "samples": "agreement",
    "batches": "agreement of batches",
    "batches, uncorrected": "agreement if uncorrected",
}


def cosine_curves(records: Sequence[Record], kind: str = "samples", by: Fields = ("method",)) -> list[Series]:
    """Return the mean cosine along training, of the runs that did not diverge."""
    curves = learning_curves(_with_disagreement(records, kind), curve=kind, by=by)
    return [_to_cosine(series) for series in curves]


def mean_disagreement(
    records: Sequence[Record], start: float = 0.0, end: float = 1.0, kind: str = "samples", by: Fields = ("method",)
) -> dict[str, Array]:
    """Return the mean of ``1 - cosine`` over a share of the training, ``[settings, seeds]`` for each line.

    It behaves like an error: it is 0 or more, and ``inf`` for a diverged run.
    """
    return tabulate(_with_disagreement(records, kind), by).mean_over(kind, start, end)


def _with_disagreement(records: Sequence[Record], kind: str) -> list[Record]:
    """Return the records with the single curve ``1 - cosine``."""
    curves = [np.asarray(record.curves[COSINE_CURVES[kind]], dtype=float) for record in records]
    # Rounding makes some cosines slightly larger than 1.
    disagreements = [np.where(np.isinf(curve), np.inf, np.clip(1 - curve, 0, None)) for curve in curves]
    return [replace(record, curves={kind: curve}) for record, curve in zip(records, disagreements, strict=True)]


def _to_cosine(series: Series) -> Series:
    y, low, high = ([1 - value for value in values] for values in (series.y, series.high, series.low))
    return replace(series, y=y, low=low, high=high)
