"""Both branches' eigenvalues and eigenspaces from N x N Gram matrices, for N < k."""

import torch
from torch import Tensor

from rdm_solo.spectra import rows
from rdm_solo.spectra.moments import Moments, above_noise
from rdm_solo.spectra.ranks import descending, descending_eigenvectors, noise_floor


def from_rows(
    p: Tensor, z: Tensor, z_plus: Tensor | None, y: Tensor, length: int, centred: bool
) -> Moments:
    r"""Return the moments of float64 rows ``(N, k)``, padded or cut to ``length`` entries.

    With :math:`ZZ^T/N = W \Lambda W^T`, the eigenvectors :math:`u_i = Z^T w_i / \sqrt{N\lambda_i}`
    are needed only in products such as :math:`P u_i = PZ^T w_i / \sqrt{N\lambda_i}`.
    """
    n = len(z)
    gram_z, gram_p = z @ z.mT, p @ p.mT
    lam_z, w = descending_eigenvectors(gram_z / n)
    is_signal = lam_z > noise_floor(lam_z)
    # Z^T w are the eigenvectors, and zero for noise.
    w = w * torch.where(is_signal, (n * lam_z).rsqrt(), 0.0)

    lam_p = descending(gram_p / n)
    if torch.equal(y, z):
        lam_y = lam_z
    elif torch.equal(y, p):
        lam_y = lam_p
    else:
        lam_y = descending(y @ y.mT / n)
    p_u = (p @ z.mT) @ w
    means = gram_z.mean(0)
    centred_gram = (gram_z - means - means[:, None] + means.mean()) / n
    moments = Moments(
        lam_p=lam_p,
        lam_z=lam_z,
        lam_y=lam_y,
        energy_p=p_u.square().sum(0) / n,
        norm_p=_norm(p_u, gram_p) / n,
        lam_covariance=above_noise(descending(centred_gram), lam_z.sum()),
    )
    if centred:
        y_centred = y - y.mean(0)
        lam_centred = descending(y_centred @ y_centred.mT / n)
        moments = moments._replace(lam_centred=above_noise(lam_centred, lam_y.max()))
    if z_plus is not None:
        moments = _add_positives(moments, gram_z, z @ z_plus.mT, z_plus @ z_plus.mT, w)
    # With few rows, the eigenvalues that were not computed are zero.
    padded = {}
    for name, values in moments._asdict().items():
        if values is not None:
            missing = max(0, length - len(values))
            padded[name] = torch.nn.functional.pad(values[:length], (0, missing))
    return Moments(**padded)


def _add_positives(
    moments: Moments, gram: Tensor, cross: Tensor, gram_plus: Tensor, w: Tensor
) -> Moments:
    r"""Add the moments of :math:`C_+ = B^T J B / 2N` for rows :math:`B = [Z; Z_+]`.

    J exchanges the halves. With :math:`BB^T = R^T R` the eigenvalues equal those of
    :math:`R J R^T / 2N`. The columns of R are the rows of B in a basis of their span, so LiDAR is
    computed from R.
    """
    n = len(gram)
    top = torch.cat([gram, cross], 1)
    bottom = torch.cat([cross.mT, gram_plus], 1)
    both = torch.cat([top, bottom])
    lam, q = torch.linalg.eigh(both)
    lam = lam.where(lam > noise_floor(lam), 0.0)  # square roots of noise would not be small
    root = lam.sqrt()[:, None] * q.mT
    z_u, plus_u = gram @ w, cross.mT @ w
    moments = moments._replace(
        lam_plus=descending(root.roll(n, 1) @ root.mT / (2 * n)),
        energy_plus=(z_u * plus_u).sum(0) / n,
        norm_plus=_norm(torch.cat([plus_u, z_u]), both) / (2 * n),
    )
    if n == 1:
        return moments
    views = torch.stack(root.mT.split(n), 1)
    S_w, S_b = rows.view_scatter(views)
    return moments._replace(lam_lidar=rows.discriminant_eigenvalues(S_w, S_b))


def _norm(coefficients: Tensor, gram: Tensor) -> Tensor:
    """Return the norm of each column's linear combination of rows, from the rows' Gram matrix."""
    squares = (coefficients * (gram @ coefficients)).sum(0)
    return squares.clamp_min(0).sqrt()
