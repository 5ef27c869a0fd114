"""Both branches' eigenvalues and eigenspaces from k x k correlation matrices."""

from typing import NamedTuple

import torch
from torch import Tensor

from rdm_solo.spectra import rows
from rdm_solo.spectra.comparison import energy_and_norm
from rdm_solo.spectra.ranks import ROUNDING, descending, descending_eigenvectors


class Moments(NamedTuple):
    """Descending eigenvalues of C_p, C_z, C_y and C_+, and the inputs of alignments and LiDAR.

    For each eigenvector u of C_z and C = C_p or C_+, ``energy`` is ``u^T C u`` and ``norm`` is
    ``|C u|``. ``lam_covariance`` describes centred targets, ``lam_centred`` centred projections.
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
    lam_covariance = centred_eigenvalues(C_z, mean_z.outer(mean_z))
    moments = Moments(lam_p, lam_z, lam_y, *energy_and_norm(C_p, u), lam_covariance)
    if C_means is not None:
        moments = moments._replace(lam_centred=centred_eigenvalues(C_y, C_means))
    if C_plus is None:
        return moments
    energy, norm = energy_and_norm(C_plus, u)
    moments = moments._replace(lam_plus=descending(C_plus), energy_plus=energy, norm_plus=norm)
    if pairs < 2:
        return moments
    S_w, S_b = rows.pair_scatter(C_z, C_plus, mean_z, pairs)
    return moments._replace(lam_lidar=rows.discriminant_eigenvalues(S_w, S_b))


def centred_eigenvalues(C: Tensor, C_means: Tensor) -> Tensor:
    """Return the descending eigenvalues of ``C - C_means``, with rounding noise set to zero."""
    return above_noise(descending(C - C_means), C.diagonal().sum())


def above_noise(lam: Tensor, scale: Tensor) -> Tensor:
    """Set eigenvalues of at most ``ROUNDING * scale``, which are rounding errors, to zero."""
    return lam.where(lam > ROUNDING * scale, 0.0)
