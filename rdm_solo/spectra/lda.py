r"""Linear discriminant analysis with one class for each sample: what LiDAR is the rank of.

Views of one sample differ by :math:`\Sigma_w`, samples by :math:`\Sigma_b`. With two views, a and
b, both follow from sums that are kept anyway: with :math:`C_z = \sum(aa^T + bb^T)/2n`,
:math:`C_+ = \sum(ab^T + ba^T)/2n` and the mean :math:`\mu`,

.. math::
    \Sigma_w = C_z - C_+, \qquad
    \Sigma_b = \frac{n}{n-1}\left(\frac{C_z + C_+}{2} - \mu\mu^T\right).
"""

import torch
from torch import Tensor

from rdm_solo.messages import UserError
from rdm_solo.spectra.matrices import exponential_entropy, noise_floor

# LiDAR's defaults, in the scale of the features.
DELTA, EPSILON = 1e-4, 1e-8


def lidar_of_views(views: Tensor, delta: float, eps: float) -> Tensor:
    """LiDAR of float64 views ``(n, q, k)``.

    With fewer rows than dimensions it works in the rows' own space, which has all that differs.

    >>> views = torch.eye(3).double()[:, None].repeat(1, 2, 1)
    >>> round(float(lidar_of_views(views, 1e-4, 1e-8)), 4)
    2.0
    """
    n, q, k = views.shape
    if n * q < k:
        views = torch.linalg.qr(views.reshape(n * q, k).mT).R.mT.reshape(n, q, -1)
    return smoothed_rank(discriminant_eigenvalues(*of_views(views), delta), k, eps)


def of_views(views: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`\Sigma_w` and :math:`\Sigma_b` of q views each of n samples.

    Shapes: ``(n, q, k) -> (k, k), (k, k)``.

    >>> S_w, S_b = of_views(torch.tensor([[[1.0], [3.0]], [[5.0], [7.0]]]))
    >>> S_w, S_b
    (tensor([[2.]]), tensor([[8.]]))
    """
    n, q, _ = views.shape
    means = views.mean(1)
    within = (views - means[:, None]).flatten(0, 1)
    around = means - means.mean(0)
    return within.mT @ within / (n * (q - 1)), around.mT @ around / (n - 1)


def of_pairs(C_z: Tensor, C_plus: Tensor, mean: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    r""":math:`\Sigma_w` and :math:`\Sigma_b` of two views each of so many samples.

    Shapes: ``(k, k), (k, k), (k,) -> (k, k), (k, k)``.

    >>> C = torch.eye(2).double()
    >>> S_w, S_b = of_pairs(C, C, torch.zeros(2), pairs=2)
    >>> S_w.norm(), S_b.diagonal()
    (tensor(0., dtype=torch.float64), tensor([2., 2.], dtype=torch.float64))
    """
    return C_z - C_plus, ((C_z + C_plus) / 2 - mean.outer(mean)) * (pairs / (pairs - 1))


def discriminant_eigenvalues(S_w: Tensor, S_b: Tensor, delta: float) -> Tensor:
    r"""The eigenvalues, descending, of :math:`\Sigma_w^{-1/2} \Sigma_b \Sigma_w^{-1/2}` with
    :math:`\Sigma_w = S_w + \delta I`.

    >>> S_b = torch.diag(torch.tensor([4.0, 2.0]))
    >>> discriminant_eigenvalues(torch.eye(2).double(), S_b, 1.0).round(decimals=12)
    tensor([2., 1.], dtype=torch.float64)
    """
    S_b = S_b.to(S_w)
    S_w = S_w + delta * torch.eye(len(S_w)).to(S_w)
    # Any root of the inverse gives the same eigenvalues, and Cholesky's is the cheapest.
    root, failed = torch.linalg.cholesky_ex(S_w)
    if bool(failed):  # rounding of large features is more than delta
        lam, u = torch.linalg.eigh(S_w)
        inverse = u * lam.clamp_min(max(delta, float(noise_floor(lam)))).rsqrt()
        between = inverse.mT @ S_b @ inverse
    else:
        half = torch.linalg.solve_triangular(root, S_b, upper=False)
        between = torch.linalg.solve_triangular(root, half.mT, upper=False)
    found: Tensor = torch.linalg.eigvalsh(between)
    return found.flip(0).clamp_min(0)


def smoothed_rank(lam: Tensor, k: int, eps: float) -> Tensor:
    r"""The exponential entropy of :math:`p = (\lambda+\epsilon)/\sum(\lambda+\epsilon)` over k
    eigenvalues, of which those that are missing are zero; 0 where :math:`\epsilon` outweighs them.

    >>> round(float(smoothed_rank(torch.ones(2).double(), 4, 1e-8)), 5)
    2.0
    """
    lam = torch.cat([lam, lam.new_zeros(k - len(lam))])
    rank = exponential_entropy(lam + eps)
    return torch.where(lam.sum() < k * eps, 0.0, rank)


def check_views(views: Tensor) -> None:
    """Refuse views of fewer than two samples, or fewer than two of each.

    >>> check_views(torch.ones(2, 2, 1))
    """
    if views.ndim != 3 or len(views) < 2 or views.shape[1] < 2 or not views.shape[2]:
        raise UserError(
            "lidar takes views of shape (n, q, k) with n > 1 samples and q > 1 views of each, got "
            f"{tuple(views.shape)}."
        )
