"""The table of methods that the laboratory compares: update rule, label, plot style and order.

A method's key is part of run ids and never changes. Engine, figures and reports all read this one table; its order is
the order of lines in figures and tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .experiment import Run

CorrectionKind = Literal["none", "diagonal", "full", "window", "reservoir", "auto", "oracle", "layers"]
ADAM_BETA_2, ADAM_EPSILON = 0.999, 1e-8


@dataclass(frozen=True)
class Style:
    """Colour, marker and dashes of a line. Colours are safe for colour-blind readers; markers work without colour."""

    light: str  # colour on a light background, contrast at least 3:1
    dark: str  # colour on a dark background
    marker: str  # a matplotlib marker
    dashes: tuple[float, ...] = ()  # lengths of dashes and gaps; empty for a solid line
    layer: int = 1  # lines of a higher layer are drawn above others


# A family of methods has one colour in all figures. The full correction is drawn above all other lines. This library's
# own defaults are drawn below, with a wide dash-dotted line, because they often coincide with the full correction.
BASELINE = Style("#c85200", "#ff9142", "o")
ORACLE = Style("#3a3a3a", "#e6e6e6", "D")
FULL = Style("#0067a5", "#5ab4f0", "s", layer=2)
DIAGONAL = Style("#008060", "#35c79a", "^")
OURS = Style("#a3196f", "#f08fce", "*", (9, 2.5, 2.5, 2.5), layer=0)
FROZEN = Style("#5c4a00", "#ffe94a", "P")
SECOND_ORDER = OTHER_BASELINE = Style("#6f42c1", "#a37cff", "X")
WINDOW = Style("#00829b", "#5fd3e8", "<", (6, 2, 1.5, 2, 1.5, 2))  # not in the paper: dashed, as OURS is
PER_SAMPLE = Style("#b3202c", "#ff8a8a", ">")
ACTUAL_STEP_DIAGONAL = Style("#6b7280", "#a9b1bd", "v")


@dataclass(frozen=True)
class Method:
    """One optimizer variant.

    Methods that never appear in the same figure may share a style.
    """

    label: str  # as the paper writes it
    style: Style
    correction: CorrectionKind = "none"  # "layers": full for ``Run.corrected_layers``, ``other_layers`` for the rest
    trust: float | None = None  # bound κ on the correction; the paper has none
    target_every: int = 0  # steps between copies to a target network; 0: no target network
    second_order: bool = False  # keep the Hessian in the Taylor term
    other_layers: Literal["none", "diagonal"] = "none"
    adam: bool = False  # divide the momentum by Adam's denominator
    literal: bool = False  # the paper's recursion, which takes -α μ̂ for the last step although Adam divides it
    linearizes: bool = False  # compute per-sample gradients and discard them, to measure their cost
    words: str = ""  # the label without symbols, for sentences; if not given, the label


WITH_FULL, WITH_DIAGONAL = "Adam with the full correction", "Adam with the diagonal correction"
METHODS: dict[str, Method] = {
    "momentum": Method("μ", BASELINE),
    "oracle": Method("μ*", ORACLE, "oracle"),
    "full": Method("μ̂", FULL, "full"),
    "diagonal": Method("μ̂ diag", DIAGONAL, "diagonal"),
    "default": Method("μ̂ bounded", OURS, "full", trust=1.0),  # the full correction with the library's bound
    "frozen": Method("frozen targets", FROZEN, target_every=100),
    "second_order": Method("μ̂ with second derivatives", SECOND_ORDER, "full", second_order=True),
    "window": Method("μ̂ (window)", WINDOW, "window", trust=1.0),
    "adam": Method("Adam", BASELINE, adam=True),
    # Adam with the α and β that the paper gives its corrections.
    "adam_matched": Method("Adam, same α and β", OTHER_BASELINE, adam=True, words="Adam with the same α and β"),
    # "/√": divided by Adam's denominator.
    "adam_oracle": Method("μ*/√", ORACLE, "oracle", adam=True),
    "adam_dense": Method("μ̂/√", FULL, "full", trust=1.0, adam=True, words=WITH_FULL),
    "adam_window": Method("μ̂/√ (window)", WINDOW, "window", trust=1.0, adam=True, words=WITH_FULL),
    "adam_reservoir": Method("μ̂/√ (reservoir)", OURS, "reservoir", trust=1.0, adam=True),  # of ``Run.slots``
    "adam_default": Method("CorrectedAdam (default)", OURS, "auto", trust=1.0, adam=True),
    "sgd_default": Method("CorrectedSGD (default)", OURS, "auto", trust=1.0),
    # The paper's own variant in its Atari figures.
    "adam_diagonal_literal": Method(
        "μ̂ diag/√ (literal)", DIAGONAL, "diagonal", adam=True, literal=True, words=WITH_DIAGONAL
    ),
    "adam_diagonal": Method("μ̂ diag/√", ACTUAL_STEP_DIAGONAL, "diagonal", adam=True, words=WITH_DIAGONAL),
    "adam_frozen": Method("Adam, frozen targets", FROZEN, target_every=2500, adam=True),
    "adam_linearized": Method("Adam + per-sample gradients", PER_SAMPLE, adam=True, linearizes=True),
    "layers": Method("μ̂ for some layers", FULL, "layers"),
    "layers_diagonal": Method("μ̂ for some layers, μ̂ diag for the rest", DIAGONAL, "layers", other_layers="diagonal"),
}


def horizon(run: Run) -> int:
    """Return how many batches the oracle, the window or a measurement looks back on."""
    from unstale.corrections import paper_horizon  # imported here: figures read the table without loading torch

    return min(run.horizon or paper_horizon(run.beta), run.steps)


def results_version(run: Run) -> int:
    """Return the version of results in which runs like this one last changed, at most ``versions.RESULTS_VERSION``."""
    if "phases" in run.measure:
        return 3
    method = METHODS.get(run.method)
    return 2 if method is not None and method.correction == "oracle" and run.convention == "text" else 1


def trust_bound(run: Run) -> float | None:
    """Return the bound κ on the correction: the run's own, or else the method's; ``None`` for no bound."""
    return METHODS[run.method].trust if run.trust < 0 else run.trust or None


def has_growing_memory(run: Run) -> bool:
    """Return whether β grows over the run, as in the library if it is left out. ``Run.beta`` then has no meaning."""
    return METHODS[run.method].correction in ("reservoir", "auto")


def has_one_beta(run: Run) -> bool:
    """Return whether runs like this one can only be batched with runs of the same β.

    β sets the horizon of an oracle, a window or a measurement, and a scalar β saves passes over the matrix of a full
    correction.
    """
    return METHODS[run.method].correction in ("oracle", "full", "window", "reservoir", "auto", "layers") or bool(
        run.measure
    )
