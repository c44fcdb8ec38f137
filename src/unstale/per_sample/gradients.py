"""Per-sample gradients of a batch, and the algebra that corrections do with them.

Every sample ``k`` has the gradient of its prediction, ``v_k``, and of its residual, ``u_k`` (target included), over a
flat parameter vector of length ``n``. They are stored in pieces, each over a span of that vector in the form that takes
the least room; no piece materializes more than it must.

A target network that is followed moves too, but is not optimized. Its ``p`` parameters come after the ``n`` optimized
ones in a joint vector: ``u_k`` has ``n + p`` entries, ``v_k`` has ``n``.

Index letters: ``k`` samples, ``t`` positions within a sample (calls of a layer, pixels of a convolution), ``o`` and
``i`` outputs and inputs of a layer, ``p`` parameters of a span. Leading dimensions ``...`` are a batch of runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..momentum import decay_, per_run

# Temporaries of materialized gradients are cut into chunks of at most this many entries.
MAX_CHUNK_ENTRIES = 1 << 24


@dataclass(frozen=True)
class SampleGradients(ABC):
    """Per-sample gradients over one span of the parameters. Each of ``tensors`` has one sample axis.

    ``head`` is the number of positions that belong to the prediction; the rest belong to the target.
    """

    span: slice
    tensors: tuple[Tensor, ...]
    head: int = 0

    kind: ClassVar[str]
    sample_axes: ClassVar[tuple[int, ...]]

    @abstractmethod
    def shift(self, displacement: Tensor) -> Tensor:
        """``u_k · d`` for every sample: the change of its residual under a displacement."""

    @abstractmethod
    def gradient(self, weight: Tensor, out: Tensor) -> None:
        """``out ← Σ_k w_k v_k``."""

    def add_diagonal(self, weight: Tensor, decay: float, out: Tensor) -> None:
        """``out ← decay · out + Σ_k w_k u_k ∘ v_k``, the diagonal of a Taylor term."""
        out.mul_(decay)
        for v, u, c in self._chunks(weight):
            out.add_((c.unsqueeze(-1) * u * v).sum(-2))

    def squared_diagonal(self, weight: Tensor) -> Tensor:
        """``Σ_k w_k (u_k ∘ v_k)²``, TDprop's denominator."""
        return sum(((c.unsqueeze(-1) * (u * v).square()).sum(-2) for v, u, c in self._chunks(weight)), torch.zeros(()))

    @abstractmethod
    def matrices(self) -> tuple[Tensor, Tensor]:
        """``v`` and ``u``, ``[..., k, p]`` each."""

    @property
    def positions(self) -> tuple[int, int]:
        """How many positions the prediction has, and how many the target. Materialized gradients have none."""
        return (0, 0)

    def with_positions(self, head: int, tail: int) -> SampleGradients:
        """The same gradients, padded with positions of zeros to a common shape."""
        return self

    def as_dict(self) -> dict[str, Any]:
        """This piece in plain containers, as it is saved in a state."""
        return dict(
            kind=self.kind, start=self.span.start, stop=self.span.stop, head=self.head, tensors=list(self.tensors)
        )

    @staticmethod
    def from_dict(plain: dict[str, Any]) -> SampleGradients:
        return KINDS[plain["kind"]](slice(plain["start"], plain["stop"]), tuple(plain["tensors"]), plain["head"])

    def with_tensors(self, tensors: Sequence[Tensor]) -> SampleGradients:
        return replace(self, tensors=tuple(tensors))

    def with_samples(self, samples: int) -> SampleGradients:
        """The same gradients, padded with samples of zeros."""
        return self.with_tensors([_padded(t, axis, samples - t.shape[axis]) for t, axis in self.with_axes()])

    @abstractmethod
    def of_residual(self) -> SampleGradients:
        """The gradients of the residual alone: a piece whose ``v`` is this one's ``u``."""

    def materialized(self) -> SampleGradients:
        return Materialized(self.span, self.matrices())

    def of_followed(self) -> SampleGradients:
        """The same ``u`` without ``v``, for parameters that move but are not optimized."""
        return ResidualOnly(self.span, (self.matrices()[1],))

    def with_axes(self) -> Iterator[tuple[Tensor, int]]:
        """Each tensor with its sample axis, counted from the front."""
        for tensor, axis in zip(self.tensors, self.sample_axes, strict=True):
            yield tensor, tensor.ndim + axis

    def _chunks(self, weight: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """``v``, ``u`` and the weights of a few samples at a time."""
        samples, width = weight.shape[-1], self.span.stop - self.span.start
        size = max(1, MAX_CHUNK_ENTRIES // max(1, width))
        for start in range(0, samples, size):
            length = min(size, samples - start)
            part = self.with_tensors([t.narrow(axis, start, length) for t, axis in self.with_axes()])
            yield *part.matrices(), weight.narrow(-1, start, length)


class Materialized(SampleGradients):
    """``v`` and ``u`` as matrices, ``[..., k, p]`` each."""

    kind = "matrix"
    sample_axes = (-2, -2)

    def shift(self, displacement: Tensor) -> Tensor:
        return (self.tensors[1] @ displacement.unsqueeze(-1)).squeeze(-1)

    def gradient(self, weight: Tensor, out: Tensor) -> None:
        torch.matmul(weight.unsqueeze(-2), self.tensors[0], out=out.unsqueeze(-2))

    def add_diagonal(self, weight: Tensor, decay: float, out: Tensor) -> None:
        v, u = self.tensors
        if v.ndim > 2:
            return super().add_diagonal(weight, decay, out)
        out.addmv_((u * v).T, weight, beta=decay)

    def matrices(self) -> tuple[Tensor, Tensor]:
        v, u = self.tensors
        return v, u

    def of_residual(self) -> SampleGradients:
        return self.with_tensors([self.tensors[1]] * 2)


class ResidualOnly(SampleGradients):
    """``u`` as a matrix ``[..., k, p]``, and no ``v``: by parameters that move but are not optimized."""

    kind = "residual"
    sample_axes = (-2,)

    def shift(self, displacement: Tensor) -> Tensor:
        return (self.tensors[0] @ displacement.unsqueeze(-1)).squeeze(-1)

    def gradient(self, weight: Tensor, out: Tensor) -> None:
        out.zero_()

    def matrices(self) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(self.tensors[0]), self.tensors[0]

    def of_residual(self) -> SampleGradients:
        return Materialized(self.span, self.tensors * 2)

    def materialized(self) -> SampleGradients:
        return self

    def of_followed(self) -> SampleGradients:
        return self


class Positional(SampleGradients):
    """Gradients that are sums over positions, the axis before that of the samples; the prediction's come first."""

    @property
    def positions(self) -> tuple[int, int]:
        tensor, axis = next(self.with_axes())
        return self.head, tensor.shape[axis - 1] - self.head

    def of_residual(self) -> SampleGradients:
        return replace(self, head=sum(self.positions))

    def of_followed(self) -> SampleGradients:
        return self

    def with_positions(self, head: int, tail: int) -> SampleGradients:
        have = self.positions
        if (head, tail) == have:
            return self
        tensors = []
        for tensor, axis in self.with_axes():
            first, rest = tensor.split(have, axis - 1)
            grown = _padded(first, axis - 1, head - have[0]), _padded(rest, axis - 1, tail - have[1])
            tensors.append(torch.cat(grown, axis - 1))
        return replace(self, tensors=tuple(tensors), head=head)


class OuterProducts(Positional):
    """A weight matrix ``[o, i]`` whose gradient is a sum of outer products, ``u_k = Σ_t b_kt a_ktᵀ``.

    ``tensors`` are the inputs ``a [..., t, k, i]`` and the backpropagated outputs ``b [..., t, k, o]``. The first
    ``head`` positions make up ``v``; the rest are the target's, with their sign in ``b``.
    """

    kind = "outer"
    sample_axes = (-2, -2)

    def shift(self, displacement: Tensor) -> Tensor:
        a, b = self.tensors
        d = self._matrix(displacement)
        moved = (_rows(a) @ d.mT).mul_(_rows(b)) if b.shape[-1] <= a.shape[-1] else (_rows(b) @ d).mul_(_rows(a))
        return moved.unflatten(-2, a.shape[-3:-1]).sum((-3, -1))

    def gradient(self, weight: Tensor, out: Tensor) -> None:
        a, b = (t[..., : self.head, :, :] for t in self.tensors)
        weight = weight[..., None, :, None]
        a, b = (a, b * weight) if b.shape[-1] <= a.shape[-1] else (a * weight, b)
        torch.matmul(_rows(b).mT, _rows(a), out=self._matrix(out))

    def add_diagonal(self, weight: Tensor, decay: float, out: Tensor) -> None:
        a, b = self.tensors
        positions, outputs, inputs = a.shape[-3], b.shape[-1], a.shape[-1]
        if self.head * positions * (outputs + inputs) > 2 * outputs * inputs:
            return super().add_diagonal(weight, decay, out)
        # (Σ_t b_t a_tᵀ) ∘ (Σ_s b_s a_sᵀ) = Σ_ts (b_t ∘ b_s)(a_t ∘ a_s)ᵀ: one matrix product over pairs of positions.
        aa, bb = (x[..., : self.head, None, :, :] * x[..., None, :, :, :] for x in (a, b))
        bb = (bb * weight[..., None, None, :, None]).flatten(-4, -2)
        matrix = self._matrix(out)
        if a.ndim == 3:
            matrix.addmm_(bb.T, aa.flatten(-4, -2), beta=decay)
        else:
            matrix.mul_(decay).add_(bb.mT @ aa.flatten(-4, -2))

    def _matrix(self, flat: Tensor) -> Tensor:
        return flat.unflatten(-1, (self.tensors[1].shape[-1], self.tensors[0].shape[-1]))

    def matrices(self) -> tuple[Tensor, Tensor]:
        a, b = self.tensors
        h = self.head
        v = torch.einsum("...tko,...tki->...koi", b[..., :h, :, :], a[..., :h, :, :]).flatten(-2)
        y = torch.einsum("...tko,...tki->...koi", b[..., h:, :, :], a[..., h:, :, :]).flatten(-2)
        return v, v + y


class EmbeddingRows(Positional):
    """An embedding table ``[rows, o]``: the indices looked up, ``[t, k]``, and their gradients ``[t, k, o]``."""

    kind = "lookup"
    sample_axes = (-1, -2)

    def _rows(self) -> int:
        return (self.span.stop - self.span.start) // self.tensors[1].shape[-1]

    def shift(self, displacement: Tensor) -> Tensor:
        index, b = self.tensors
        return (self._table(displacement)[index] * b).sum((0, 2))

    def gradient(self, weight: Tensor, out: Tensor) -> None:
        index, b = (t[: self.head] for t in self.tensors)
        self._table(out.zero_()).index_add_(0, index.flatten(), (b * weight[:, None]).flatten(0, 1))

    def add_diagonal(self, weight: Tensor, decay: float, out: Tensor) -> None:
        index, b = self.tensors
        table = self._table(out.mul_(decay))
        for t in range(self.head):
            same = (index[t] == index) * weight
            table.index_add_(0, index[t], b[t] * (same.unsqueeze(-1) * b).sum(0))

    def _table(self, flat: Tensor) -> Tensor:
        return flat.unflatten(-1, (-1, self.tensors[1].shape[-1]))

    def matrices(self) -> tuple[Tensor, Tensor]:
        index, b = self.tensors
        samples = torch.arange(b.shape[1], device=b.device).expand_as(index)

        def table_of(start: int, stop: int) -> Tensor:
            table = b.new_zeros(b.shape[1], self._rows(), b.shape[2])
            where = (samples[start:stop], index[start:stop])
            return table.index_put_(where, b[start:stop], accumulate=True).flatten(1)

        v = table_of(0, self.head)
        return v, v + table_of(self.head, b.shape[0])


KINDS: dict[str, type[SampleGradients]] = {
    kind.kind: kind for kind in (Materialized, ResidualOnly, OuterProducts, EmbeddingRows)
}


@dataclass(frozen=True)
class Linearization:
    """A batch to first order: ``g = Σ_k slope_k v_k`` and ``Z = Σ_k curvature_k u_k v_kᵀ``.

    Slopes and curvatures contain the ``1/m`` of the mean. ``hessian`` is the rest of the exact Taylor term,
    ``Σ_k slope_k ∇²f_k``, if it is wanted. The last ``followed`` parameters of the pieces are those of followed
    networks, of which ``u`` alone is used.
    """

    pieces: tuple[SampleGradients, ...]
    slope: Tensor
    curvature: Tensor
    hessian: Tensor | None = None
    followed: int = 0

    @property
    def size(self) -> int:
        """The number ``n`` of optimized parameters."""
        return self.pieces[-1].span.stop - self.followed

    @property
    def own_pieces(self) -> tuple[SampleGradients, ...]:
        """Those of the optimized parameters."""
        return tuple(p for p in self.pieces if p.span.stop <= self.size) if self.followed else self.pieces

    @property
    def samples(self) -> int:
        return self.slope.shape[-1]

    @classmethod
    def of_matrices(cls, v: Tensor, u: Tensor, slope: Tensor, curvature: Tensor) -> Linearization:
        """From materialized gradients ``[..., k, n]``, possibly of a batch of runs."""
        return cls((Materialized(slice(0, v.shape[-1]), (v, u)),), slope, curvature)

    def shift(self, displacement: Tensor) -> Tensor:
        """``u_k · d`` for every sample, with ``d [..., n + p]``."""
        parts = [piece.shift(displacement[..., piece.span]) for piece in self.pieces]
        return sum(parts[1:], parts[0])

    def gradient(self, weight: Tensor) -> Tensor:
        out = weight.new_empty(*weight.shape[:-1], self.size)
        for piece in self.own_pieces:
            piece.gradient(weight, out[..., piece.span])
        return out

    def semi_gradient(self) -> Tensor:
        """``g``."""
        return self.gradient(self.slope)

    def diagonal(self) -> Tensor:
        """The diagonal of ``Z``; see :meth:`mix_diagonal`."""
        return self.mix_diagonal(self.slope.new_zeros(*self.slope.shape[:-1], self.size + self.followed), 0.0)

    def mix_diagonal(self, running: Tensor, decay: float | Tensor) -> Tensor:
        """``running ← decay · running + (1 - decay) diag Z``.

        If a copy of the parameters is followed, ``Z`` is two square matrices, and ``running`` has the diagonal of both.
        """
        weight = self.curvature * (1 - per_run(decay, self.curvature))
        if isinstance(decay, Tensor):
            decay_(running, decay)
        factor = 1.0 if isinstance(decay, Tensor) else decay
        for piece in self.own_pieces:
            piece.add_diagonal(weight, factor, running[..., piece.span])
        if self.followed:
            self._add_followed_diagonal(weight, factor, running[..., self.size :])
        if self.hessian is not None:
            diagonal = self.hessian.diagonal(dim1=-2, dim2=-1)
            running[..., : self.size].add_(diagonal * (1 - per_run(decay, diagonal)))
        return running

    def _add_followed_diagonal(self, weight: Tensor, decay: float, out: Tensor) -> None:
        """``out ← decay · out + Σ_k w_k u_k ∘ v_k``, with ``u_k`` by a copy of the parameters that ``v_k`` is by."""
        size, out = self.size, out.mul_(decay)
        copies = [
            replace(p, span=slice(p.span.start - size, p.span.stop - size)) for p in self.pieces if p.span.start >= size
        ]
        cuts = sorted({piece.span.stop for piece in (*self.own_pieces, *copies)})
        for own, copy in zip(_cut(self.own_pieces, cuts), _cut(copies, cuts), strict=True):
            for (v, _, c), (_, u, _) in zip(own._chunks(weight), copy._chunks(weight), strict=True):
                out[..., own.span].add_((c.unsqueeze(-1) * u * v).sum(-2))

    def squared_diagonal(self) -> Tensor:
        """The mean over samples of the squared diagonal of each sample's own Taylor term."""
        weight = self.curvature.square() * self.samples
        return _joined([piece.squared_diagonal(weight) for piece in self.own_pieces])

    def matrices(self) -> tuple[Tensor, Tensor]:
        """``v [..., k, n]`` and ``u [..., k, n + p]``."""
        v, u = zip(*(piece.matrices() for piece in self.pieces), strict=True)
        return _joined(v[: len(self.own_pieces)]), _joined(u)

    def select(self, rows: Tensor) -> Linearization:
        """Some of the samples, by their indices. Their slopes and curvatures keep the ``1/m`` of the whole batch."""
        pieces = tuple(
            piece.with_tensors([t.index_select(axis, rows) for t, axis in piece.with_axes()]) for piece in self.pieces
        )
        slope, curvature = (x.index_select(-1, rows) for x in (self.slope, self.curvature))
        return Linearization(pieces, slope, curvature, followed=self.followed)

    def scaled(self, factor: Tensor | float) -> Linearization:
        """The same batch with its loss multiplied by ``factor``."""
        hessian = None if self.hessian is None else self.hessian * factor
        return replace(self, slope=self.slope * factor, curvature=self.curvature * factor, hessian=hessian)


@dataclass(frozen=True)
class SummedGradient:
    """The gradient of a batch, without its samples."""

    total: Tensor

    def semi_gradient(self) -> Tensor:
        return self.total

    def scaled(self, factor: Tensor | float) -> SummedGradient:
        return SummedGradient(self.total * factor)


Batch = Linearization | SummedGradient


def aligned(one: SampleGradients, other: SampleGradients) -> tuple[SampleGradients, SampleGradients]:
    """Two pieces over one span, converted to the same kind and number of positions."""
    if one.kind != other.kind:
        if _is_empty(one):
            one = _nothing_like(other, one)
        elif _is_empty(other):
            other = _nothing_like(one, other)
        elif ResidualOnly.kind in (one.kind, other.kind):
            return one.of_followed(), other.of_followed()
        else:
            return one.materialized(), other.materialized()
    head = max(one.positions[0], other.positions[0])
    tail = max(one.positions[1], other.positions[1])
    return one.with_positions(head, tail), other.with_positions(head, tail)


def _is_empty(piece: SampleGradients) -> bool:
    """Whether a piece has no positions: the batch does not use these parameters."""
    return isinstance(piece, Positional) and sum(piece.positions) == 0


def _nothing_like(piece: SampleGradients, empty: SampleGradients) -> SampleGradients:
    """Zero gradients in the form of ``piece``, for the samples of ``empty``."""
    tensor, axis = next(empty.with_axes())
    zeros = [_zeros(t, axis_of_piece, tensor.shape[axis]) for t, axis_of_piece in piece.with_axes()]
    return piece.with_tensors(zeros)


def _zeros(x: Tensor, axis: int, length: int) -> Tensor:
    shape = list(x.shape)
    shape[axis] = length
    return x.new_zeros(shape)


def split_at(pieces: Sequence[SampleGradients], size: int) -> tuple[SampleGradients, ...]:
    """Pieces over a joint vector, cut after ``size`` entries; beyond, they have ``u`` alone."""
    cuts = sorted({size, *(piece.span.stop for piece in pieces)})
    return tuple(piece if piece.span.stop <= size else piece.of_followed() for piece in _cut(pieces, cuts))


def matched(
    one: Sequence[SampleGradients], other: Sequence[SampleGradients]
) -> list[tuple[SampleGradients, SampleGradients]]:
    """Pieces over the same parameters, converted to the same spans, kinds and numbers of positions."""
    cuts = sorted({piece.span.stop for piece in (*one, *other)})
    return [aligned(*pair) for pair in zip(_cut(one, cuts), _cut(other, cuts), strict=True)]


def _cut(pieces: Sequence[SampleGradients], cuts: list[int]) -> Iterator[SampleGradients]:
    for piece in pieces:
        start, stop = piece.span.start, piece.span.stop
        for end in (cut for cut in cuts if start < cut <= stop):
            if (start, end) == (piece.span.start, stop):
                yield piece
            else:  # a materialized piece of several parameters
                offset = start - piece.span.start
                tensors = tuple(t[..., offset : offset + end - start] for t in piece.tensors)
                yield replace(piece, span=slice(start, end), tensors=tensors)
            start = end


def merged(batches: Sequence[Batch]) -> Batch:
    """The samples of several batches as one batch, for gradient accumulation."""
    first, *others = batches
    for other in others:
        if isinstance(first, SummedGradient) or isinstance(other, SummedGradient):
            first = SummedGradient(first.semi_gradient() + other.semi_gradient())
            continue
        pieces = []
        for one, two in matched(first.pieces, other.pieces):
            joined = [torch.cat([a, b], axis) for (a, axis), b in zip(one.with_axes(), two.tensors, strict=True)]
            pieces.append(one.with_tensors(joined))
        hessian = None
        if first.hessian is not None and other.hessian is not None:
            hessian = first.hessian + other.hessian
        slope = torch.cat([first.slope, other.slope], -1)
        curvature = torch.cat([first.curvature, other.curvature], -1)
        first = Linearization(tuple(pieces), slope, curvature, hessian, first.followed)
    return first


def _padded(x: Tensor, axis: int, amount: int) -> Tensor:
    """``x`` with ``amount`` zeros at the end of an axis."""
    return x if amount == 0 else torch.cat([x, _zeros(x, axis, amount)], axis)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), -1)


def _rows(x: Tensor) -> Tensor:
    return x.flatten(-3, -2)
