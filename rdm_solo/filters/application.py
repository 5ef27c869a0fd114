"""Compute a filter's gains and apply them to the rows of a batch and to their gradient."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.filters.batch import Batch, Spectrum
from rdm_solo.filters.functions import BoundFunction
from rdm_solo.ground.devices import item_if_cpu, product_dtype

# The largest gain for which W and gradients times W stay in range.
LARGEST_GAIN = {torch.float64: 2.0**960, torch.float32: 1e32}


def gains(spectrum: Spectrum, g: BoundFunction) -> Tensor:
    r"""Return the detached gains :math:`g(\sigma)`, with 0 for rounding noise.

    On an accelerator, an elementwise function receives all singular values. Any other function
    receives those above noise, and selecting these synchronises. Shapes: ``-> (r,)``.

    >>> from rdm_solo.filters import decompose, get
    >>> gains(decompose(torch.diag(torch.tensor([4.0, 1.0]))), get(torch.sqrt))
    tensor([1., 2.], dtype=torch.float64)
    """
    sigma, kept = spectrum.sigma, spectrum.kept
    if sigma.device.type == "cpu":
        return g(sigma.clone(), spectrum.n).detach() if len(sigma) else sigma
    if g.elementwise:
        return torch.where(kept, g(sigma.clone(), spectrum.n).detach(), 0.0)
    gain, signal = torch.zeros_like(sigma), sigma[kept]
    if len(signal):
        gain[kept] = g(signal.clone(), spectrum.n).detach()
    return gain


def rescale(spectrum: Spectrum, gain: Tensor) -> Tensor:
    r"""Return the gains, all multiplied by one constant if :math:`\max |\sigma g|` is out of range.

    The constant cancels in a loss that normalises the rows, but not in SimSiam's ``mse`` and
    ``iso``. The range is 1e-4 to 1e15 (float16: 1e-3 to 1e3), and gains may be at most 1e32
    (float64: 2^960). Shapes: ``(r,) -> (r,)``.

    >>> from rdm_solo.filters import decompose
    >>> spectrum = decompose(torch.diag(torch.tensor([4.0, 1.0])))
    >>> rescale(spectrum, torch.full((2,), 1e-300, dtype=torch.float64))
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    sigma = spectrum.sigma
    if not len(sigma):
        return gain
    peak, largest_gain = item_if_cpu(_largest(sigma * gain)), item_if_cpu(_largest(gain))
    limit = LARGEST_GAIN.get(spectrum.dtype, LARGEST_GAIN[torch.float32])
    low, high = (1e-3, 1e3) if spectrum.dtype == torch.float16 else (1e-4, 1e15)
    fits = (low <= peak) & (peak <= high) & (largest_gain <= limit)
    if fits is True:
        return gain
    fits = torch.as_tensor(fits, device=gain.device)
    # sigma * gain may leave float64's range; sigma / largest * gain does not.
    size, largest = _largest(gain), sigma[-1]
    small = gain / torch.where(size == 0, 1.0, size)
    peak = _largest(sigma / largest * small)
    return torch.where(fits, gain, small * (1 / peak / largest).clamp_max(limit))


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
    if spectrum.factors is not None:
        return _from_factors(spectrum, gain)
    if spectrum.dual:
        matrix = _operator(spectrum, gain, spectrum.local)
        return (_without_negligible(matrix, spectrum) @ spectrum.rows).to(spectrum.dtype)
    return _filter_by(spectrum, _operator(spectrum, gain))


def _filter_by(batch: Batch, matrix: Tensor) -> Tensor:
    """Return this process's rows times a k x k matrix."""
    return _without_negligible(batch.rows @ matrix, batch).to(batch.dtype)


def _from_factors(spectrum: Spectrum, gain: Tensor) -> Tensor:
    """Return this process's rows of a float64 batch, each in the form with the smaller error bound.

    ``U sigma g V^T`` has rounding errors of about ``eps max(sigma g)`` in every row, which is too
    much for short rows. ``x V g V^T`` has ``eps |x| max(g)``, which is too much for long rows if g
    is large on weak directions.
    """
    assert spectrum.factors is not None
    u, vh = spectrum.factors
    rows = spectrum.rows[spectrum.local]
    if not len(gain):  # a CPU keeps no direction of a batch of zeros
        return torch.zeros_like(rows)
    # Both sides are divided by the batch's scale and by max(g), so that nothing overflows.
    relative_gain = gain / _largest(gain).clamp_min(torch.finfo(gain.dtype).tiny)
    reach = _largest(spectrum.sigma / spectrum.scale * relative_gain)
    lengths = torch.linalg.vector_norm(rows / spectrum.scale, dim=1, keepdim=True)

    gain = _nan_if_broken(spectrum, gain)
    by_factors = u[spectrum.local] * (spectrum.sigma * gain)
    by_product = (rows @ vh.mT) * gain
    left = torch.where(lengths <= reach, by_product, by_factors)
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
    saved = torch.float64 if spectrum.dtype == torch.float64 else torch.float32
    if spectrum.factors is not None:
        _, vh = spectrum.factors
        gain = _nan_if_broken(spectrum, gain)
        return _from_factors(spectrum, gain), Operator(vh, gain, spectrum.negligible)
    if spectrum.dual:
        work = product_dtype(saved)
        gain = _nan_if_broken(spectrum, gain)
        right = ((spectrum.vectors / spectrum.sigma).mT @ spectrum.rows).to(work)
        left = (spectrum.vectors * (spectrum.sigma * gain))[spectrum.local]
        left = _without_negligible(left, spectrum)
        with torch.autocast(right.device.type, enabled=False):
            out = (left.to(work) @ right).to(spectrum.dtype)
        return out, Operator(right.to(saved), gain.to(saved), spectrum.negligible)
    W = _operator(spectrum, gain)
    return _filter_by(spectrum, W), Operator(W.to(saved), None, spectrum.negligible)


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
    with torch.autocast(grad.device.type, enabled=False):
        wide = grad.to(work)
        if gain is not None:
            wide = wide @ matrix.mT
        if negligible is not None:
            wide = wide.masked_fill(negligible, 0.0)
        back = wide @ matrix if gain is None else (wide * gain.to(work)) @ matrix
    return back.to(grad.dtype)


def _without_negligible(x: Tensor, batch: Batch) -> Tensor:
    """Set negligible rows to zero, in place."""
    return x if batch.negligible is None else x.mul_((~batch.negligible).to(x))


def _nan_if_broken(spectrum: Spectrum, gain: Tensor) -> Tensor:
    """Return the gains, or NaN if no row of the batch is finite, so that the loss is NaN."""
    if spectrum.negligible is None:
        return gain
    return torch.where(spectrum.broken_rows == spectrum.n, torch.nan, gain)


def _operator(spectrum: Spectrum, gain: Tensor, rows: slice = slice(None)) -> Tensor:
    """Return the given rows of ``U g U^T`` (n x n, if ``dual``) or of ``W = V g V^T`` (k x k)."""
    return (spectrum.vectors[rows] * _nan_if_broken(spectrum, gain)) @ spectrum.vectors.mT


def _largest(values: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(values, math.inf)
    return size
