"""Both branches' eigenvalues and eigenspaces from N x N Gram matrices, for N < k."""

import torch
from torch import Tensor

from rdm_solo.spectra import rows
from rdm_solo.spectra.moments import Moments, above_noise
from rdm_solo.spectra.ranks import descending, noise_floor


def from_rows(
    p: Tensor, z: Tensor, z_plus: Tensor | None, y: Tensor, length: int, centred: bool
) -> Moments:
    r"""Return the moments of float64 rows ``(N, k)``, padded or cut to ``length`` entries.

    With :math:`ZZ^T/N = W \Lambda W^T`, the eigenvectors :math:`u_i = Z^T w_i / \sqrt{N\lambda_i}`
    are needed only in products such as :math:`P u_i = PZ^T w_i / \sqrt{N\lambda_i}`.
    """
    n = len(z)
    gram_z, gram_p = z @ z.mT, p @ p.mT
    lam_z, w = torch.linalg.eigh(gram_z / n)
    lam_z, w = lam_z.flip(0).clamp_min(0), w.flip(1)
    real = lam_z > noise_floor(lam_z)
    w = w * torch.where(real, (n * lam_z).rsqrt(), 0.0)  # Z^T w: eigenvectors, zero for noise

    lam_p = descending(gram_p / n)
    p_u = (p @ z.mT) @ w
    lam_y = lam_z if torch.equal(y, z) else lam_p if torch.equal(y, p) else descending(y @ y.mT / n)
    means = gram_z.mean(0)
    centred_gram = (gram_z - means - means[:, None] + means.mean()) / n
    lam_covariance = above_noise(descending(centred_gram), lam_z.sum())
    energy_and_norm = (p_u.square().sum(0) / n, _norm(p_u, gram_p) / n)
    moments = Moments(lam_p, lam_z, lam_y, *energy_and_norm, lam_covariance)
    if centred:
        y_centred = y - y.mean(0)
        lam_centred = above_noise(descending(y_centred @ y_centred.mT / n), lam_y.max())
        moments = moments._replace(lam_centred=lam_centred)
    if z_plus is not None:
        moments = moments._replace(**_positives(gram_z, z @ z_plus.mT, z_plus @ z_plus.mT, w))
    # With few rows, the eigenvalues that were not computed are zero.
    pad = torch.nn.functional.pad
    padded = {
        name: pad(x[:length], (0, max(0, length - len(x))))
        for name, x in moments._asdict().items()
        if x is not None
    }
    return Moments(**padded)


def _positives(gram: Tensor, cross: Tensor, gram_plus: Tensor, w: Tensor) -> dict[str, Tensor]:
    r"""Return the moments of :math:`C_+ = B^T J B / 2N` for rows :math:`B = [Z; Z_+]`.

    J exchanges the halves. With :math:`BB^T = R^T R` the eigenvalues equal those of
    :math:`R J R^T / 2N`. The columns of R are the rows of B in a basis of their span, so LiDAR is
    computed from R.
    """
    n = len(gram)
    both = torch.cat([torch.cat([gram, cross], 1), torch.cat([cross.mT, gram_plus], 1)])
    s, q = torch.linalg.eigh(both)
    s = torch.where(s > noise_floor(s), s, 0.0)  # square roots of noise would not be small
    root = s.sqrt()[:, None] * q.mT
    z_u, plus_u = gram @ w, cross.mT @ w
    moments = {
        "lam_plus": descending(root.roll(n, 1) @ root.mT / (2 * n)),
        "energy_plus": (z_u * plus_u).sum(0) / n,
        "norm_plus": _norm(torch.cat([plus_u, z_u]), both) / (2 * n),
    }
    if n > 1:
        scatter = rows.view_scatter(torch.stack(root.mT.split(n), 1))
        moments["lam_lidar"] = rows.discriminant_eigenvalues(*scatter, rows.DELTA)
    return moments


def _norm(coefficients: Tensor, gram: Tensor) -> Tensor:
    """Return the norm of each column's linear combination of rows, from the rows' Gram matrix."""
    return (coefficients * (gram @ coefficients)).sum(0).clamp_min(0).sqrt()
