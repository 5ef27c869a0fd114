"""A batch with the rows of all processes, and its singular values and vectors above noise."""

import functools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdm_solo.ground.distributed import gather_equal, rank, sum_over_processes, world_size
from rdm_solo.ground.errors import first_line

log = logging.getLogger(__name__)

# The singular value of a batch of zeros. Its inverse is in range, and it is smaller than the square
# root of any positive float64 number.
SMALLEST = 1e-200


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
    size = max(n, k)
    if dtype != torch.float64:
        return eps * math.sqrt(size)
    return eps * size


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
    negligible: Tensor | None  # (N, 1): which of this process's rows are negligible
    negligible_rows: Tensor  # (): number over all processes, including broken rows
    broken_rows: Tensor  # (): number of rows whose squares are not finite, over all processes


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
    dual = n < k and not running
    by_svd = x.dtype == torch.float64 and not running
    needs_all_rows = dual or by_svd
    # Half-precision rows are gathered before they are converted.
    rows = x
    start = 0  # of this process's rows
    if needs_all_rows:
        rows = gather_equal(x)
        start = rank() * len(x)
    local = slice(start, start + len(x))
    # A copy, because broken rows are set to zero in place.
    rows = rows.detach().to(torch.float64, copy=True)

    lengths = torch.linalg.vector_norm(rows, dim=1)
    is_broken = ~lengths.isfinite()
    broken_rows = is_broken.sum()
    if not _is_known_zero(broken_rows):
        rows.masked_fill_(is_broken[:, None], 0.0)
        lengths.masked_fill_(is_broken, 0.0)
    digits = torch.float32
    if by_svd:
        digits = torch.float64
        gram = None
        squares = lengths.square()
    elif dual:
        gram = gather_equal(rows[local] @ rows.mT)
        squares = gram.diagonal()
    else:
        gram = sum_over_processes(rows.mT @ rows)
        squares = gram.diagonal()  # of the columns; their sum equals that of the rows

    root_mean_square = (squares.sum() / n).sqrt()
    is_negligible = lengths <= relative_cut(digits, n, k) * root_mean_square
    negligible_rows = is_negligible.sum()
    if not needs_all_rows:
        counts = sum_over_processes(torch.stack([broken_rows, negligible_rows]))
        broken_rows, negligible_rows = counts.unbind()
    negligible = None
    if not _is_known_zero(negligible_rows):
        negligible = is_negligible[local, None]
    batch = Batch(
        n=n,
        k=k,
        dual=dual,
        dtype=x.dtype,
        rows=rows,
        local=local,
        negligible=negligible,
        negligible_rows=negligible_rows,
        broken_rows=broken_rows,
    )
    return batch, gram


def _is_known_zero(count: Tensor) -> bool:
    """Return True for a count of 0 on a CPU; on other devices, reading it would synchronise."""
    return count.device.type == "cpu" and not count.item()


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
    return spectra([gather(x)])[0]


def spectra(batches: list[tuple[Batch, Tensor | None]], drop_noise: bool = False) -> list[Spectrum]:
    """Decompose all Gram matrices as one stack, or compute SVDs of the rows if there are none.

    Every process decomposes the whole matrices. Only the error checks of ``eigh`` and ``svd``
    synchronise with the device, once for all batches. With ``drop_noise``, directions of noise are
    dropped on an accelerator as well, which synchronises once more.
    """
    grams = [gram for _, gram in batches if gram is not None]
    factors: list[tuple[Tensor, Tensor] | None] = [None] * len(batches)
    if grams:
        lam, all_vectors = _on_cpu_if_it_fails(torch.linalg.eigh, torch.stack(grams))
        sigmas = list(lam.clamp_min_(0).sqrt_())
        vectors = list(all_vectors)
    else:
        svd = functools.partial(torch.linalg.svd, full_matrices=False)
        rows = torch.stack([batch.rows for batch, _ in batches])
        u, descending, vh = _on_cpu_if_it_fails(svd, rows)
        u, vh = u.flip(2), vh.flip(1)
        sigmas = list(descending.flip(1))
        factors = list(zip(u, vh))
        vectors = list(u if batches[0][0].dual else vh.mT)

    kept = []
    for (batch, gram), sigma in zip(batches, sigmas):
        # The Gram matrix of float64 rows, which a running mean uses, has float32's digits.
        digits = batch.dtype
        if digits == torch.float64 and gram is not None:
            digits = torch.float32
        kept.append(sigma > sigma[-1] * relative_cut(digits, batch.n, batch.k))
    directions = [above_noise.sum() for above_noise in kept]
    if drop_noise or sigmas[0].device.type == "cpu":
        for i, count in enumerate(torch.stack(directions).tolist()):
            # Singular values ascend, so noise comes first. A batch of zeros keeps one direction.
            noise = len(sigmas[i]) - max(count, 1)
            kept[i], sigmas[i] = kept[i][noise:], sigmas[i][noise:]
            vectors[i] = vectors[i][:, noise:]
            pair = factors[i]
            if pair is not None:
                factors[i] = pair[0][:, noise:], pair[1][noise:]

    result = []
    for i, (batch, _) in enumerate(batches):
        smallest = torch.where(kept[i], sigmas[i], sigmas[i][-1]).amin()
        sigma = sigmas[i].clamp_min(smallest.clamp_min(SMALLEST))
        spectrum = Spectrum(
            **vars(batch),
            sigma=sigma,
            kept=kept[i],
            directions=directions[i],
            vectors=vectors[i],
            factors=factors[i],
        )
        result.append(spectrum)
    return result


def _on_cpu_if_it_fails(decompose: Callable[[Tensor], Any], matrices: Tensor) -> tuple[Tensor, ...]:
    """Return the decomposition of a stack; solvers on GPUs have failed for collapsed batches."""
    try:
        return tuple(decompose(matrices))
    except RuntimeError as error:
        if matrices.device.type == "cpu" or isinstance(error, torch.OutOfMemoryError):
            raise
        _log_failure(first_line(error))
    factors = decompose(matrices.cpu())
    return tuple(factor.to(matrices.device) for factor in factors)


@functools.cache
def _log_failure(reason: str) -> None:
    log.warning(f"a decomposition failed on the GPU and is computed on the CPU: {reason}")
