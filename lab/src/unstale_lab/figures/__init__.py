"""The paper's figures, and the claims that have none, by name: one module each."""

from __future__ import annotations

from ..errors import unknown
from . import (
    claim13,
    claim20,
    claim21,
    claim22,
    claim23,
    claim24,
    claim25,
    fig1,
    fig2,
    fig3,
    fig4,
    fig5,
    fig6,
    fig7,
    fig8,
    fig9,
    fig9_tuned,
    fig10,
    fig11,
    fig12,
    fig13,
    fig14,
    fig15,
    fig16,
    fig17,
    fig18,
    fig19,
)
from .base import Figure

_TO_9 = (fig1, fig2, fig3, fig4, fig5, fig6, fig7, fig8, fig9, fig9_tuned)
_TO_19 = (fig10, fig11, fig12, fig13, fig14, fig15, fig16, fig17, fig18, fig19)
_CLAIMS = (claim13, claim20, claim21, claim22, claim23, claim24, claim25)

FIGURES: dict[str, Figure] = {module.FIGURE.name: module.FIGURE for module in (*_TO_9, *_TO_19, *_CLAIMS)}


def find(name: str) -> Figure:
    """The figure of that name."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    return FIGURES[name]


__all__ = ["FIGURES", "Figure", "find"]
