"""Both branches' eigenvalues and eigenspaces from N x N Gram matrices, for N < k."""

import torch
from torch import Tensor

from rdm_solo.spectra.comparison import cosine
from rdm_solo.spectra.moments import Moments, above_noise
from rdm_solo.spectra.ranks import descending, descending_eigenvectors, noise_floor
from rdm_solo.spectra.rows import discriminant_eigenvalues, view_scatter


def from_rows(
    p: Tensor,
    z: Tensor,
    z_plus: Tensor | None,
    y: Tensor,
    length: int,
    centred: bool,
) -> Moments:
    r"""Return the moments of float64 rows ``(N, k)``, padded or cut to ``length`` entries.

    With :math:`ZZ^T/N = W \Lambda W^T`, the eigenvectors :math:`u_i = Z^T w_i / \sqrt{N\lambda_i}`
    are needed only in products such as :math:`P u_i = PZ^T w_i / \sqrt{N\lambda_i}`.
    """
    n = len(z)
    gram_z = z @ z.mT
    gram_p = p @ p.mT
    lam_z, w = descending_eigenvectors(gram_z / n)
    # Z^T w are the eigenvectors, and zero for noise.
    is_signal = lam_z > noise_floor(lam_z)
    scale = (n * lam_z).rsqrt()
    w = w * torch.where(is_signal, scale, 0.0)

    lam_p = descending(gram_p / n)
    if torch.equal(y, z):
        lam_y = lam_z
    elif torch.equal(y, p):
        lam_y = lam_p
    else:
        lam_y = descending(y @ y.mT / n)
    # P u, whose squares sum to N u^T C_p u, and N C_p u = P^T (P u).
    p_u = (p @ z.mT) @ w
    energy_p = p_u.square().sum(0) / n
    norm_p = _norm(p_u, gram_p) / n
    cosine_p = cosine(energy_p, norm_p)
    means = gram_z.mean(0)
    centred_gram = gram_z - means - means[:, None] + means.mean()
    lam_covariance = descending(centred_gram / n)
    lam_covariance = above_noise(lam_covariance, lam_z.sum())
    moments = Moments(lam_p, lam_z, lam_y, energy_p, cosine_p, lam_covariance)
    if centred:
        y = y - y.mean(0)
        gram_y = y @ y.mT
        lam_centred = descending(gram_y / n)
        moments.lam_centred = above_noise(lam_centred, lam_y.max())
    if z_plus is not None:
        cross = z @ z_plus.mT
        gram_plus = z_plus @ z_plus.mT
        _add_positives(moments, gram_z, cross, gram_plus, w)

    def resize(values: Tensor) -> Tensor:
        # With few rows, the eigenvalues that were not computed are zero.
        missing = values.new_zeros(max(0, length - len(values)))
        return torch.cat([values[:length], missing])

    moments.apply(resize)
    return moments


def _add_positives(
    moments: Moments, gram: Tensor, cross: Tensor, gram_plus: Tensor, w: Tensor
) -> None:
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
    sigma = lam.sqrt()
    root = sigma[:, None] * q.mT
    exchanged = root.roll(n, 1)
    C_plus = exchanged @ root.mT / (2 * n)
    moments.lam_plus = descending(C_plus)
    # Z u, Z_+ u and J B u, where B^T (J B u) = 2 N C_+ u.
    z_u = gram @ w
    plus_u = cross.mT @ w
    energy = (z_u * plus_u).sum(0) / n
    j_b_u = torch.cat([plus_u, z_u])
    norm = _norm(j_b_u, both) / (2 * n)
    moments.cosine_plus = cosine(energy, norm)
    if n > 1:
        views = torch.stack(root.mT.split(n), 1)
        S_w, S_b = view_scatter(views)
        moments.lam_lidar = discriminant_eigenvalues(S_w, S_b)


def _norm(coefficients: Tensor, gram: Tensor) -> Tensor:
    """Return the norm of each column's linear combination of rows, from the rows' Gram matrix."""
    products = coefficients * (gram @ coefficients)
    squares = products.sum(0).clamp_min(0)
    return squares.sqrt()
