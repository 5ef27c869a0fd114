"""Two exact routes to both branches' spectra: k x k correlation matrices, or N x N dual Grams."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.messages import UserError
from rdm_solo.spectra import lda
from rdm_solo.spectra.matrices import noise_floor

# A float64 sum over N rows is off by N eps at most, over the rows of an epoch by about this share.
ROUNDING = 1e-12


class Moments(NamedTuple):
    """Eigenvalues of C_p, C_z, C_y, and C_+, descending; and C_p and C_+ along C_z's eigenvectors
    u: u^T C u, and the norm of C u. None where no positives were seen. ``lam_centred`` are those
    of the rows of C_y around their mean, None unless they are asked for. ``lam_covariance`` are
    those of the targets around their mean, ``lam_lidar`` those that LiDAR is read off."""

    lam_p: Tensor
    lam_z: Tensor
    lam_y: Tensor
    energy_p: Tensor
    norm_p: Tensor
    lam_covariance: Tensor
    lam_centred: Tensor | None = None
    lam_plus: Tensor | None = None
    energy_plus: Tensor | None = None
    norm_plus: Tensor | None = None
    lam_lidar: Tensor | None = None


def from_matrices(
    C_p: Tensor,
    C_z: Tensor,
    C_plus: Tensor | None,
    C_y: Tensor,
    C_means: Tensor | None,
    mean_z: Tensor,
    pairs: int = 0,
) -> Moments:
    """Of correlation matrices ``(k, k)``; ``C_means`` is the part of C_y that the rows' means make,
    and is left out of ``lam_centred``. ``mean_z`` is the targets' mean; where these are two views
    of so many ``pairs``, there is LiDAR."""
    lam_z, u = torch.linalg.eigh(C_z)
    lam_z, u = lam_z.flip(0).clamp_min(0), u.flip(1)

    def along(C: Tensor) -> tuple[Tensor, Tensor]:
        image = C @ u
        return (u * image).sum(0), torch.linalg.vector_norm(image, dim=0)

    lam_p = _eigenvalues(C_p)
    lam_y = _shared(C_y, (C_z, lam_z), (C_p, lam_p))
    if lam_y is None:
        lam_y = _eigenvalues(C_y)
    lam_centred = None if C_means is None else around_means(C_y, C_means)
    lam_covariance = around_means(C_z, mean_z.outer(mean_z))
    found = Moments(lam_p, lam_z, lam_y, *along(C_p), lam_covariance, lam_centred)
    if C_plus is None:
        return found
    energy, norm = along(C_plus)
    found = found._replace(lam_plus=_eigenvalues(C_plus), energy_plus=energy, norm_plus=norm)
    if pairs < 2:
        return found
    scatter = lda.of_pairs(C_z, C_plus, mean_z, pairs)
    return found._replace(lam_lidar=lda.discriminant_eigenvalues(*scatter, lda.DELTA))


def from_rows(
    p: Tensor, z: Tensor, z_plus: Tensor | None, y: Tensor, length: int, around_mean: bool
) -> Moments:
    r"""Of float64 rows ``(N, k)`` themselves, by N x N matrices; results have ``length`` entries.

    With :math:`ZZ^T/N = W \Lambda W^T`, the eigenvectors :math:`u_i = Z^T w_i / \sqrt{N\lambda_i}`
    enter through cross Grams alone: :math:`P u_i` is :math:`PZ^T w_i / \sqrt{N\lambda_i}`.
    """
    n = len(z)
    gram_z, gram_p = z @ z.mT, p @ p.mT
    lam_z, w = torch.linalg.eigh(gram_z / n)
    lam_z, w = lam_z.flip(0).clamp_min(0), w.flip(1)
    real = lam_z > noise_floor(lam_z)
    w = w * torch.where(real, (n * lam_z).rsqrt(), 0.0)  # Z^T w: the eigenvectors, where there are

    lam_p = _eigenvalues(gram_p / n)
    p_u = (p @ z.mT) @ w
    lam_y = _shared(y, (z, lam_z), (p, lam_p))
    if lam_y is None:
        lam_y = _eigenvalues(y @ y.mT / n)
    means = gram_z.mean(0)
    around_z = (gram_z - means - means[:, None] + means.mean()) / n
    lam_covariance = _above_noise(_eigenvalues(around_z), lam_z.sum())
    along = (p_u.square().sum(0) / n, _norm(p_u, gram_p) / n)
    found = Moments(lam_p, lam_z, lam_y, *along, lam_covariance)
    if around_mean:
        around = y - y.mean(0)
        lam_centred = _above_noise(_eigenvalues(around @ around.mT / n), lam_y.max())
        found = found._replace(lam_centred=lam_centred)
    if z_plus is not None:
        found = found._replace(**_positives(gram_z, z @ z_plus.mT, z_plus @ z_plus.mT, w))
    # With few rows, more eigenvalues are zero than were computed.
    pad = torch.nn.functional.pad
    sizes = {
        name: pad(x[:length], (0, max(0, length - len(x))))
        for name, x in found._asdict().items()
        if x is not None
    }
    return Moments(**sizes)


def _positives(gram: Tensor, cross: Tensor, gram_plus: Tensor, w: Tensor) -> dict[str, Tensor]:
    r""":math:`C_+ = B^T J B / 2N`, rows :math:`B = [Z; Z_+]`, J exchanging the halves.

    Its eigenvalues are those of :math:`R J R^T / 2N` with :math:`BB^T = R^T R`. R's columns are the
    rows in coordinates of the space that they span, so LiDAR of these is LiDAR of the rows.
    """
    n = len(gram)
    both = torch.cat([torch.cat([gram, cross], 1), torch.cat([cross.mT, gram_plus], 1)])
    s, q = torch.linalg.eigh(both)
    s = torch.where(s > noise_floor(s), s, 0.0)  # the roots of rounding would not be small
    root = s.sqrt()[:, None] * q.mT
    z_u, plus_u = gram @ w, cross.mT @ w
    found = {
        "lam_plus": _eigenvalues(root.roll(n, 1) @ root.mT / (2 * n)),
        "energy_plus": (z_u * plus_u).sum(0) / n,
        "norm_plus": _norm(torch.cat([plus_u, z_u]), both) / (2 * n),
    }
    if n > 1:
        scatter = lda.of_views(torch.stack(root.mT.split(n), 1))
        found["lam_lidar"] = lda.discriminant_eigenvalues(*scatter, lda.DELTA)
    return found


def _norm(coefficients: Tensor, gram: Tensor) -> Tensor:
    """Of combinations of rows, one a column, from the rows' Gram matrix."""
    return (coefficients * (gram @ coefficients)).sum(0).clamp_min(0).sqrt()


