"""Compute a filter's gains and apply them to the rows of a batch and to their gradient."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.filters.batch import Batch, Spectrum
from rdm_solo.filters.functions import BoundFunction
from rdm_solo.ground.devices import product_dtype

# The largest gain for which W and gradients times W stay in float32's range.
LARGEST_GAIN = 1e32


def gains(spectrum: Spectrum, g: BoundFunction) -> Tensor:
    r"""Return the detached gains :math:`g(\sigma)`, with 0 for rounding noise.

    An elementwise function receives all singular values. Any other function receives those above
    noise, and selecting these synchronises with an accelerator. Shapes: ``-> (r,)``.

    >>> from rdm_solo.filters import decompose, get
    >>> gains(decompose(torch.diag(torch.tensor([4.0, 1.0]))), get(torch.sqrt))
    tensor([1., 2.], dtype=torch.float64)
    """
    sigma, kept = spectrum.sigma, spectrum.kept
    if not len(sigma):  # a CPU keeps no direction of a batch of zeros
        return sigma
    # Functions get copies, because they may change their argument.
    if g.elementwise:
        gain = g(sigma.clone(), spectrum.n).detach()
        return gain.where(kept, 0.0)
    gain = torch.zeros_like(sigma)
    signal = sigma[kept]
    if len(signal):
        gain[kept] = g(signal, spectrum.n).detach()
    return gain


def rescale(spectrum: Spectrum, gain: Tensor) -> Tensor:
    r"""Return the gains, all multiplied by one constant if :math:`\max |\sigma g|` is out of range.

    The constant cancels in a loss that normalises the rows, but not in SimSiam's ``mse`` and
    ``iso``. The range is 1e-4 to 1e15 (float16: 1e-3 to 1e3), and gains may be at most 1e32.
    Shapes: ``(r,) -> (r,)``.

    >>> from rdm_solo.filters import decompose
    >>> spectrum = decompose(torch.diag(torch.tensor([4.0, 1.0])))
    >>> rescale(spectrum, torch.full((2,), 1e-300, dtype=torch.float64))
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    if not len(gain):
        return gain
    low, high = 1e-4, 1e15
    if spectrum.dtype == torch.float16:
        low, high = 1e-3, 1e3
    peak = _largest(spectrum.sigma * gain)
    largest_gain = _largest(gain)
    fits = (low <= peak) & (peak <= high) & (largest_gain <= LARGEST_GAIN)
    # The peak becomes 1, or less where the largest gain would exceed its limit.
    divisor = torch.maximum(peak, largest_gain / LARGEST_GAIN).clamp_min(1e-300)
    return torch.where(fits, gain, gain / divisor)


class Operator(NamedTuple):
    """``W = V g V^T`` for the backward pass; ``matrix`` is W, or ``V^T`` if ``gain`` is given."""

    matrix: Tensor
    gain: Tensor | None
    negligible: Tensor | None


def filter_target(spectrum: Spectrum, gain: Tensor) -> Tensor:
    r"""Return this process's filtered rows :math:`U \Sigma g(\Sigma) V^\top`.

    Shapes: ``(r,) -> (N, k)``.

    >>> from rdm_solo.filters import decompose
    >>> spectrum = decompose(torch.diag(torch.tensor([4.0, 1.0])))
    >>> filter_target(spectrum, spectrum.sigma.rsqrt())
    tensor([[2., 0.],
            [0., 1.]])
    """
    gain = _nan_if_broken(spectrum, gain)
    if spectrum.factors is not None:
        return _from_factors(spectrum, gain, *spectrum.factors)
    left = spectrum.vectors
    if not spectrum.dual:
        return _filter_by(spectrum, (left * gain) @ left.mT)
    # With U alone, the filtered rows are U g U^T X.
    mixture = (left[spectrum.local] * gain) @ left.mT
    out = _without_negligible(mixture, spectrum) @ spectrum.rows
    return out.to(spectrum.dtype)


def _filter_by(batch: Batch, matrix: Tensor) -> Tensor:
    """Return this process's rows times a k x k matrix."""
    out = _without_negligible(batch.rows @ matrix, batch)
    return out.to(batch.dtype)


