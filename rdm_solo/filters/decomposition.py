"""The spectrum of a batch: its singular values and vectors, with rounding noise marked."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from rdm_solo.filters.batch import Batch, gather, relative_cut
from rdm_solo.filters.functions import number

# Stands for the singular values of a batch of zeros: its inverse is in range.
SMALLEST = 1e-150


@dataclass(frozen=True)
class Spectrum(Batch):
    """A batch and its spectrum, of all processes' rows; float64.

    With more directions than rows (``dual``) ``vectors`` are left singular vectors ``(n, r)``,
    otherwise right ones ``(k, r)``. On a CPU noise is left out. On another device all
    ``r = min(n, k)`` directions are there, since the host does not know how many of them are noise.
    """

    sigma: Tensor  # (r,) singular values, ascending; in place of noise the least one above it
    kept: Tensor  # (r,) whether a direction is above rounding noise
    directions: Tensor  # (): how many are
    vectors: Tensor


def decompose(x: Tensor) -> Spectrum:
    r"""The singular values and vectors of all processes' rows, :math:`X = U \Sigma V^\top`.

    Every process calls this with an equal share of the rows (:func:`rdm_solo.filters.batch.gather`
    says what becomes of broken and short ones). Directions with
    ``sigma <= relative_cut(...) * max(sigma)`` are not kept.

    Shapes: ``(N, k)`` of this process.

    >>> spectrum = decompose(torch.diag(torch.tensor([3.0, 1e-9, 2.0])))
    >>> spectrum.sigma[spectrum.kept]
    tensor([2., 3.], dtype=torch.float64)
    """
    return spectrum_of(*gather(x))


def spectrum_of(batch: Batch, gram: Tensor | None) -> Spectrum:
    """The spectrum from a Gram matrix, or by an SVD where there is none.

    Every process decomposes the whole of it. The host waits for a device in ``eigh`` (or ``svd``)
    alone, which looks for an error of its own.
    """
    if gram is not None:
        lam, vectors = torch.linalg.eigh(gram)
        sigma = lam.clamp_min_(0).sqrt_()
    else:
        u, sigma, vh = torch.linalg.svd(batch.rows / batch.scale, full_matrices=False)
        vectors, sigma = (u if batch.dual else vh.mT).flip(1), sigma.flip(0)
    exact = batch.dtype == torch.float64
    # A Gram matrix has lost what float64's own cut would keep.
    digits = torch.float32 if exact and gram is not None else batch.dtype
    largest = sigma[-1]
    kept = sigma > number(largest) * relative_cut(digits, batch.n, batch.k)
    directions = kept.sum()
    count = number(directions)
    if isinstance(count, int):  # as on a CPU
        noise = len(sigma) - count
        sigma, vectors, kept = sigma[noise:], vectors[:, noise:], kept[noise:]
    else:
        sigma = sigma.clamp_min(torch.where(kept, sigma, largest).amin().clamp_min(SMALLEST))
    return Spectrum(
        **{field.name: getattr(batch, field.name) for field in fields(batch)},
        sigma=sigma * batch.scale if exact else sigma,
        kept=kept,
        directions=directions,
        vectors=vectors,
    )
