"""Measures of patch tokens against independent float64 forms."""

import numpy as np
import pytest
import torch

from rdm_solo.spectra.patches import gram_drift, patch_grams, patch_rank


def rank_by_svd(tokens: torch.Tensor) -> float:
    """Return the mean effective rank of centred patches from NumPy's singular values."""
    ranks = []
    for image in tokens.double().numpy():
        sigma = np.linalg.svd(image - image.mean(0), compute_uv=False)
        q = sigma**2 / (sigma**2).sum()
        q = q[q > 0]
        ranks.append(np.exp(-(q * np.log(q)).sum()))
    return float(np.mean(ranks))


def drift_by_pairs(tokens: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the drift from one cosine at a time."""
    differences, squares = 0.0, 0.0
    for image, image_before in zip(tokens.double().numpy(), reference.double().numpy()):
        for i in range(len(image)):
            for j in range(len(image)):
                cosines = []
                for x in (image, image_before):
                    cosines.append(x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j]))
                differences += (cosines[0] - cosines[1]) ** 2
                squares += cosines[1] ** 2
    return float(np.sqrt(differences / squares))


@pytest.mark.parametrize("shape", [(3, 9, 20), (3, 20, 9), (2, 4, 4)])
def test_rank_and_drift_are_those_of_the_definitions(shape):
    draw = torch.Generator().manual_seed(0)
    tokens, reference = torch.randn(2, *shape, generator=draw) + 0.5
    assert float(patch_rank(tokens)) == pytest.approx(rank_by_svd(tokens), rel=1e-9)
    drift = float(gram_drift(patch_grams(tokens), patch_grams(reference)))
    assert drift == pytest.approx(drift_by_pairs(tokens, reference), rel=1e-9)
    grams = patch_grams(tokens)
    assert gram_drift(grams, grams) == 0


def test_the_rank_of_equal_patches_is_zero_and_of_what_is_not_finite_nan():
    tokens = torch.ones(2, 5, 3)
    assert patch_rank(tokens) == 0
    tokens[0, 0, 0] = torch.inf
    assert patch_rank(tokens).isnan()
