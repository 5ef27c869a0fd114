"""Two exact routes to both branches' spectra: k x k correlation matrices, or N x N dual Grams."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.messages import UserError
from rdm_solo.spectra import lda
from rdm_solo.spectra.matrices import descending, noise_floor

# A float64 sum over N rows is off by N eps at most, over the rows of an epoch by about this share.
ROUNDING = 1e-12


class Moments(NamedTuple):
    """Descending eigenvalues of C_p, C_z, C_y and C_+, and what alignments and LiDAR need.

    ``energy`` is u^T C u and ``norm`` the norm of C u along C_z's eigenvectors u, for C_p and C_+.
    ``lam_covariance`` belongs to the centred targets, ``lam_centred`` to the centred projections.
    """

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
    """Return the moments of correlation matrices ``(k, k)``.

    ``C_means`` is the part of C_y that the steps' means make. There is LiDAR if the targets are two
    views of ``pairs`` samples.
    """
    lam_z, u = torch.linalg.eigh(C_z)
    lam_z, u = lam_z.flip(0).clamp_min(0), u.flip(1)

    def along(C: Tensor) -> tuple[Tensor, Tensor]:
        image = C @ u
        return (u * image).sum(0), torch.linalg.vector_norm(image, dim=0)

    lam_p = descending(C_p)
    # A run filters at most one branch: the projections are the other one's outputs.
    lam_y = lam_z if torch.equal(C_y, C_z) else lam_p if torch.equal(C_y, C_p) else descending(C_y)
    lam_centred = None if C_means is None else around_means(C_y, C_means)
    lam_covariance = around_means(C_z, mean_z.outer(mean_z))
    moments = Moments(lam_p, lam_z, lam_y, *along(C_p), lam_covariance, lam_centred)
    if C_plus is None:
        return moments
    energy, norm = along(C_plus)
    moments = moments._replace(lam_plus=descending(C_plus), energy_plus=energy, norm_plus=norm)
    if pairs < 2:
        return moments
    scatter = lda.of_pairs(C_z, C_plus, mean_z, pairs)
    return moments._replace(lam_lidar=lda.discriminant_eigenvalues(*scatter, lda.DELTA))


def from_rows(
    p: Tensor, z: Tensor, z_plus: Tensor | None, y: Tensor, length: int, around_mean: bool
) -> Moments:
    r"""Return the moments of float64 rows ``(N, k)`` by N x N matrices, with ``length`` entries.

    With :math:`ZZ^T/N = W \Lambda W^T`, the eigenvectors :math:`u_i = Z^T w_i / \sqrt{N\lambda_i}`
    enter through cross Grams alone: :math:`P u_i` is :math:`PZ^T w_i / \sqrt{N\lambda_i}`.
    """
    n = len(z)
    gram_z, gram_p = z @ z.mT, p @ p.mT
    lam_z, w = torch.linalg.eigh(gram_z / n)
    lam_z, w = lam_z.flip(0).clamp_min(0), w.flip(1)
    real = lam_z > noise_floor(lam_z)
    w = w * torch.where(real, (n * lam_z).rsqrt(), 0.0)  # Z^T w are the eigenvectors, or zero

    lam_p = descending(gram_p / n)
    p_u = (p @ z.mT) @ w
    lam_y = lam_z if torch.equal(y, z) else lam_p if torch.equal(y, p) else descending(y @ y.mT / n)
    means = gram_z.mean(0)
    around_z = (gram_z - means - means[:, None] + means.mean()) / n
    lam_covariance = _above_noise(descending(around_z), lam_z.sum())
    along = (p_u.square().sum(0) / n, _norm(p_u, gram_p) / n)
    moments = Moments(lam_p, lam_z, lam_y, *along, lam_covariance)
    if around_mean:
        around = y - y.mean(0)
        lam_centred = _above_noise(descending(around @ around.mT / n), lam_y.max())
        moments = moments._replace(lam_centred=lam_centred)
    if z_plus is not None:
        moments = moments._replace(**_positives(gram_z, z @ z_plus.mT, z_plus @ z_plus.mT, w))
    # With few rows, more eigenvalues are zero than were computed.
    pad = torch.nn.functional.pad
    sizes = {
        name: pad(x[:length], (0, max(0, length - len(x))))
        for name, x in moments._asdict().items()
        if x is not None
    }
    return Moments(**sizes)


def _positives(gram: Tensor, cross: Tensor, gram_plus: Tensor, w: Tensor) -> dict[str, Tensor]:
    r"""Return the moments of :math:`C_+ = B^T J B / 2N` for rows :math:`B = [Z; Z_+]`.

    J exchanges the halves. The eigenvalues are those of :math:`R J R^T / 2N` with
    :math:`BB^T = R^T R`. R's columns are the rows in coordinates of the space that they span, so
    their LiDAR is the rows' LiDAR.
    """
    n = len(gram)
    both = torch.cat([torch.cat([gram, cross], 1), torch.cat([cross.mT, gram_plus], 1)])
    s, q = torch.linalg.eigh(both)
    s = torch.where(s > noise_floor(s), s, 0.0)  # the roots of rounding would not be small
    root = s.sqrt()[:, None] * q.mT
    z_u, plus_u = gram @ w, cross.mT @ w
    moments = {
        "lam_plus": descending(root.roll(n, 1) @ root.mT / (2 * n)),
        "energy_plus": (z_u * plus_u).sum(0) / n,
        "norm_plus": _norm(torch.cat([plus_u, z_u]), both) / (2 * n),
    }
    if n > 1:
        scatter = lda.of_views(torch.stack(root.mT.split(n), 1))
        moments["lam_lidar"] = lda.discriminant_eigenvalues(*scatter, lda.DELTA)
    return moments


def _norm(coefficients: Tensor, gram: Tensor) -> Tensor:
    """Return the norms of combinations of rows, one a column, from the rows' Gram matrix."""
    return (coefficients * (gram @ coefficients)).sum(0).clamp_min(0).sqrt()


def mean_share(x: Tensor) -> Tensor:
    r"""Return the mean's share of the second moment, :math:`\|\mu\|^2 / \frac1N\sum_i\|x_i\|^2`.

    It is 0 where the rows' mean :math:`\mu` is 0, and 1 where all rows equal their mean.

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


def spread(moment: Tensor, of_means: Tensor) -> Tensor:
    """Return rows' variance over their second moment, of which ``of_means`` is the means' part.

    >>> spread(torch.tensor(1.0), torch.tensor(0.25))
    tensor(0.7500)
    """
    share = 1 - of_means / torch.where(moment > 0, moment, 1.0)
    return torch.where(moment > 0, share.clamp_min(0), 0.0)


def around_means(C: Tensor, C_means: Tensor) -> Tensor:
    """Return the eigenvalues, descending, of a correlation matrix without the means' part.

    >>> around_means(torch.eye(2).double(), torch.diag(torch.tensor([0.0, 1.0]).double()))
    tensor([1., 0.], dtype=torch.float64)
    """
    return _above_noise(descending(C - C_means), C.diagonal().sum())


def _above_noise(lam: Tensor, scale: Tensor) -> Tensor:
    """Replace eigenvalues by zero that are rounding of a difference of matrices of that scale."""
    return lam.where(lam > ROUNDING * scale, 0.0)
