"""A filter's mathematics as pure functions: a batch's spectrum, its gains, their application.

``decompose`` finds the singular values of all processes' rows, ``gains`` evaluates ``g`` on them,
and ``filter_target`` or ``filter_online`` applies them; ``filter_gradient`` is the online backward.
:class:`rdm_solo.filters.SpectralFilter` is a module over these five.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.distributed import (
    gather_equal,
    largest_over_processes,
    rank,
    sum_over_processes,
    world_size,
)
from rdm_solo.filters.functions import label, real_values

# float64 numbers beyond this count as infinite, and those below its inverse as zero.
LARGEST = 2.0**960
# The largest gain, so that W and the gradients that it multiplies stay in range.
STEEPEST = {torch.float64: 2.0**960, torch.float32: 1e32}


def relative_cut(dtype: torch.dtype, n: int, k: int) -> float:
    """The share of the largest singular value below which a direction is rounding noise.

    ``eps * sqrt(max(n, k))`` for float32 and float64: above the null direction that a batch norm
    leaves (1 to 12 eps), below the signal of steep spectra. float16 and bfloat16 features are
    rounded themselves, which lifts the null direction to at most 0.29 eps (of the half type), so
    the cut lies at ``eps / 2``. float64 rows that several processes do not gather (more rows than
    columns) are cut as float32 is.

    Rows are another matter: see :func:`decompose`.

    >>> f"{relative_cut(torch.float32, 256, 2048):.1e}"
    '5.4e-06'
    """
    eps = torch.finfo(dtype).eps
    if dtype in (torch.float16, torch.bfloat16):
        return eps / 2
    return eps * math.sqrt(max(n, k))


@dataclass(frozen=True)
class Spectrum:
    """The spectrum of all processes' rows ``(n, k)`` without its rounding noise; float64.

    With more directions than rows (``dual``) ``vectors`` are left singular vectors ``(n, r)`` and
    ``rows`` those of all processes; otherwise right ones ``(k, r)`` and this process's rows.
    """

    n: int
    k: int
    dual: bool
    dtype: torch.dtype  # of the batch, and of what is handed back
    sigma: Tensor  # (r,) singular values, ascending
    vectors: Tensor
    rows: Tensor
    own: slice  # this process's part of rows
    negligible: Tensor | None  # (N, 1): this process's rows that have no direction; None if none
    negligible_rows: int  # how many rows, broken ones among them
    broken_rows: int  # rows with NaN or infinity, which count as zero


class Operator(NamedTuple):
    """``W = V g V^T`` for a backward: itself, or ``V^T`` (r, k) and its gains (r,) where n < k."""

    matrix: Tensor
    gain: Tensor | None
    negligible: Tensor | None


def decompose(x: Tensor) -> Spectrum:
    r"""The singular values and vectors of all processes' rows, :math:`X = U \Sigma V^\top`.

    Directions with ``sigma <= relative_cut(...) * max(sigma)`` are left out. A row without a
    direction is one shorter than ``relative_cut(float32, n, k)`` times the rows' root mean square
    (float64: its own cut), since normalising it would multiply a gradient by the inverse. That
    bound has nothing to do with half precision: a row of any length is rounded to the same share of
    itself, and loses as much (measured on bfloat16 and float16 rows down to 1e-6 of the largest
    singular value). Nor does it grow with the batch, as the largest singular value does.

    Every process calls this with an equal share of the rows. The smaller of the n x n and k x k
    Gram matrices is decomposed in float64, because a Gram matrix squares the condition number;
    float64 input is scaled before it is squared, and keeps its digits through an SVD. The host
    reads a few numbers off the device, around a decomposition that waits for the device itself.

    Shapes: ``(N, k)`` of this process.

    >>> decompose(torch.diag(torch.tensor([3.0, 1e-9, 2.0]))).sigma
    tensor([2., 3.], dtype=torch.float64)
    """
    n, k = len(x) * world_size(), x.shape[1]
    dual = n < k
    # 2-byte features cross the wire as they are: everything is widened on arrival.
    rows = (gather_equal(x) if dual else x).detach().double()
    start = rank() * len(x) if dual else 0
    own = slice(start, start + len(x))

    scale = 1.0
    if x.dtype == torch.float64:
        size = rows.abs()
        rows = torch.where(size < 1 / LARGEST, 0.0, torch.where(size <= LARGEST, rows, torch.nan))
        scale = _power_of_two(rows)
    scaled = rows / scale if scale != 1 else rows
    broken_rows, gram = 0, _gram(scaled, dual)
    total = float(gram.diagonal().sum())
    if not math.isfinite(total):  # on all processes alike
        finite = rows.isfinite().all(dim=1, keepdim=True)
        broken = (~finite).sum()
        broken_rows = int(broken if dual else sum_over_processes(broken))
        rows, scaled = torch.where(finite, rows, 0.0), torch.where(finite, scaled, 0.0)
        gram = _gram(scaled, dual)
        total = float(gram.diagonal().sum())
    digits = x.dtype
    if digits == torch.float64 and (dual or world_size() == 1):
        u, sigma, vh = torch.linalg.svd(scaled, full_matrices=False)
        vectors, sigma = (u if dual else vh.mT).flip(1), sigma.flip(0)
    else:
        lam, vectors = torch.linalg.eigh(gram)
        sigma = lam.clamp_min_(0).sqrt_()
        if digits == torch.float64:  # a Gram matrix has lost what float64's own cut would keep
            digits = torch.float32
    cut = float(sigma[-1]) * relative_cut(digits, n, k)
    dropped = int(torch.searchsorted(sigma, cut, right=True))

    squares = gram.diagonal() if dual else scaled.square().sum(dim=1)
    wide = torch.float64 if digits == torch.float64 else torch.float32
    short = squares <= relative_cut(wide, n, k) ** 2 * total / n
    count = short.sum()
    negligible_rows = int(count if dual else sum_over_processes(count))
    return Spectrum(
        n=n,
        k=k,
        dual=dual,
        dtype=x.dtype,
        sigma=sigma[dropped:] * scale,
        vectors=vectors[:, dropped:],
        rows=rows,
        own=own,
        negligible=short[own, None] if negligible_rows else None,
        negligible_rows=negligible_rows,
        broken_rows=broken_rows,
    )


def gains(spectrum: Spectrum, function: Callable[[Tensor], Tensor]) -> Tensor:
    r"""``g(sigma)``, finite; times one constant where :math:`\max |\sigma g|` is out of range.

    Losses normalise the rows and divide the constant out again. In range is 1e-4 to 1e15, of
    float16 1e-3 to 1e3, with gains up to 1e32 (float64: 2^960). The function gets a copy of sigma
    and returns as many real numbers (:func:`rdm_solo.filters.get` says which); no gradient reaches
    what it was computed from. Shapes: ``-> (r,)``.

    >>> gains(decompose(torch.diag(torch.tensor([4.0, 1.0]))), torch.sqrt)
    tensor([1., 2.], dtype=torch.float64)
    """
    sigma = spectrum.sigma
    if not len(sigma):
        return sigma
    gain = real_values(function(sigma.clone()), sigma, label(function)).detach()
    peak, steepest = _largest(sigma * gain), _largest(gain)
    if not math.isfinite(steepest):
        raise ValueError(
            f"the filter function {label(function)!r} returned NaN or infinity for a positive "
            "singular value; it must be finite on the whole spectrum."
        )
    most = STEEPEST.get(spectrum.dtype, STEEPEST[torch.float32])
    low, high = (1e-3, 1e3) if spectrum.dtype == torch.float16 else (1e-4, 1e15)
    if steepest == 0 or (low <= peak <= high and steepest <= most):
        return gain
    # sigma * gain may leave the range of float64, where sigma / largest * gain does not.
    gain, largest = gain / steepest, float(sigma[-1])
    peak = _largest(sigma / largest * gain)
    return gain * min(1 / peak / largest, most)


def filter_target(spectrum: Spectrum, gain: Tensor) -> Tensor:
    r"""The filtered rows of this process, :math:`U \Sigma g(\Sigma) V^\top`. Shapes: ``-> (N, k)``.

    >>> spectrum = decompose(torch.diag(torch.tensor([4.0, 1.0])))
    >>> filter_target(spectrum, spectrum.sigma.rsqrt())
    tensor([[2., 0.],
            [0., 1.]])
    """
    operator = _operator(spectrum, gain)
    if spectrum.dual:
        return _finished(spectrum, operator[spectrum.own] @ spectrum.rows)
    return _finished(spectrum, spectrum.rows @ operator)


def filter_online(spectrum: Spectrum, gain: Tensor) -> tuple[Tensor, Operator]:
    """The values of :func:`filter_target`, and what :func:`filter_gradient` needs.

    Values come from float64 products, or from unit vectors computed there; float32 is enough for
    what multiplies the gradient.

    >>> out, operator = filter_online(decompose(torch.eye(2)), torch.tensor([2.0, 2.0]))
    >>> out
    tensor([[2., 0.],
            [0., 2.]])
    """
    kept = torch.float64 if spectrum.dtype == torch.float64 else torch.float32
    if spectrum.dual:
        work = _product_dtype(kept)
        right = ((spectrum.vectors / spectrum.sigma).mT @ spectrum.rows).to(work)
        left = (spectrum.vectors * (spectrum.sigma * gain))[spectrum.own]
        with torch.autocast(right.device.type, enabled=False):
            out = _finished(spectrum, left.to(work) @ right)
        return out, Operator(right.to(kept), gain.to(kept), spectrum.negligible)
    W = _operator(spectrum, gain)
    out = _finished(spectrum, spectrum.rows @ W)
    return out, Operator(W.to(kept), None, spectrum.negligible)


def filter_gradient(grad: Tensor, operator: Operator) -> Tensor:
    r"""The gradient ``G W`` of ``x W`` with ``W = V g(Sigma) V^T`` held constant (Algorithm 2).

    W is symmetric, so this is the forward-mode derivative, too.
    Shapes: ``(N, k) -> (N, k)``, in the gradient's dtype.

    >>> _, operator = filter_online(decompose(torch.eye(2)), torch.tensor([2.0, 2.0]))
    >>> filter_gradient(torch.ones(1, 2), operator)
    tensor([[2., 2.]])
    """
    matrix, gain, negligible = operator
    work = _product_dtype(matrix.dtype)
    matrix = matrix.to(work)
    wide = grad if negligible is None else grad.masked_fill(negligible, 0.0)
    with torch.autocast(grad.device.type, enabled=False):
        wide = wide.to(work)
        back = wide @ matrix if gain is None else ((wide @ matrix.mT) * gain.to(work)) @ matrix
    return back.to(grad.dtype)


def _largest(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values, math.inf))


def _product_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 where torch multiplies float32 matrices with fewer digits (TF32, bfloat16).

    ``torch.set_float32_matmul_precision`` and torch.backends can say so at any time, and for all
    threads: changing that for a product would change it for theirs.
    """
    multiply = (getattr(torch.backends, name) for name in ("mkldnn", "cuda"))
    told = [getattr(getattr(m, "matmul", None), "fp32_precision", None) for m in multiply]
    if None in told:  # torch 2.8
        told = [{"highest": "ieee"}.get(torch.get_float32_matmul_precision(), "tf32")]
    return dtype if set(told) <= {"ieee", "none"} else torch.float64


def _power_of_two(rows: Tensor) -> float:
    """The size of the largest finite number of all processes, as a power of two."""
    size = float(largest_over_processes(rows.nan_to_num(nan=0.0).abs().max()))
    return math.ldexp(1.0, math.frexp(size)[1] - 1) if size else 1.0


def _operator(spectrum: Spectrum, gain: Tensor) -> Tensor:
    """The constant matrix of the smaller side: ``U g U^T`` (n x n) or ``W`` (k x k)."""
    return (spectrum.vectors * gain) @ spectrum.vectors.mT


def _finished(spectrum: Spectrum, rows: Tensor) -> Tensor:
    if spectrum.negligible is not None:
        rows = rows.masked_fill(spectrum.negligible, 0.0)
    return rows.to(spectrum.dtype)


def _gram(rows: Tensor, dual: bool) -> Tensor:
    """Of all processes' rows: ``X X^T`` of gathered rows, or the processes' sum of ``X^T X``."""
    return rows @ rows.mT if dual else sum_over_processes(rows.mT @ rows)
