"""The methods that are compared, as data, and the library's correction that each of them uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unstale.corrections import Correction, Diagonal, Window, dense, paper_horizon
from unstale.samples import Linearization

from ..experiment import Run
from .network import Network


@dataclass(frozen=True)
class Method:
    """``correction`` is none, diagonal, full, window, oracle, or layers: full for some, ``rest`` for the others."""

    correction: str = "none"
    trust: float | None = None  # the paper has no bound
    target_every: int = 0  # steps between copies of a frozen target network; 0 is none
    second_order: bool = False
    rest: str = "none"
    adam: bool = False  # the momentum is divided by Adam's root
    literal: bool = False  # the paper's recursion, which takes α μ̂ for the last move, whatever it was divided by
    linearizes: bool = False  # per-sample gradients are found and thrown away: what they cost


METHODS = {
    "momentum": Method(),
    "oracle": Method("oracle"),
    "full": Method("full"),
    "diagonal": Method("diagonal"),
    "default": Method("full", trust=1.0),  # what the library does unless told otherwise
    "frozen": Method(target_every=100),
    "second_order": Method("full", second_order=True),
    "layers": Method("layers"),
    "layers_diagonal": Method("layers", rest="diagonal"),
    "window": Method("window", trust=1.0),  # the default for a network of any size
    "adam": Method(adam=True),
    "adam_diagonal_literal": Method("diagonal", adam=True, literal=True),  # the paper's, in its Atari figures
    "adam_diagonal": Method("diagonal", adam=True),
    "adam_window": Method("window", trust=1.0, adam=True),
    "adam_dense": Method("full", trust=1.0, adam=True),
    "adam_oracle": Method("oracle", adam=True),
    "adam_frozen": Method(target_every=2500, adam=True),
    "adam_linearized": Method(adam=True, linearizes=True),
}
BETA_2, EPSILON = 0.999, 1e-8  # Adam's


def horizon(run: Run) -> int:
    """How many batches an oracle, a window or an instrument looks back on."""
    return min(run.horizon or paper_horizon(run.beta), run.steps)


def has_one_beta(run: Run) -> bool:
    """Whether runs like this one are stepped with those of the same β alone: β says how far an oracle or an instrument
    looks back, and one number for all saves passes over a large matrix."""
    return METHODS[run.method].correction in ("oracle", "full", "window", "layers") or bool(run.measure)


def build(run: Run, network: Network) -> Correction | None:
    """The correction for runs like this one; ``None`` for those that correct nothing."""
    method = METHODS[run.method]
    if method.correction == "diagonal":
        return Diagonal()
    if method.correction == "full":
        return dense(network.size)
    if method.correction == "window":
        return Window(horizon(run))
    if method.correction == "layers":
        return SomeLayers(network, run.corrected_layers, method.rest)
    return None


class SomeLayers:
    """One full correction for the parameters of the chosen layers together; the rest diagonally, or not at all."""

    def __init__(self, network: Network, chosen: Sequence[int], rest: str) -> None:
        layers = range(len(network.spans))
        others = [layer for layer in layers if layer not in chosen]
        size = sum(_length(network.spans[layer]) for layer in chosen)
        self._parts: dict[str, tuple[list[int], Correction]] = {"full": (list(chosen), dense(size))}
        if rest == "diagonal":
            self._parts["diagonal"] = (others, Diagonal())

    def update(
        self,
        memory: dict[str, Any],
        batch: Linearization,
        displacement: Tensor,
        beta: float | Tensor,
        replay: Any = None,
    ) -> Tensor:
        eta = torch.zeros_like(displacement)
        for name, (layers, correction) in self._parts.items():
            if not layers:
                continue
            spans = [batch.pieces[layer].span for layer in layers]
            own = torch.cat([displacement[..., span] for span in spans], -1)
            part = correction.update(memory.setdefault(name, {}), _restricted(batch, layers), own, beta)
            for span, piece in zip(spans, part.split([_length(span) for span in spans], -1), strict=True):
                eta[..., span] = piece
        return eta


def _restricted(batch: Linearization, layers: Sequence[int]) -> Linearization:
    """The batch as parameters of some layers alone see it."""
    pieces, start = [], 0
    for layer in layers:
        piece = batch.pieces[layer]
        pieces.append(replace(piece, span=slice(start, start + _length(piece.span))))
        start = pieces[-1].span.stop
    return replace(batch, pieces=tuple(pieces))


def _length(span: slice) -> int:
    return span.stop - span.start
