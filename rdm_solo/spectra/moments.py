"""Two exact routes to both branches' spectra: k x k correlation matrices, or N x N dual Grams."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.spectra.measures import noise_floor

__all__ = ["Directions", "Moments", "from_matrices", "from_rows"]


class Directions(NamedTuple):
    """For each of the target's eigenvectors u and a matrix C: u^T C u, and the norm of C u."""

    energy: Tensor
    norm: Tensor


class Moments(NamedTuple):
    """Eigenvalues of C_p, C_z, C_+ and C_y, descending; and C_p and C_+ along u_i of C_z.

    Those of C_+ are None where no positives were seen.
    """

    lam_p: Tensor
    lam_z: Tensor
    lam_plus: Tensor | None
    lam_y: Tensor
    online: Directions
    positive: Directions | None


def from_matrices(C_p: Tensor, C_z: Tensor, C_plus: Tensor | None, C_y: Tensor) -> Moments:
    """Of correlation matrices ``(k, k)``."""
    lam_z, u = torch.linalg.eigh(C_z)

    def along(C: Tensor) -> Directions:
        image = C @ u.flip(1)
        return Directions((u.flip(1) * image).sum(0), torch.linalg.vector_norm(image, dim=0))

    lam_p, lam_z = _eigenvalues(C_p), lam_z.flip(0).clamp_min(0)
    lam_y = _shared(C_y, (C_z, lam_z), (C_p, lam_p))
    if lam_y is None:
        lam_y = _eigenvalues(C_y)
    return Moments(
        lam_p,
        lam_z,
        None if C_plus is None else _eigenvalues(C_plus),
        lam_y,
        along(C_p),
        None if C_plus is None else along(C_plus),
    )


def from_rows(p: Tensor, z: Tensor, z_plus: Tensor | None, y: Tensor, length: int) -> Moments:
    r"""Of float64 rows ``(N, k)`` themselves, by N x N matrices; results have ``length`` entries.

    With :math:`ZZ^T/N = W \Lambda W^T`, the eigenvectors :math:`u_i = Z^T w_i / \sqrt{N\lambda_i}`
    enter through cross Grams alone: :math:`P u_i` is :math:`PZ^T w_i / \sqrt{N\lambda_i}`.
    """
    n = len(z)
    gram_z = z @ z.mT
    lam, w = torch.linalg.eigh(gram_z / n)
    lam, w = lam.flip(0).clamp_min(0), w.flip(1)
    real = lam > noise_floor(lam)
    w = w * torch.where(real, (n * lam).rsqrt(), 0.0)  # Z^T w: the eigenvectors, where there are

    gram_p = p @ p.mT
    lam_p = _eigenvalues(gram_p / n)
    p_u = (p @ z.mT) @ w
    online = Directions(p_u.square().sum(0) / n, _norm(p_u, gram_p) / n)
    lam_plus, positive = None, None
    if z_plus is not None:
        lam_plus, positive = _positives(gram_z, z @ z_plus.mT, z_plus @ z_plus.mT, w)
    lam_y = _shared(y, (z, lam), (p, lam_p))
    if lam_y is None:
        lam_y = _eigenvalues(y @ y.mT / n)
    return Moments(
        _fitted(lam_p, length),
        _fitted(lam, length),
        None if lam_plus is None else _fitted(lam_plus, length),
        _fitted(lam_y, length),
        Directions(*(_fitted(x, length) for x in online)),
        None if positive is None else Directions(*(_fitted(x, length) for x in positive)),
    )


def _positives(
    gram: Tensor, cross: Tensor, gram_plus: Tensor, w: Tensor
) -> tuple[Tensor, Directions]:
    r""":math:`C_+ = B^T J B / 2N`, rows :math:`B = [Z; Z_+]`, J exchanging the halves.

    Its eigenvalues are those of :math:`R J R^T / 2N` with :math:`BB^T = R^T R`.
    """
    n = len(gram)
    both = torch.cat([torch.cat([gram, cross], 1), torch.cat([cross.mT, gram_plus], 1)])
    s, q = torch.linalg.eigh(both)
    root = s.clamp_min(0).sqrt()[:, None] * q.mT
    lam = _eigenvalues(root.roll(n, 1) @ root.mT / (2 * n))
    z_u, plus_u = gram @ w, cross.mT @ w
    energy = (z_u * plus_u).sum(0) / n
    return lam, Directions(energy, _norm(torch.cat([plus_u, z_u]), both) / (2 * n))


def _norm(coefficients: Tensor, gram: Tensor) -> Tensor:
    """Of combinations of rows, one a column, from the rows' Gram matrix."""
    return (coefficients * (gram @ coefficients)).sum(0).clamp_min(0).sqrt()


def _eigenvalues(C: Tensor) -> Tensor:
    lam: Tensor = torch.linalg.eigvalsh(C)
    return lam.flip(0).clamp_min(0)


def _shared(x: Tensor, *known: tuple[Tensor, Tensor]) -> Tensor | None:
    """The eigenvalues where x is one of those: only one of both branches has a filter, if any."""
    return next((lam for other, lam in known if torch.equal(x, other)), None)


def _fitted(x: Tensor, length: int) -> Tensor:
    """Cut, or filled up with zeros: with few rows, more eigenvalues are zero than were computed."""
    return torch.nn.functional.pad(x, (0, length - len(x))) if len(x) < length else x[:length]
