"""A filter's gains applied to the rows of a batch, and to their gradient."""

from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.filters.batch import Batch
from rdm_solo.filters.decomposition import Spectrum
from rdm_solo.spectra.matrices import product_dtype


class Operator(NamedTuple):
    """``W = V g V^T`` for a backward: itself, or ``V^T`` (r, k) and its gains (r,) where n < k."""

    matrix: Tensor
    gain: Tensor | None
    negligible: Tensor | None


def filter_target(spectrum: Spectrum, gain: Tensor) -> Tensor:
    r"""The filtered rows of this process, :math:`U \Sigma g(\Sigma) V^\top`.

    Gains of noise are zero. Shapes: ``-> (N, k)``.

    >>> from rdm_solo.filters import decompose
    >>> spectrum = decompose(torch.diag(torch.tensor([4.0, 1.0])))
    >>> filter_target(spectrum, spectrum.sigma.rsqrt())
    tensor([[2., 0.],
            [0., 1.]])
    """
    if spectrum.dual:
        return filter_by(spectrum, _operator(spectrum, gain, spectrum.own))
    return filter_by(spectrum, _operator(spectrum, gain))


def filter_by(batch: Batch, matrix: Tensor) -> Tensor:
    """This process's rows by that matrix: its rows of an n x n one (``dual``), or a k x k one.

    Shapes: ``-> (N, k)``.
    """
    if batch.dual:
        return (_of_rows(matrix, batch) @ batch.rows).to(batch.dtype)
    return _of_rows(batch.rows @ matrix, batch).to(batch.dtype)


def filter_online(spectrum: Spectrum, gain: Tensor) -> tuple[Tensor, Operator]:
    """The values of :func:`filter_target`, and what :func:`filter_gradient` needs.

    Values come from float64 products, or from unit vectors computed there; float32 is enough for
    what multiplies the gradient.

    >>> from rdm_solo.filters import decompose
    >>> spectrum = decompose(torch.diag(torch.tensor([4.0, 1.0])))
    >>> out, operator = filter_online(spectrum, torch.tensor([2.0, 2.0]))
    >>> out
    tensor([[8., 0.],
            [0., 2.]])
    """
    kept = torch.float64 if spectrum.dtype == torch.float64 else torch.float32
    if spectrum.dual:
        work = product_dtype(kept)
        gain = _lost(spectrum, gain)
        right = ((spectrum.vectors / spectrum.sigma).mT @ spectrum.rows).to(work)
        left = _of_rows((spectrum.vectors * (spectrum.sigma * gain))[spectrum.own], spectrum)
        with torch.autocast(right.device.type, enabled=False):
            out = (left.to(work) @ right).to(spectrum.dtype)
        return out, Operator(right.to(kept), gain.to(kept), spectrum.negligible)
    W = _operator(spectrum, gain)
    return filter_by(spectrum, W), Operator(W.to(kept), None, spectrum.negligible)


def filter_gradient(grad: Tensor, operator: Operator) -> Tensor:
    r"""The gradient ``G W`` of ``x W`` with ``W = V g(Sigma) V^T`` held constant (Algorithm 2).

    W is symmetric, so this is the forward-mode derivative, too.
    Shapes: ``(N, k) -> (N, k)``, in the gradient's dtype.

    >>> from rdm_solo.filters import decompose
    >>> spectrum = decompose(torch.diag(torch.tensor([4.0, 1.0])))
    >>> _, operator = filter_online(spectrum, torch.tensor([2.0, 2.0]))
    >>> filter_gradient(torch.ones(2, 2), operator)
    tensor([[2., 2.],
            [2., 2.]])
    """
    matrix, gain, negligible = operator
    work = product_dtype(matrix.dtype)
    matrix = matrix.to(work)
    with torch.autocast(grad.device.type, enabled=False):
        wide = grad.to(work)
        if gain is not None:
            wide = wide @ matrix.mT
        if negligible is not None:
            wide = wide.masked_fill(negligible, 0.0)
        back = wide @ matrix if gain is None else (wide * gain.to(work)) @ matrix
    return back.to(grad.dtype)


def _of_rows(x: Tensor, batch: Batch) -> Tensor:
    """In place: zeros for rows that have no direction."""
    return x if batch.negligible is None else x.mul_((~batch.negligible).to(x))


def _lost(spectrum: Spectrum, gain: Tensor) -> Tensor:
    """The gains, NaN where no row of the batch is finite, so that the loss is NaN as well."""
    if spectrum.negligible is None:
        return gain
    return torch.where(spectrum.broken_rows == spectrum.n, torch.nan, gain)


def _operator(spectrum: Spectrum, gain: Tensor, rows: slice = slice(None)) -> Tensor:
    """Those rows of ``U g U^T`` (n x n) or of ``W = V g V^T`` (k x k)."""
    return (spectrum.vectors[rows] * _lost(spectrum, gain)) @ spectrum.vectors.mT
