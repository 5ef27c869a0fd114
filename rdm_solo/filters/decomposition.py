"""A filter's mathematics as pure functions: a batch's spectrum, its gains, their application.

``decompose`` finds the singular values of all processes' rows, ``evaluate`` and ``rescale`` make
gains of them (``gains`` is both, and checks what it got), and ``filter_target`` or
``filter_online`` applies these; ``filter_gradient`` is the online backward.
:class:`rdm_solo.filters.SpectralFilter` is a module over them.
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
from rdm_solo.filters.functions import label, number, real_values

# float64 numbers beyond this count as infinite, and those below its inverse as zero.
LARGEST = 2.0**960
# Stands for the singular values of a batch of zeros: its inverse is in range.
SMALLEST = 1e-150
WITHOUT_FLOAT64 = {"mps"}
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


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64: Apple's do not, nor do some of Intel's.

    >>> has_float64(torch.device("cpu")), has_float64(torch.device("mps"))
    (True, False)
    """
    if device.type == "xpu":
        return bool(torch.xpu.get_device_properties(device).has_fp64)
    return device.type not in WITHOUT_FLOAT64


@dataclass(frozen=True)
class Spectrum:
    """The spectrum of all processes' rows ``(n, k)``, with its rounding noise marked; float64.

    With more directions than rows (``dual``) ``vectors`` are left singular vectors ``(n, r)`` and
    ``rows`` those of all processes; otherwise right ones ``(k, r)`` and this process's rows. On a
    CPU noise is left out. On another device all ``r = min(n, k)`` directions are there, since the
    host does not know how many of them are noise.
    """

    n: int
    k: int
    dual: bool
    dtype: torch.dtype  # of the batch, and of what is handed back
    sigma: Tensor  # (r,) singular values, ascending; in place of noise the least one above it
    kept: Tensor  # (r,) whether a direction is above rounding noise
    directions: Tensor  # (): how many are
    vectors: Tensor
    rows: Tensor
    own: slice  # this process's part of rows
    negligible: Tensor | None  # (N, 1): this process's rows that have no direction; None if none
    negligible_rows: Tensor  # (): how many of all processes, broken ones among them
    broken_rows: Tensor  # (): rows with NaN or infinity, which count as zero


class Operator(NamedTuple):
    """``W = V g V^T`` for a backward: itself, or ``V^T`` (r, k) and its gains (r,) where n < k."""

    matrix: Tensor
    gain: Tensor | None
    negligible: Tensor | None


def decompose(x: Tensor) -> Spectrum:
    r"""The singular values and vectors of all processes' rows, :math:`X = U \Sigma V^\top`.

    Directions with ``sigma <= relative_cut(...) * max(sigma)`` are not kept. A row without a
    direction is one shorter than ``relative_cut(float32, n, k)`` times the rows' root mean square
    (float64: its own cut), since normalising it would multiply a gradient by the inverse. That
    bound has nothing to do with half precision: a row of any length is rounded to the same share of
    itself, and loses as much (measured on bfloat16 and float16 rows down to 1e-6 of the largest
    singular value). Nor does it grow with the batch, as the largest singular value does.

    Every process calls this with an equal share of the rows. The smaller of the n x n and k x k
    Gram matrices is decomposed in float64, because a Gram matrix squares the condition number;
    float64 input is scaled before it is squared, and keeps its digits through an SVD. What is left
    out is masked and counted on the device, so that the host waits for it in ``eigh`` (or ``svd``)
    alone, which looks for an error of its own.

    Shapes: ``(N, k)`` of this process.

    >>> spectrum = decompose(torch.diag(torch.tensor([3.0, 1e-9, 2.0])))
    >>> spectrum.sigma[spectrum.kept]
    tensor([2., 3.], dtype=torch.float64)
    """
    n, k = len(x) * world_size(), x.shape[1]
    dual = n < k
    # 2-byte features cross the wire as they are: everything is widened on arrival.
    rows = (gather_equal(x) if dual else x).detach().double()
    start = rank() * len(x) if dual else 0
    own = slice(start, start + len(x))
    exact = x.dtype == torch.float64
    by_gram = not exact or not (dual or world_size() == 1)

    scale: Tensor | float = 1.0
    scaled = rows
    if exact:
        rows, scale = _in_range(rows)
        scaled = rows / scale
    if dual and by_gram:
        gram = scaled @ scaled.mT
        squares = gram.diagonal()
    else:
        squares = scaled.square().sum(dim=1)
    total = number(squares.sum())
    broken_rows = torch.zeros((), dtype=torch.long, device=x.device)
    if (total < math.inf) is not True:  # a device does what may be needless: it is not asked
        broken = ~squares.isfinite()
        broken_rows = broken.sum()
        rows = _without(rows, broken)
        scaled = _without(scaled, broken) if exact else rows
        # Products of a broken row are NaN or infinity, and no others are.
        squares = _finite(gram).diagonal() if dual and by_gram else _finite(squares)
        total = number(squares.sum())
    if by_gram:
        if not dual:
            gram = sum_over_processes(scaled.mT @ scaled)
            total = number(gram.diagonal().sum())
        lam, vectors = torch.linalg.eigh(gram)
        sigma = lam.clamp_min_(0).sqrt_()
    else:
        u, sigma, vh = torch.linalg.svd(scaled, full_matrices=False)
        vectors, sigma = (u if dual else vh.mT).flip(1), sigma.flip(0)
    # A Gram matrix has lost what float64's own cut would keep.
    digits = torch.float32 if exact and by_gram else x.dtype
    largest = sigma[-1]
    kept = sigma > number(largest) * relative_cut(digits, n, k)
    directions = kept.sum()
    count = number(directions)
    if isinstance(count, int):  # as on a CPU
        noise = len(sigma) - count
        sigma, vectors, kept = sigma[noise:], vectors[:, noise:], kept[noise:]
    else:
        sigma = sigma.clamp_min(torch.where(kept, sigma, largest).amin().clamp_min(SMALLEST))

    wide = torch.float64 if digits == torch.float64 else torch.float32
    short = squares <= total * (relative_cut(wide, n, k) ** 2 / n)
    negligible_rows = short.sum()
    none = (number(negligible_rows) == 0) is True
    if not dual and world_size() > 1:
        counts = sum_over_processes(torch.stack([broken_rows, negligible_rows]))
        broken_rows, negligible_rows = counts.unbind()
    return Spectrum(
        n=n,
        k=k,
        dual=dual,
        dtype=x.dtype,
        sigma=sigma * scale if exact else sigma,
        kept=kept,
        directions=directions,
        vectors=vectors,
        rows=rows,
        own=own,
        negligible=None if none else short[own, None],
        negligible_rows=negligible_rows,
        broken_rows=broken_rows,
    )


