"""The spectrum of a batch: singular values and vectors of all processes' rows, noise marked."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdm_solo.distributed import (
    gather_equal,
    largest_over_processes,
    rank,
    sum_over_processes,
    world_size,
)
from rdm_solo.filters.functions import number

# float64 numbers beyond this count as infinite, and those below its inverse as zero.
LARGEST = 2.0**960
# Stands for the singular values of a batch of zeros: its inverse is in range.
SMALLEST = 1e-150
WITHOUT_FLOAT64 = {"mps"}


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
    float64 input is scaled before it is squared, and keeps its digits through an SVD. Each process
    makes its part of that matrix, and decomposes the whole of it. What is left out is masked and
    counted on the device, so that the host waits for it in ``eigh`` (or ``svd``) alone, which looks
    for an error of its own.

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
        gram = gather_equal(scaled[own] @ scaled.mT)
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
