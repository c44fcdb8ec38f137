"""The figures of the paper, the claims without a figure, and our own studies, by name: one module each."""

from __future__ import annotations

from ..errors import unknown
from . import (
    claim13,
    claim20,
    claim21,
    claim22,
    claim22_time,
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
    fig9_equal_settings,
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
    long_memory,
    ms_pacman_memory,
)
from .figure import Figure

_FIGURES_TO_9 = (fig1, fig2, fig3, fig4, fig5, fig6, fig7, fig8, fig9, fig9_equal_settings, fig9_tuned)
_FIGURES_TO_19 = (fig10, fig11, fig12, fig13, fig14, fig15, fig16, fig17, fig18, fig19)
_CLAIMS = (claim13, claim20, claim21, claim22, claim22_time, claim23, claim24, claim25)
_STUDIES = (long_memory, ms_pacman_memory)  # of our own; they judge no claim

FIGURES: dict[str, Figure] = {
    module.FIGURE.name: module.FIGURE for module in (*_FIGURES_TO_9, *_FIGURES_TO_19, *_CLAIMS, *_STUDIES)
}


def find(name: str) -> Figure:
    """Return the figure of that name; raise an error that suggests the nearest name if there is none."""
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    return FIGURES[name]


__all__ = ["FIGURES", "Figure", "find"]