def _from_factors(spectrum: Spectrum, gain: Tensor, u: Tensor, vh: Tensor) -> Tensor:
    """Return this process's rows of a float64 batch, each in the form with the smaller error bound.

    ``U sigma g V^T`` has rounding errors of about ``eps max(sigma g)`` in every row, which is too
    much for short rows. ``x V g V^T`` has ``eps |x| max(g)``, which is too much for long rows if g
    is large on weak directions.
    """
    rows = spectrum.rows[spectrum.local]
    if not len(gain):  # a CPU keeps no direction of a batch of zeros
        return torch.zeros_like(rows)
    filtered = spectrum.sigma * gain
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    is_short = lengths * _largest(gain) <= _largest(filtered)
    by_product = (rows @ vh.mT) * gain
    by_factors = u[spectrum.local] * filtered
    left = torch.where(is_short, by_product, by_factors)
    return _without_negligible(left, spectrum) @ vh


def filter_online(spectrum: Spectrum, gain: Tensor) -> tuple[Tensor, Operator]:
    r"""Return the rows :math:`X W` of :func:`filter_target`, and W for :func:`filter_gradient`.

    W is computed in float64, and stored in float32 unless the input is float64.
    Shapes: ``(r,) -> (N, k)``.

    >>> from rdm_solo.filters import decompose
    >>> spectrum = decompose(torch.diag(torch.tensor([4.0, 1.0])))
    >>> out, operator = filter_online(spectrum, torch.tensor([2.0, 2.0]))
    >>> out
    tensor([[8., 0.],
            [0., 2.]])
    """
    gain = _nan_if_broken(spectrum, gain)
    if spectrum.factors is not None:
        _, vh = spectrum.factors
        out = _from_factors(spectrum, gain, *spectrum.factors)
        return out, Operator(vh, gain, spectrum.negligible)
    vectors, sigma = spectrum.vectors, spectrum.sigma
    if not spectrum.dual:
        W = (vectors * gain) @ vectors.mT
        out = _filter_by(spectrum, W)
        if spectrum.dtype != torch.float64:
            W = W.float()
        return out, Operator(W, None, spectrum.negligible)
    # From U alone: V^T = U^T X / sigma, and x W = U sigma g V^T.
    work = product_dtype(torch.float32)
    vh = ((vectors / sigma).mT @ spectrum.rows).to(work)
    left = (vectors * (sigma * gain))[spectrum.local]
    left = _without_negligible(left, spectrum).to(work)
    with torch.autocast(vh.device.type, enabled=False):
        out = left @ vh
    return out.to(spectrum.dtype), Operator(vh.float(), gain.float(), spectrum.negligible)


def filter_gradient(grad: Tensor, operator: Operator) -> Tensor:
    r"""Return the gradient :math:`G W` of :math:`x W` with a constant W (Algorithm 2).

    W is symmetric, so this is also the forward-mode derivative.
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
    grad_x = grad.to(work)
    if negligible is not None:
        grad_x = grad_x.masked_fill(negligible, 0.0)
    with torch.autocast(grad.device.type, enabled=False):
        if gain is not None:
            grad_x = (grad_x @ matrix.mT) * gain.to(work)
        grad_x = grad_x @ matrix
    return grad_x.to(grad.dtype)


def _without_negligible(x: Tensor, batch: Batch) -> Tensor:
    """Set negligible rows to zero, in place."""
    if batch.negligible is None:
        return x
    return x.mul_((~batch.negligible).to(x))


def _nan_if_broken(spectrum: Spectrum, gain: Tensor) -> Tensor:
    """Return the gains, or NaN if no row of the batch is finite, so that the loss is NaN."""
    if spectrum.negligible is None:
        return gain
    return torch.where(spectrum.broken_rows == spectrum.n, torch.nan, gain)


def _largest(values: Tensor) -> Tensor:
    """Return the largest absolute value."""
    size: Tensor = torch.linalg.vector_norm(values, math.inf)
    return size