def evaluate(spectrum: Spectrum, function: Callable[[Tensor], Tensor]) -> Tensor:
    r"""``g(sigma)`` as the function returns it, with no gradient to what it was computed from; zero
    for rounding noise.

    On a device, a function that :func:`rdm_solo.filters.get` has found to look at each value by
    itself gets all of sigma. Any other gets the values above noise alone, as on a CPU; the host
    then waits until the device knows how many they are. Shapes: ``-> (r,)``.
    """
    sigma, kept = spectrum.sigma, spectrum.kept
    if sigma.device.type == "cpu":
        if not len(sigma):
            return sigma
        return real_values(function(sigma.clone()), sigma, label(function)).detach()
    if getattr(function, "of_each", False):
        gain = real_values(function(sigma.clone()), sigma, label(function)).detach()
        return torch.where(kept, gain, 0.0)
    own = sigma[kept]
    gain = torch.zeros_like(sigma)
    if len(own):
        gain[kept] = real_values(function(own.clone()), own, label(function)).detach()
    return gain


def rescale(spectrum: Spectrum, gain: Tensor) -> Tensor:
    r"""The gains, times one constant where :math:`\max |\sigma g|` is out of range.

    Losses normalise the rows and divide the constant out again. In range is 1e-4 to 1e15, of
    float16 1e-3 to 1e3, with gains up to 1e32 (float64: 2^960). Shapes: ``(r,) -> (r,)``.

    >>> spectrum = decompose(torch.diag(torch.tensor([4.0, 1.0])))
    >>> rescale(spectrum, torch.full((2,), 1e-300, dtype=torch.float64))
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    sigma = spectrum.sigma
    if not len(sigma):
        return gain
    peak, steepest = number(_largest(sigma * gain)), number(_largest(gain))
    most = STEEPEST.get(spectrum.dtype, STEEPEST[torch.float32])
    low, high = (1e-3, 1e3) if spectrum.dtype == torch.float16 else (1e-4, 1e15)
    fits = (low <= peak) & (peak <= high) & (steepest <= most)
    if fits is True:
        return gain
    fits = torch.as_tensor(fits, device=gain.device)
    # sigma * gain may leave the range of float64, where sigma / largest * gain does not.
    size, largest = _largest(gain), sigma[-1]
    small = gain / torch.where(size == 0, 1.0, size)
    peak = _largest(sigma / largest * small)
    return torch.where(fits, gain, small * (1 / peak / largest).clamp_max(most))


def gains(spectrum: Spectrum, function: Callable[[Tensor], Tensor]) -> Tensor:
    r"""``g(sigma)``, finite, in the range of :func:`rescale`; the host waits for the device.

    The function gets a copy of sigma and returns as many real numbers
    (:func:`rdm_solo.filters.get` says which). Shapes: ``-> (r,)``.

    >>> gains(decompose(torch.diag(torch.tensor([4.0, 1.0]))), torch.sqrt)
    tensor([1., 2.], dtype=torch.float64)
    """
    gain = evaluate(spectrum, function)
    if not gain.isfinite().all():
        raise ValueError(not_finite(function))
    return rescale(spectrum, gain)


def not_finite(function: Callable[[Tensor], Tensor]) -> str:
    """What to say of a function that returned NaN or infinity."""
    return (
        f"the filter function {label(function)!r} returned NaN or infinity for a positive "
        "singular value; it must be finite on the whole spectrum."
    )


def filter_target(spectrum: Spectrum, gain: Tensor) -> Tensor:
    r"""The filtered rows of this process, :math:`U \Sigma g(\Sigma) V^\top`.

    Gains of noise are zero. Shapes: ``-> (N, k)``.

    >>> spectrum = decompose(torch.diag(torch.tensor([4.0, 1.0])))
    >>> filter_target(spectrum, spectrum.sigma.rsqrt())
    tensor([[2., 0.],
            [0., 1.]])
    """
    operator = _operator(spectrum, gain)
    if spectrum.dual:
        return (_of_rows(operator[spectrum.own], spectrum) @ spectrum.rows).to(spectrum.dtype)
    return _of_rows(spectrum.rows @ operator, spectrum).to(spectrum.dtype)


def filter_online(spectrum: Spectrum, gain: Tensor) -> tuple[Tensor, Operator]:
    """The values of :func:`filter_target`, and what :func:`filter_gradient` needs.

    Values come from float64 products, or from unit vectors computed there; float32 is enough for
    what multiplies the gradient.

    >>> spectrum = decompose(torch.diag(torch.tensor([4.0, 1.0])))
    >>> out, operator = filter_online(spectrum, torch.tensor([2.0, 2.0]))
    >>> out
    tensor([[8., 0.],
            [0., 2.]])
    """
    kept = torch.float64 if spectrum.dtype == torch.float64 else torch.float32
    if spectrum.dual:
        work = _product_dtype(kept)
        gain = _lost(spectrum, gain)
        right = ((spectrum.vectors / spectrum.sigma).mT @ spectrum.rows).to(work)
        left = _of_rows((spectrum.vectors * (spectrum.sigma * gain))[spectrum.own], spectrum)
        with torch.autocast(right.device.type, enabled=False):
            out = (left.to(work) @ right).to(spectrum.dtype)
        return out, Operator(right.to(kept), gain.to(kept), spectrum.negligible)
    W = _operator(spectrum, gain)
    out = _of_rows(spectrum.rows @ W, spectrum).to(spectrum.dtype)
    return out, Operator(W.to(kept), None, spectrum.negligible)


def filter_gradient(grad: Tensor, operator: Operator) -> Tensor:
    r"""The gradient ``G W`` of ``x W`` with ``W = V g(Sigma) V^T`` held constant (Algorithm 2).

    W is symmetric, so this is the forward-mode derivative, too.
    Shapes: ``(N, k) -> (N, k)``, in the gradient's dtype.

    >>> spectrum = decompose(torch.diag(torch.tensor([4.0, 1.0])))
    >>> _, operator = filter_online(spectrum, torch.tensor([2.0, 2.0]))
    >>> filter_gradient(torch.ones(2, 2), operator)
    tensor([[2., 2.],
            [2., 2.]])
    """
    matrix, gain, negligible = operator
    work = _product_dtype(matrix.dtype)
    matrix = matrix.to(work)
    with torch.autocast(grad.device.type, enabled=False):
        wide = grad.to(work)
        if gain is not None:
            wide = wide @ matrix.mT
        if negligible is not None:
            wide = wide.masked_fill(negligible, 0.0)
        back = wide @ matrix if gain is None else (wide * gain.to(work)) @ matrix
    return back.to(grad.dtype)


def _largest(values: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(values, math.inf)
    return size


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


def _in_range(rows: Tensor) -> tuple[Tensor, Tensor]:
    """float64 rows, numbers too large as NaN and too small as zero, and the size of the largest
    finite one of all processes, as a power of two."""
    size = rows.abs()
    rows = torch.where(size < 1 / LARGEST, 0.0, torch.where(size <= LARGEST, rows, torch.nan))
    largest = largest_over_processes(rows.nan_to_num(nan=0.0).abs().max())
    digits, _ = torch.frexp(largest)  # from 1/2 to 1; a power of two remains without them
    return rows, torch.where(largest > 0, largest / (2 * digits), 1.0)


def _finite(values: Tensor) -> Tensor:
    """In place: zero where there was NaN or infinity."""
    return values.nan_to_num_(0.0, 0.0, 0.0)


def _without(rows: Tensor, broken: Tensor) -> Tensor:
    """In place: zeros for those rows; a CPU takes half of the time that ``masked_fill_`` takes."""
    return _finite(rows).mul_((~broken[:, None]).to(rows))


def _of_rows(x: Tensor, spectrum: Spectrum) -> Tensor:
    """In place: zeros for rows that have no direction."""
    return x if spectrum.negligible is None else x.mul_((~spectrum.negligible).to(x))


def _lost(spectrum: Spectrum, gain: Tensor) -> Tensor:
    """The gains, NaN where no row of the batch is finite, so that the loss is NaN as well."""
    if spectrum.negligible is None:
        return gain
    return torch.where(spectrum.broken_rows == spectrum.n, torch.nan, gain)


def _operator(spectrum: Spectrum, gain: Tensor) -> Tensor:
    """The constant matrix of the smaller side: ``U g U^T`` (n x n) or ``W`` (k x k)."""
    return (spectrum.vectors * _lost(spectrum, gain)) @ spectrum.vectors.mT
