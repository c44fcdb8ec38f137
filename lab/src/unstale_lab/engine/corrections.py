"""Builds the library's correction for a run's method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unstale import corrections
from unstale._options import DEFAULTS as DEFAULT_OPTIONS
from unstale.corrections import Correction, Diagonal, Memory, Plan, Replay, Sizes, Window, dense
from unstale.per_sample.gradients import Linearization

from ..experiment import Run
from ..methods import METHODS, horizon
from .network import Network


def make_plan(run: Run, network: Network) -> Plan:
    """Return what the library would decide for runs like this one, on a CPU, if β is left out."""
    sizes = Sizes(
        parameters=network.size,
        slot_numbers=network.numbers_per_sample,
        batch=run.batch,
        device="cpu",
        itemsize=4,
    )
    return corrections.make_plan(_options(run), None, sizes)


def _options(run: Run) -> dict[str, Any]:
    return {**DEFAULT_OPTIONS, "correction": METHODS[run.method].correction, "slots": run.slots or None}


def build_correction(run: Run, network: Network, plan: Plan | None = None) -> Correction | None:
    """Return the correction for runs like this one, or ``None`` if the method corrects nothing."""
    method = METHODS[run.method]
    if plan is not None:
        return corrections.build(plan, _options(run), [network.size])
    if method.correction == "diagonal":
        return Diagonal()
    if method.correction == "full":
        return dense(network.size)
    if method.correction == "window":
        return Window(horizon(run))
    if method.correction == "layers":
        return LayerwiseCorrection(network, run.corrected_layers, method.other_layers)
    return None


class LayerwiseCorrection(Correction):
    """One full correction for the parameters of the chosen layers; diagonal or no correction for the others."""

    def __init__(self, network: Network, chosen: Sequence[int], other_layers: str) -> None:
        layers = range(len(network.spans))
        others = [layer for layer in layers if layer not in chosen]
        size = sum(_length(network.spans[layer]) for layer in chosen)
        self._parts: dict[str, tuple[list[int], Correction]] = {"full": (list(chosen), dense(size))}
        if other_layers == "diagonal":
            self._parts["diagonal"] = (others, Diagonal())

    def update(
        self,
        memory: Memory,
        batch: Linearization,
        displacement: Tensor,
        beta: float | Tensor,
        replay: Replay | None = None,
    ) -> Tensor:
        eta = torch.zeros_like(displacement)
        for name, (layers, correction) in self._parts.items():
            if not layers:
                continue
            spans = [batch.pieces[layer].span for layer in layers]
            part_displacement = torch.cat([displacement[..., span] for span in spans], -1)
            part_memory = memory.setdefault(name, {})
            part_eta = correction.update(part_memory, _restrict(batch, layers), part_displacement, beta)
            for span, piece in zip(spans, part_eta.split([_length(span) for span in spans], -1), strict=True):
                eta[..., span] = piece
        return eta


def _restrict(batch: Linearization, layers: Sequence[int]) -> Linearization:
    """Return the batch's gradients with respect to the parameters of these layers only."""
    pieces, start = [], 0
    for layer in layers:
        piece = batch.pieces[layer]
        pieces.append(replace(piece, span=slice(start, start + _length(piece.span))))
        start = pieces[-1].span.stop
    return replace(batch, pieces=tuple(pieces))


def _length(span: slice) -> int:
    return span.stop - span.start
