"""Converts gradients of a layer's rows to gradients of samples, which use one row, several or a mix of all."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .gradients import Materialized
from .layer_rules import RowGradients
from .trace import OwnedCall, Units

# Gather single rows instead of mixing all, if there are at least this many times more rows than any sample uses.
MIN_ROWS_PER_USED_ROW = 4


class Rows(NamedTuple):
    """How the rows of a call become samples: row ``chosen[k]`` is sample ``k``'s (``[f, m]`` if samples have several
    each; ``weight`` is 0 where one is missing), or samples mix all rows with the weights ``mixing [m, r]``."""

    chosen: slice | Tensor
    weight: Tensor | None = None
    mixing: Tensor | None = None


_IN_ORDER = Rows(slice(None))


class RowsOfSamples:
    """Finds the rows of samples, once for every owner: the layers of a network mostly share one."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._known: dict[tuple[int, int], tuple[Rows, Tensor]] = {}  # the owner is kept so that its id stays its own
        self.mixings: list[Tensor] = []  # how much samples take of rows that they share, [m, r] each

    def of(self, call: OwnedCall) -> Rows:
        key = (id(call.units), id(call.owner))
        if key not in self._known:
            self._known[key] = self._find(call.units, call.owner), call.owner
        return self._known[key][0]

    @property
    def mixed(self) -> int:
        """The largest number of rows that every sample combines."""
        return max((rows.mixing.shape[1] for rows, _ in self._known.values() if rows.mixing is not None), default=0)

    def _find(self, units: Units, owner: Tensor) -> Rows:
        mixing = units.mixing()
        if mixing is not None:
            self.mixings.append(mixing)
            index = owner.clamp(min=0).to(mixing.device)
            return _mixed_rows(mixing[:, index] * (owner >= 0).to(mixing))
        samples, device = len(self._like), self._like.device
        if len(owner) == samples and torch.equal(owner, torch.arange(samples)):
            return _IN_ORDER
        order = owner.argsort(stable=True)[int((owner < 0).sum()) :]
        counts = owner[order].bincount(minlength=samples)
        most = max(1, int(counts.max()))
        if most * samples == len(order):
            index = order.reshape(samples, most).T
            if most > 1:
                return Rows(index.to(device))
            first = int(index[0, 0])
            if torch.equal(index[0], torch.arange(first, first + samples)):
                return Rows(slice(first, first + samples))
            return Rows(index[0].to(device))
        # Samples with fewer rows than others: the missing ones are any row, with weight 0.
        place = torch.arange(most).unsqueeze(1)
        present = place < counts
        starts = counts.cumsum(0) - counts
        index = order[(starts + place).clamp(max=max(0, len(order) - 1))] if len(order) else torch.zeros_like(present)
        return Rows(index.long().to(device), present.to(device))


def _mixed_rows(mixing: Tensor) -> Rows:
    """Rows that samples mix with the weights ``mixing [m, r]``. A weight of zero adds nothing: if every sample has few
    others, only their rows are taken (a target that several predictions share, an n-step return)."""
    most = max(1, int((mixing != 0).sum(1).max()))
    if most * MIN_ROWS_PER_USED_ROW > mixing.shape[1]:
        return Rows(slice(None), mixing=mixing)
    chosen = mixing.abs().topk(most).indices
    return Rows(chosen.T, mixing.gather(1, chosen).T)


def by_sample(gradients: RowGradients, rows: Rows) -> RowGradients:
    """Gradients of rows as gradients of samples, with positions for the several rows of a sample."""
    if rows is _IN_ORDER:
        return gradients
    *first, last = gradients.tensors
    if gradients.kind is Materialized:
        if rows.mixing is not None:
            return gradients._replace(tensors=(rows.mixing.to(last) @ last,))
        each = last[rows.chosen]
        if rows.weight is not None:
            each = each * rows.weight.to(each).unsqueeze(-1)
        return gradients._replace(tensors=(each.sum(0) if each.ndim == 3 else each,))
    if rows.mixing is not None:
        # Every row becomes a position of every sample, weighted by how much the sample takes of it.
        samples = len(rows.mixing)
        weighted = last.unsqueeze(2) * rows.mixing.T.to(last).unsqueeze(-1)
        wide = [x.unsqueeze(2).expand(*x.shape[:2], samples, *x.shape[2:]).flatten(0, 1) for x in first]
        return gradients._replace(tensors=(*wide, weighted.flatten(0, 1)))
    taken = [x[:, rows.chosen] for x in gradients.tensors]
    if rows.weight is not None:
        taken[-1] = taken[-1] * rows.weight.to(taken[-1]).unsqueeze(-1)
    if isinstance(rows.chosen, Tensor) and rows.chosen.ndim == 2:
        taken = [x.flatten(0, 1) for x in taken]
    return gradients._replace(tensors=tuple(taken))
