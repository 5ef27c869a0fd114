"""The spectrum of a batch: its singular values and vectors, with rounding noise marked."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rdm_solo.devices import number
from rdm_solo.filters.batch import Batch, gather, relative_cut

# The singular values of a batch of zeros: a number whose inverse is in range.
SMALLEST = 1e-150


@dataclass(frozen=True)
class Spectrum(Batch):
    """A batch and the spectrum of all processes' rows, in float64.

    With more columns than rows (``dual``), ``vectors`` holds left singular vectors ``(n, r)``,
    otherwise right ones ``(k, r)``. On a CPU, directions of rounding noise are left out. On another
    device all ``r = min(n, k)`` directions are there, because the host does not know how many are
    noise.
    """

    sigma: Tensor  # (r,) singular values, ascending; noise is raised to the least one above it
    kept: Tensor  # (r,) whether a direction is above rounding noise
    directions: Tensor  # (): how many are
    vectors: Tensor


def decompose(x: Tensor) -> Spectrum:
    r"""Return singular values and vectors of all processes' rows, :math:`X = U \Sigma V^\top`.

    Every process calls this with an equal number of rows. :func:`rdm_solo.filters.batch.gather`
    explains how broken and short rows are treated. Directions with
    ``sigma <= relative_cut(...) * max(sigma)`` are not kept.

    Shapes: ``(N, k)`` of this process.

    >>> spectrum = decompose(torch.diag(torch.tensor([3.0, 1e-9, 2.0])))
    >>> spectrum.sigma[spectrum.kept]
    tensor([2., 3.], dtype=torch.float64)
    """
    return spectrum_of(*gather(x))


def spectrum_of(batch: Batch, gram: Tensor | None) -> Spectrum:
    """Decompose a Gram matrix, or the rows by an SVD if it is None.

    Every process decomposes all of it. The host waits for a device only in ``eigh`` or ``svd``,
    which check for errors.
    """
    if gram is not None:
        lam, vectors = torch.linalg.eigh(gram)
        sigma = lam.clamp_min_(0).sqrt_()
    else:
        u, sigma, vh = torch.linalg.svd(batch.rows / batch.scale, full_matrices=False)
        vectors, sigma = (u if batch.dual else vh.mT).flip(1), sigma.flip(0)
    exact = batch.dtype == torch.float64
    # A Gram matrix has lost the digits that float64's own cut would keep.
    digits = torch.float32 if exact and gram is not None else batch.dtype
    largest = sigma[-1]
    kept = sigma > number(largest) * relative_cut(digits, batch.n, batch.k)
    directions = kept.sum()
    count = number(directions)
    if isinstance(count, int):  # on a CPU
        noise = len(sigma) - count
        sigma, vectors, kept = sigma[noise:], vectors[:, noise:], kept[noise:]
    else:
        sigma = sigma.clamp_min(torch.where(kept, sigma, largest).amin().clamp_min(SMALLEST))
    return Spectrum(
        **vars(batch),
        sigma=sigma * batch.scale if exact else sigma,
        kept=kept,
        directions=directions,
        vectors=vectors,
    )
