"""Measures of patch tokens against independent float64 forms."""

import numpy as np
import pytest
import torch
from scipy.special import entr

from rdm_solo.spectra.patches import gram_drift, patch_grams, patch_rank


def rank_by_svd(tokens: torch.Tensor) -> float:
    """Return the mean effective rank of centred patches from NumPy's singular values."""
    x = tokens.double().numpy()
    sigma = np.linalg.svd(x - x.mean(1, keepdims=True), compute_uv=False)
    lam = sigma**2
    q = lam / lam.sum(1, keepdims=True)
    return np.exp(entr(q).sum(1)).mean()


def drift_by_pairs(tokens: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the drift from the cosine of each pair."""
    cosines = []
    for x in (tokens.double(), reference.double()):
        pairs = x[:, :, None], x[:, None]
        cosines.append(torch.cosine_similarity(*pairs, dim=3))
    now, before = cosines
    return float((now - before).norm() / before.norm())


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
