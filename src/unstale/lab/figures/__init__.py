"""The paper's figures, and the claims that have none, by name: one module each."""

from __future__ import annotations

from ..mistakes import unknown
from . import (
    claim20,
    claim21,
    claim24,
    claim25,
    fig1,
    fig3,
    fig4,
    fig5,
    fig6,
    fig7,
    fig8,
    fig10,
    fig11,
    fig12,
    fig13,
    fig14,
    fig15,
    fig16,
    fig18,
    fig19,
)
from .base import Figure

_FIGURES = (fig1, fig3, fig4, fig5, fig6, fig7, fig8, fig10, fig11, fig12, fig13, fig14, fig15, fig16, fig18, fig19)
_CLAIMS = (claim20, claim21, claim24, claim25)

FIGURES: dict[str, Figure] = {module.FIGURE.name: module.FIGURE for module in (*_FIGURES, *_CLAIMS)}


def find(name: str) -> Figure:
    """The figure of that name."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    return FIGURES[name]


__all__ = ["FIGURES", "Figure", "find"]
