"""Both branches' eigenvalues and eigenspaces from k x k correlation matrices."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rdm_solo.spectra.comparison import energy_and_cosine
from rdm_solo.spectra.ranks import ROUNDING, descending, descending_eigenvectors
from rdm_solo.spectra.rows import discriminant_eigenvalues


@dataclass
class Moments:
    """Descending eigenvalues of C_p, C_z, C_y and C_+, and the inputs of alignments and LiDAR.

    For each eigenvector u of C_z and C = C_p or C_+, ``energy`` is ``u^T C u`` and ``cosine`` is
    ``cos(u, C u)``. ``lam_covariance`` describes centred targets, ``lam_centred`` centred
    projections.
    """

    lam_p: Tensor
    lam_z: Tensor
    lam_y: Tensor
    energy_p: Tensor
    cosine_p: Tensor
    lam_covariance: Tensor
    lam_centred: Tensor | None = None
    lam_plus: Tensor | None = None
    cosine_plus: Tensor | None = None
    lam_lidar: Tensor | None = None

    def apply(self, function: Callable[[Tensor], Tensor]) -> None:
        """Replace each tensor by the function's result."""
        for name, values in vars(self).items():
            if values is not None:
                setattr(self, name, function(values))


def from_matrices(
    C_p: Tensor,
    C_z: Tensor,
    C_plus: Tensor | None,
    C_y: Tensor,
    C_means: Tensor | None,
    mean_z: Tensor,
    pairs: int,
) -> Moments:
    """Return the moments of correlation matrices ``(k, k)``.

    ``C_means`` is the correlation matrix of the steps' means. LiDAR is computed only if the targets
    are two views each of ``pairs`` samples.
    """
    lam_z, u = descending_eigenvectors(C_z)
    lam_p = descending(C_p)
    # A run filters at most one branch, so the projections are the other branch's outputs.
    if torch.equal(C_y, C_z):
        lam_y = lam_z
    elif torch.equal(C_y, C_p):
        lam_y = lam_p
    else:
        lam_y = descending(C_y)
    energy_p, cosine_p = energy_and_cosine(C_p, u)
    lam_covariance = centred_eigenvalues(C_z, mean_z.outer(mean_z))
    moments = Moments(lam_p, lam_z, lam_y, energy_p, cosine_p, lam_covariance)
    if C_means is not None:
        moments.lam_centred = centred_eigenvalues(C_y, C_means)
    if C_plus is not None:
        moments.lam_plus = descending(C_plus)
        _, moments.cosine_plus = energy_and_cosine(C_plus, u)
        if pairs > 1:
            # LiDAR of n samples with two views a and b, since C_z = sum(a a^T + b b^T) / 2n and
            # C_+ = sum(a b^T + b a^T) / 2n. The samples' means are (a + b) / 2.
            S_w = C_z - C_plus
            C_samples = (C_z + C_plus) / 2
            C_centred = C_samples - mean_z.outer(mean_z)
            S_b = C_centred * (pairs / (pairs - 1))
            moments.lam_lidar = discriminant_eigenvalues(S_w, S_b)
    return moments


def centred_eigenvalues(C: Tensor, C_means: Tensor) -> Tensor:
    """Return the descending eigenvalues of ``C - C_means``, with rounding noise set to zero."""
    lam = descending(C - C_means)
    return above_noise(lam, C.diagonal().sum())


def above_noise(lam: Tensor, scale: Tensor) -> Tensor:
    """Set eigenvalues of at most ``ROUNDING * scale``, which are rounding errors, to zero."""
    return lam.where(lam > ROUNDING * scale, 0.0)
