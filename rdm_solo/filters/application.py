"""Compute a filter's gains and apply them to the rows of a batch and to their gradient."""

from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.filters.batch import Batch, Spectrum
from rdm_solo.filters.functions import BoundFunction
from rdm_solo.ground.devices import product_dtype

# The largest gain for which W and gradients times W stay in float32's range.
LARGEST_GAIN = 1e32


def gains(spectrum: Spectrum, g: BoundFunction) -> Tensor:
    r"""Return the gains :math:`g(\sigma)`, with 0 for rounding noise.

    A function that is not elementwise needs a spectrum without noise (``drop_noise``). If no row of
    the batch is finite, the gains are NaN, and so is the loss. Shapes: ``-> (r,)``.

    >>> from rdm_solo.filters import decompose, get
    >>> gains(decompose(torch.diag(torch.tensor([4.0, 1.0]))), get(torch.sqrt))
    tensor([1., 2.], dtype=torch.float64)
    """
    # Functions get copies, because they may change their argument.
    gain = g(spectrum.sigma.clone(), spectrum.n)
    gain = gain.where(spectrum.kept, 0.0)
    has_finite_row = spectrum.broken_rows < spectrum.n
    return gain.where(has_finite_row, torch.nan)


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
    low, high = 1e-4, 1e15
    if spectrum.dtype == torch.float16:
        low, high = 1e-3, 1e3
    peak = (spectrum.sigma * gain).abs().amax()
    largest_gain = gain.abs().amax()
    fits = (low <= peak) & (peak <= high) & (largest_gain <= LARGEST_GAIN)
    # The peak becomes 1, or less where the largest gain would exceed its limit.
    divisor = torch.maximum(peak, largest_gain / LARGEST_GAIN)
    divisor = divisor.clamp_min(1e-300)
    return torch.where(fits, gain, gain / divisor)


def filter_target(spectrum: Spectrum, gain: Tensor) -> Tensor:
    r"""Return this process's filtered rows :math:`U \Sigma g(\Sigma) V^\top`.

    Shapes: ``(r,) -> (N, k)``.

    >>> from rdm_solo.filters import decompose
    >>> spectrum = decompose(torch.diag(torch.tensor([4.0, 1.0])))
    >>> filter_target(spectrum, spectrum.sigma.rsqrt())
    tensor([[2., 0.],
            [0., 1.]])
    """
    vectors = spectrum.vectors
    if spectrum.factors is not None:
        out = _from_factors(spectrum, gain, *spectrum.factors)
    elif spectrum.dual:
        # Only U is known: the filtered rows are U g U^T X.
        mixture = (vectors[spectrum.local] * gain) @ vectors.mT
        out = mixture @ spectrum.rows
    else:
        W = (vectors * gain) @ vectors.mT
        out = spectrum.rows @ W
    return _as_result(out, spectrum)


def filter_by_root(batch: Batch, root: Tensor) -> Tensor:
    r"""Return this process's filtered rows for an inverse root of the Gram matrix.

    Shapes: ``(r, r) -> (N, k)``.

    >>> from rdm_solo.filters.batch import gather
    >>> batch, _ = gather(torch.diag(torch.tensor([4.0, 1.0])))
    >>> filter_by_root(batch, torch.diag(torch.tensor([0.5, 1.0])).double())
    tensor([[2., 0.],
            [0., 1.]])
    """
    out = root[batch.local] @ batch.rows if batch.dual else batch.rows @ root
    return out.to(batch.dtype)


class Operator(NamedTuple):
    """``W = V g V^T`` for the backward pass; ``matrix`` is W, or ``V^T`` if ``gain`` is given."""

    matrix: Tensor
    gain: Tensor | None
    negligible: Tensor | None


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
    vectors, sigma = spectrum.vectors, spectrum.sigma
    stored = torch.promote_types(spectrum.dtype, torch.float32)
    operator_gain: Tensor | None = gain.to(stored)
    if spectrum.factors is not None:
        _, matrix = spectrum.factors
        out = _from_factors(spectrum, gain, *spectrum.factors)
    elif spectrum.dual:
        # Only U is known: V^T = U^T X / sigma, and x W = U sigma g V^T.
        work = product_dtype(torch.float32)
        matrix = (vectors / sigma).mT @ spectrum.rows
        matrix = matrix.to(work)
        left = vectors * (sigma * gain)
        left = left[spectrum.local].to(work)
        with torch.autocast(left.device.type, enabled=False):
            out = left @ matrix
    else:
        matrix = (vectors * gain) @ vectors.mT
        operator_gain = None
        out = spectrum.rows @ matrix
    operator = Operator(matrix.to(stored), operator_gain, spectrum.negligible)
    return _as_result(out, spectrum), operator


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
    work = product_dtype(operator.matrix.dtype)
    matrix = operator.matrix.to(work)
    grad_x = grad.to(work)
    if operator.negligible is not None:
        grad_x = grad_x.masked_fill(operator.negligible, 0.0)
    with torch.autocast(grad.device.type, enabled=False):
        if operator.gain is not None:
            grad_x = (grad_x @ matrix.mT) * operator.gain.to(work)
        grad_x = grad_x @ matrix
    return grad_x.to(grad.dtype)


def _from_factors(spectrum: Spectrum, gain: Tensor, u: Tensor, vh: Tensor) -> Tensor:
    """Return this process's rows of a float64 batch, each in the form with the smaller error bound.

    ``U sigma g V^T`` has rounding errors of about ``eps max(sigma g)`` in every row, which is too
    much for short rows. ``x V g V^T`` has ``eps |x| max(g)``, which is too much for long rows if g
    is large on weak directions.
    """
    rows = spectrum.rows[spectrum.local]
    filtered = spectrum.sigma * gain
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    is_short = lengths * gain.abs().amax() <= filtered.abs().amax()
    by_product = (rows @ vh.mT) * gain
    by_factors = u[spectrum.local] * filtered
    left = torch.where(is_short, by_product, by_factors)
    return left @ vh


def _as_result(out: Tensor, batch: Batch) -> Tensor:
    """Set negligible rows to zero, in place, and return the rows in the input's dtype."""
    if batch.negligible is not None:
        # masked_fill_ would replace NaN, but 0 * NaN stays NaN: no row of the batch is finite.
        is_row = ~batch.negligible
        out.mul_(is_row.to(out))
    return out.to(batch.dtype)
