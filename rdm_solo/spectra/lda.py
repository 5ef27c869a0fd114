r"""LiDAR, the rank of a linear discriminant analysis with one class for each sample.

Views of one sample differ by :math:`\Sigma_w`, samples by :math:`\Sigma_b`. With two views a and b
both follow from sums that are kept anyway: with :math:`C_z = \sum(aa^T + bb^T)/2n`,
:math:`C_+ = \sum(ab^T + ba^T)/2n` and the mean :math:`\mu`,

.. math::
    \Sigma_w = C_z - C_+, \qquad
    \Sigma_b = \frac{n}{n-1}\left(\frac{C_z + C_+}{2} - \mu\mu^T\right).
"""

import torch
from torch import Tensor

from rdm_solo.messages import UserError
from rdm_solo.spectra.matrices import descending, exponential_entropy, noise_floor

# LiDAR's defaults, in the scale of the features.
DELTA, EPSILON = 1e-4, 1e-8


def lidar(views: Tensor, delta: float = DELTA, eps: float = EPSILON) -> Tensor:
    r"""Return LiDAR, :math:`\exp(-\sum_i p_i\log p_i)` (Thilak et al., ICLR 2024).

    Here :math:`p = (\lambda+\epsilon)/\sum(\lambda+\epsilon)` with the eigenvalues of
    :math:`\Sigma_w^{-1/2} \Sigma_b \Sigma_w^{-1/2}`, the views' means :math:`\mu_i`, their mean
    :math:`\mu`, and

    .. math::
        \Sigma_b = \frac{\sum_i (\mu_i-\mu)(\mu_i-\mu)^T}{n-1}, \qquad
        \Sigma_w = \frac{\sum_{ij} (x_{ij}-\mu_i)(x_{ij}-\mu_i)^T}{n(q-1)} + \delta I

    :math:`\delta` has the scale of the features: on rows of length 1 it is not small for k above a
    thousand. Where :math:`\epsilon` outweighs all eigenvalues, the definition would give k; this
    gives 0.

    Shapes: ``(n, q, k) -> ()``, q views of each of n samples.

    >>> views = torch.tensor([[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2, [[-1.0, -1.0]] * 2])
    >>> round(float(lidar(views)), 4)
    1.7548
    """
    if views.ndim != 3 or len(views) < 2 or views.shape[1] < 2 or not views.shape[2]:
        raise UserError(
            "lidar takes views of shape (n, q, k) with n > 1 samples and q > 1 views of each, got "
            f"{tuple(views.shape)}."
        )
    views = views.detach().double()
    if not bool(views.isfinite().all()):
        return views.new_tensor(torch.nan)
    n, q, k = views.shape
    if n * q < k:  # the rows' own space holds all differences
        views = torch.linalg.qr(views.reshape(n * q, k).mT).R.mT.reshape(n, q, -1)
    return smoothed_rank(discriminant_eigenvalues(*of_views(views), delta), k, eps)


def of_views(views: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`\Sigma_w` and :math:`\Sigma_b` of q views of each of n samples.

    Shapes: ``(n, q, k) -> (k, k), (k, k)``.
    """
    n, q, _ = views.shape
    means = views.mean(1)
    within = (views - means[:, None]).flatten(0, 1)
    around = means - means.mean(0)
    return within.mT @ within / (n * (q - 1)), around.mT @ around / (n - 1)


def of_pairs(C_z: Tensor, C_plus: Tensor, mean: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    r"""Return :math:`\Sigma_w` and :math:`\Sigma_b` of two views, from the sums that are kept."""
    return C_z - C_plus, ((C_z + C_plus) / 2 - mean.outer(mean)) * (pairs / (pairs - 1))


def discriminant_eigenvalues(S_w: Tensor, S_b: Tensor, delta: float) -> Tensor:
    r"""Return the eigenvalues of :math:`(S_w + \delta I)^{-1/2} S_b (S_w + \delta I)^{-1/2}`."""
    S_b = S_b.to(S_w)
    S_w = S_w + delta * torch.eye(len(S_w)).to(S_w)
    # Any root of the inverse gives the same eigenvalues, and Cholesky's is the cheapest.
    root, failed = torch.linalg.cholesky_ex(S_w)
    if bool(failed):  # rounding of large features exceeds delta
        lam, u = torch.linalg.eigh(S_w)
        inverse = u * lam.clamp_min(max(delta, float(noise_floor(lam)))).rsqrt()
        between = inverse.mT @ S_b @ inverse
    else:
        half = torch.linalg.solve_triangular(root, S_b, upper=False)
        between = torch.linalg.solve_triangular(root, half.mT, upper=False)
    return descending(between)


def smoothed_rank(lam: Tensor, k: int, eps: float) -> Tensor:
    """Return LiDAR's entropy over k eigenvalues, of which the missing ones are zero."""
    lam = torch.cat([lam, lam.new_zeros(k - len(lam))])
    rank = exponential_entropy(lam + eps)
    return torch.where(lam.sum() < k * eps, 0.0, rank)
