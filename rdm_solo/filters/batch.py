"""A batch of all processes' rows, and its singular values and vectors without rounding noise."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdm_solo.devices import item_if_cpu
from rdm_solo.distributed import gather_equal, rank, sum_over_processes, world_size

# float64 numbers beyond this count as infinite, and those below its inverse as zero.
LARGEST = 2.0**960
# The singular values of a batch of zeros: a number whose inverse is in range.
SMALLEST = 1e-150


def relative_cut(dtype: torch.dtype, n: int, k: int) -> float:
    """Return the share of the largest singular value below which a direction is rounding noise.

    That is ``eps * sqrt(max(n, k))`` for float32 and float64: above the null direction that a batch
    norm leaves (1 to 12 eps), and below the signal of steep spectra. float16 and bfloat16 features
    are rounded themselves, which lifts the null direction to at most 0.29 eps of their dtype, so
    the cut is ``eps / 2``.

    >>> f"{relative_cut(torch.float32, 256, 2048):.1e}"
    '5.4e-06'
    """
    eps = torch.finfo(dtype).eps
    if dtype in (torch.float16, torch.bfloat16):
        return eps / 2
    return eps * math.sqrt(max(n, k))


@dataclass(frozen=True)
class Batch:
    """The rows ``(n, k)`` of all processes in float64, with broken rows set to zero.

    With more columns than rows (``dual``) and for float64, ``rows`` holds the rows of all
    processes; otherwise it holds this process's own.
    """

    n: int
    k: int
    dual: bool
    dtype: torch.dtype  # of the input, and of results
    rows: Tensor
    local: slice  # this process's part of rows
    scale: Tensor | float  # the Gram matrix is that of rows / scale
    negligible: Tensor | None  # (N, 1): which of this process's rows are negligible
    negligible_rows: Tensor  # (): number on all processes, with broken rows
    broken_rows: Tensor  # (): number on all processes of rows with NaN or infinity


def gather(x: Tensor) -> tuple[Batch, Tensor | None]:
    """Gather the batch from each process's rows ``x``; return it and its Gram matrix.

    Every process calls this with an equal number of rows. The Gram matrix is n x n if ``dual`` and
    k x k otherwise. It squares the condition number, so it is computed in float64. For
    float64 input, where it would lose digits, it is None.

    A row shorter than ``relative_cut(float32, n, k)`` times the rows' root mean square (float64:
    ``relative_cut(float64, n, k)``) is negligible: normalising it would multiply its gradient by
    the inverse of its length. Half precision needs no other bound, because it rounds rows of any
    length by the same share (measured down to 1e-6 of the largest singular value). The root mean
    square does not grow with the batch, as the largest singular value does. Masking and counting
    do not synchronise with the device.

    Shapes: ``(N, k)`` of this process.

    >>> batch, gram = gather(torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    >>> batch.dual, gram
    (True, tensor([[9., 0.],
            [0., 4.]], dtype=torch.float64))
    """
    n, k = len(x) * world_size(), x.shape[1]
    is_float64, dual = x.dtype == torch.float64, n < k
    gathered = dual or is_float64
    # Half precision is sent as it is and converted after the gather.
    rows = (gather_equal(x) if gathered else x).detach().double()
    start = rank() * len(x) if gathered else 0
    local = slice(start, start + len(x))

    scale: Tensor | float = 1.0
    scaled = rows
    gram = None
    if is_float64:
        rows, scale = _in_range(rows)
        scaled = rows / scale
    if dual and not is_float64:
        gram = gather_equal(scaled[local] @ scaled.mT)
        squares = gram.diagonal()
    else:
        squares = scaled.square().sum(dim=1)
    total = item_if_cpu(squares.sum())
    broken_rows = torch.zeros((), dtype=torch.long, device=x.device)
    if (total < math.inf) is not True:  # on an accelerator this is a tensor, never True
        broken = ~squares.isfinite()
        broken_rows = broken.sum()
        rows = _without(rows, broken)
        scaled = _without(scaled, broken) if is_float64 else rows
        # Products of a broken row are NaN or infinite; all other products are finite.
        squares = _finite(squares) if gram is None else _finite(gram).diagonal()
        total = item_if_cpu(squares.sum())
    if not gathered:
        gram = sum_over_processes(scaled.mT @ scaled)
        total = item_if_cpu(gram.diagonal().sum())

    digits = torch.float64 if is_float64 else torch.float32
    is_negligible = squares <= total * (relative_cut(digits, n, k) ** 2 / n)
    negligible_rows = is_negligible.sum()
    has_none = (item_if_cpu(negligible_rows) == 0) is True
    if not gathered and world_size() > 1:
        counts = sum_over_processes(torch.stack([broken_rows, negligible_rows]))
        broken_rows, negligible_rows = counts.unbind()
    batch = Batch(
        n=n,
        k=k,
        dual=dual,
        dtype=x.dtype,
        rows=rows,
        local=local,
        scale=scale,
        negligible=None if has_none else is_negligible[local, None],
        negligible_rows=negligible_rows,
        broken_rows=broken_rows,
    )
    return batch, gram


@dataclass(frozen=True)
class Spectrum(Batch):
    """A batch and the spectrum of all processes' rows, in float64.

    With more columns than rows (``dual``), ``vectors`` holds left singular vectors ``(n, r)``,
    otherwise right ones ``(k, r)``. On a CPU, directions of rounding noise are left out. On an
    accelerator all ``r = min(n, k)`` directions are kept, because counting the noise would
    synchronise. float64 batches keep both kinds of singular vectors: multiplying a short row by
    ``V g V^T`` loses its direction to rounding.
    """

    sigma: Tensor  # (r,) singular values, ascending; noise is raised to the smallest other value
    kept: Tensor  # (r,) whether a direction is above rounding noise
    directions: Tensor  # (): number of directions above noise
    vectors: Tensor
    factors: tuple[Tensor, Tensor] | None = None  # U (n, r) and V^T (r, k) of a float64 batch


def decompose(x: Tensor) -> Spectrum:
    r"""Return singular values and vectors of all processes' rows, :math:`X = U \Sigma V^\top`.

    Every process calls this with an equal number of rows. :func:`gather` handles broken
    and negligible rows. Directions with ``sigma <= relative_cut(...) * sigma_max`` are not kept.

    Shapes: ``(N, k)`` of this process.

    >>> spectrum = decompose(torch.diag(torch.tensor([3.0, 1e-9, 2.0])))
    >>> spectrum.sigma[spectrum.kept]
    tensor([2., 3.], dtype=torch.float64)
    """
    return spectrum_of(*gather(x))


def spectrum_of(batch: Batch, gram: Tensor | None) -> Spectrum:
    """Decompose a Gram matrix, or the rows by an SVD if it is None.

    Every process decomposes the whole matrix. Only ``eigh`` and ``svd``, which check for errors,
    synchronise with the device.
    """
    if gram is not None:
        lam, vectors = torch.linalg.eigh(gram)
        sigma = lam.clamp_min_(0).sqrt_()
        factors = None
    else:
        u, sigma, vh = torch.linalg.svd(batch.rows / batch.scale, full_matrices=False)
        u, sigma, vh = u.flip(1), sigma.flip(0), vh.flip(0)
        vectors, factors = u if batch.dual else vh.mT, (u, vh)
    largest = sigma[-1]
    kept = sigma > item_if_cpu(largest) * relative_cut(batch.dtype, batch.n, batch.k)
    directions = kept.sum()
    count = item_if_cpu(directions)
    if isinstance(count, int):  # on a CPU
        noise = len(sigma) - count
        sigma, vectors, kept = sigma[noise:], vectors[:, noise:], kept[noise:]
        factors = factors and (factors[0][:, noise:], factors[1][noise:])
    else:
        sigma = sigma.clamp_min(torch.where(kept, sigma, largest).amin().clamp_min(SMALLEST))
    return Spectrum(
        **vars(batch),
        sigma=sigma if factors is None else sigma * batch.scale,
        kept=kept,
        directions=directions,
        vectors=vectors,
        factors=factors,
    )


def _in_range(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return float64 rows with NaN for numbers beyond ``LARGEST`` and 0 below its inverse.

    The second value is the largest remaining number, rounded to a power of two.
    """
    size = rows.abs()
    rows = torch.where(size < 1 / LARGEST, 0.0, torch.where(size <= LARGEST, rows, torch.nan))
    largest = rows.nan_to_num(nan=0.0).abs().max()
    mantissa, _ = torch.frexp(largest)  # from 1/2 to 1; dividing by it leaves a power of two
    return rows, torch.where(largest > 0, largest / (2 * mantissa), 1.0)


def _finite(values: Tensor) -> Tensor:
    """Replace NaN and infinity by zero, in place."""
    return values.nan_to_num_(0.0, 0.0, 0.0)


def _without(rows: Tensor, broken: Tensor) -> Tensor:
    """Set broken rows to zero, in place; on a CPU this takes half the time of ``masked_fill_``."""
    return _finite(rows).mul_((~broken[:, None]).to(rows))