def _eigenvalues(C: Tensor) -> Tensor:
    lam: Tensor = torch.linalg.eigvalsh(C)
    return lam.flip(0).clamp_min(0)


def spread(moment: Tensor, of_means: Tensor) -> Tensor:
    """Rows' variance over their second moment, of which ``of_means`` is their means' part: 0 where
    all are one, 1 where their mean is 0.

    >>> spread(torch.tensor(1.0), torch.tensor(0.25))
    tensor(0.7500)
    """
    share = 1 - of_means / torch.where(moment > 0, moment, 1.0)
    return torch.where(moment > 0, share.clamp_min(0), 0.0)


def mean_share(x: Tensor) -> Tensor:
    r"""The share of the mean in the second moment, :math:`\|\mu\|^2 / \frac1N\sum_i\|x_i\|^2`.

    From 0, where the rows' mean :math:`\mu` is 0, to 1, where all rows are their mean: one minus
    their variance over their second moment. Rows that are all 0 are their mean, too.

    Shapes: ``(N, k) -> ()``.

    >>> float(mean_share(torch.tensor([[1.0, 0.0], [0.0, 1.0]])))
    0.5
    """
    if x.ndim != 2 or not x.numel():
        raise UserError(f"mean_share takes rows (N, k), got {tuple(x.shape)}.")
    x = x.detach().double()
    moment = x.square().sum(1).mean()
    share = 1 - spread(moment, x.mean(0).square().sum())
    return torch.where(moment.isfinite(), share, math.nan)


def around_means(C: Tensor, C_means: Tensor) -> Tensor:
    """The eigenvalues, descending, of a correlation matrix without its rows' means' part.

    >>> around_means(torch.eye(2).double(), torch.diag(torch.tensor([0.0, 1.0]).double()))
    tensor([1., 0.], dtype=torch.float64)
    """
    return _above_noise(_eigenvalues(C - C_means), C.diagonal().sum())


def _above_noise(lam: Tensor, scale: Tensor) -> Tensor:
    """Differences of equal outputs are rounding of what they have in common: zero."""
    return lam.where(lam > ROUNDING * scale, 0.0)


def _shared(x: Tensor, *known: tuple[Tensor, Tensor]) -> Tensor | None:
    """The eigenvalues where x is one of those: only one of both branches has a filter, if any."""
    return next((lam for other, lam in known if torch.equal(x, other)), None)
