"""A batch with the rows of all processes, and its singular values and vectors above noise."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdm_solo.ground.devices import item_if_cpu
from rdm_solo.ground.distributed import gather_equal, rank, sum_over_processes, world_size

# float64 numbers above this count as infinite, and numbers below its inverse as zero.
LARGEST = 2.0**960
# Used as the singular values of a batch of zeros, because its inverse is in range.
SMALLEST = 1e-150


def relative_cut(dtype: torch.dtype, n: int, k: int) -> float:
    """Return the threshold for rounding noise, as a share of the largest singular value.

    For float32 it is ``eps * sqrt(max(n, k))``. After a batch norm one singular value may be zero
    up to rounding (1 to 12 eps); the signal of steep spectra is above the threshold. For float64 it
    is ``eps * max(n, k)``, as in NumPy's ``matrix_rank``: the SVD itself computes in float64, and
    gave 200 equal rows a second singular value of up to 31 eps. For float16 and bfloat16 it is
    ``eps / 2``, because rounding the features raises the zero singular value to at most 0.29 eps.

    >>> f"{relative_cut(torch.float32, 256, 2048):.1e}"
    '5.4e-06'
    """
    eps = torch.finfo(dtype).eps
    if dtype in (torch.float16, torch.bfloat16):
        return eps / 2
    return eps * (max(n, k) if dtype == torch.float64 else math.sqrt(max(n, k)))


@dataclass(frozen=True)
class Batch:
    """A batch ``(n, k)`` over all processes, in float64 and with broken rows set to zero.

    If there are more columns than rows (``dual``), or if the input is float64, ``rows`` contains
    the rows of all processes. Otherwise it contains the rows of this process.
    """

    n: int
    k: int
    dual: bool
    dtype: torch.dtype  # of the input, and of results
    rows: Tensor
    local: slice  # this process's part of rows
    scale: Tensor | float  # rows / scale is decomposed; 1 unless float64
    negligible: Tensor | None  # (N, 1): which of this process's rows are negligible
    negligible_rows: Tensor  # (): number over all processes, including broken rows
    broken_rows: Tensor  # (): number of rows with NaN or infinity over all processes


def gather(x: Tensor, running: bool = False) -> tuple[Batch, Tensor | None]:
    """Gather the rows ``x`` of all processes and return the batch and its Gram matrix.

    Every process must pass the same number of rows. The Gram matrix is n x n if ``dual`` and k x k
    otherwise. It squares the condition number, so it is computed in float64. For float64 input it
    is None, because it would lose digits. With ``running`` it is k x k for any input, because a
    running average needs one shape.

    A row is negligible if its length is at most ``relative_cut(float32, n, k)`` (float64 input:
    ``relative_cut(float64, n, k)``) times the root mean square of all lengths. Normalising such a
    row would multiply its gradient by the inverse of its length. Half precision rounds short and
    long rows by the same share, so float32's bound applies to it (measured down to 1e-6 of the
    largest singular value). The root mean square does not grow with the batch, unlike the largest
    singular value. Masking and counting do not synchronise with the device.

    Shapes: ``(N, k)`` of this process.

    >>> batch, gram = gather(torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    >>> batch.dual, gram
    (True, tensor([[9., 0.],
            [0., 4.]], dtype=torch.float64))
    """
    n, k = len(x) * world_size(), x.shape[1]
    is_float64, dual = x.dtype == torch.float64 and not running, n < k and not running
    gathered = dual or is_float64
    # Half-precision rows are gathered before they are converted.
    # A copy, because broken rows are set to zero in place.
    rows = (gather_equal(x) if gathered else x).detach().to(torch.float64, copy=True)
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
    if (total < math.inf) is not True:  # always on an accelerator, where total is a tensor
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
    """A batch and the spectrum of the rows of all processes, in float64.

    If there are more columns than rows (``dual``), ``vectors`` contains left singular vectors
    ``(n, r)``, otherwise right singular vectors ``(k, r)``. On a CPU, directions of rounding noise
    are dropped. An accelerator keeps all ``r = min(n, k)`` directions, because counting those above
    noise would synchronise. float64 batches have both kinds of singular vectors, because rounding
    makes ``x V g V^T`` inaccurate for short rows.
    """

    sigma: Tensor  # (r,) ascending singular values; noise is raised to the smallest value above it
    kept: Tensor  # (r,) whether a direction is above rounding noise
    directions: Tensor  # (): number of directions above rounding noise
    vectors: Tensor
    factors: tuple[Tensor, Tensor] | None = None  # U (n, r) and V^T (r, k) of a float64 batch


def decompose(x: Tensor) -> Spectrum:
    r"""Return singular values and vectors of all processes' rows, :math:`X = U \Sigma V^\top`.

    Every process must pass the same number of rows. :func:`gather` describes how broken and
    negligible rows are treated. Noise has ``sigma <= relative_cut(...) * sigma_max``.

    Shapes: ``(N, k)`` of this process.

    >>> spectrum = decompose(torch.diag(torch.tensor([3.0, 1e-9, 2.0])))
    >>> spectrum.sigma[spectrum.kept]
    tensor([2., 3.], dtype=torch.float64)
    """
    return spectrum_of(*gather(x))


def spectrum_of(batch: Batch, gram: Tensor | None) -> Spectrum:
    """Decompose the Gram matrix, or compute an SVD of the rows if there is none.

    Every process decomposes the whole matrix. Only the error checks of ``eigh`` and ``svd``
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
    # The Gram matrix of float64 rows has float32's digits.
    digits = torch.float32 if gram is not None and batch.dtype == torch.float64 else batch.dtype
    kept = sigma > item_if_cpu(largest) * relative_cut(digits, batch.n, batch.k)
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
    """Return float64 rows, with NaN above ``LARGEST`` and 0 below its inverse, and their scale.

    The scale is the largest remaining absolute value, rounded down to a power of two.
    """
    size = rows.abs()
    rows = torch.where(size < 1 / LARGEST, 0.0, torch.where(size <= LARGEST, rows, torch.nan))
    largest = rows.nan_to_num(nan=0.0).abs().max()
    mantissa, _ = torch.frexp(largest)  # from 1/2 to 1; largest / mantissa is a power of two
    return rows, torch.where(largest > 0, largest / (2 * mantissa), 1.0)


def _finite(values: Tensor) -> Tensor:
    """Replace NaN and infinity by zero, in place."""
    return values.nan_to_num_(0.0, 0.0, 0.0)


def _without(rows: Tensor, broken: Tensor) -> Tensor:
    """Set broken rows to zero, in place; on a CPU this takes half the time of ``masked_fill_``."""
    return _finite(rows).mul_((~broken[:, None]).to(rows))
