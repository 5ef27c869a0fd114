"""Measures of patch tokens, the features of an image's patches."""

import torch
from torch import Tensor

from rdm_solo.spectra.ranks import effective_rank
from rdm_solo.spectra.rows import unit_rows


def patch_rank(tokens: Tensor) -> Tensor:
    r"""Return the mean over images of the effective rank of an image's patches around their mean.

    It lies between 1 and min(T - 1, k), and is 0 for an image whose patches are all equal.

    Shapes: ``(N, T, k) -> ()``.

    >>> image = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    >>> patch_rank(image[None])
    tensor(2., dtype=torch.float64)
    """
    x = tokens.detach().double()
    x = x - x.mean(1, keepdim=True)
    if x.shape[1] > x.shape[2]:
        x = x.mT  # the smaller of both Gram matrices has the same eigenvalues
    grams = x @ x.mT
    ranks = [effective_rank(gram) for gram in grams]
    return torch.stack(ranks).mean()


def patch_grams(tokens: Tensor) -> Tensor:
    r"""Return each image's matrix of cosines between patches, :math:`X X^T` with rows of length 1.

    Shapes: ``(N, T, k) -> (N, T, T)``.

    >>> patch_grams(torch.tensor([[[2.0, 0.0], [0.0, 3.0]]]))
    tensor([[[1., 0.],
             [0., 1.]]], dtype=torch.float64)
    """
    x = unit_rows(tokens.flatten(0, 1)).view(tokens.shape)
    return x @ x.mT


def gram_drift(grams: Tensor, reference: Tensor) -> Tensor:
    r"""Return :math:`\|X X^T - X_0 X_0^T\|_F / \|X_0 X_0^T\|_F` over all images.

    The numerator's square is the loss of Gram anchoring (Siméoni et al., "DINOv3", 2025, equation
    2), by which patches keep the similarities they had in an earlier epoch. ``grams`` and
    ``reference`` are the results of :func:`patch_grams` for the same images.

    Shapes: ``(N, T, T), (N, T, T) -> ()``.

    >>> gram_drift(torch.ones(1, 2, 2), torch.eye(2)[None])
    tensor(1., dtype=torch.float64)
    """
    reference = reference.double()
    difference = grams.double() - reference
    drift: Tensor = difference.norm() / reference.norm()
    return drift
