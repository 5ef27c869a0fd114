"""Measures of patch tokens against independent float64 forms, and on patches that degrade."""

import numpy as np
import pytest
import torch

from rdm_solo.observe import neighbours
from rdm_solo.spectra.patches import gram_drift, patch_grams, patch_rank

CLASSES = 4


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


def test_rank_is_exact_where_the_answer_is_known():
    assert float(patch_rank(torch.ones(2, 5, 3))) == 0
    line = torch.arange(6.0)[None, :, None] * torch.ones(4)
    assert float(patch_rank(line)) == pytest.approx(1)
    assert float(patch_rank(torch.eye(5)[None])) == pytest.approx(4), "their mean is taken out"
    assert float(patch_rank(torch.cat([torch.eye(5)[None], torch.ones(1, 5, 5)]))) == (
        pytest.approx(2)
    ), "the mean over images"


def test_a_value_that_is_not_finite_gives_nan():
    tokens = torch.ones(2, 5, 3)
    tokens[0, 0, 0] = torch.inf
    assert patch_rank(tokens).isnan()


def test_drift_does_not_depend_on_lengths_and_is_zero_without_change():
    tokens = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    grams = patch_grams(tokens)
    assert float(gram_drift(grams, grams)) == 0
    lengths = torch.arange(1.0, 11).view(2, 5, 1)
    assert float(gram_drift(patch_grams(lengths * tokens), grams)) < 1e-7


def degraded(smoothing: float, n: int = 60, patches: int = 16, k: int = 24):
    """Return tokens whose patches move towards their image's mean, which stays, and labels."""
    draw = torch.Generator().manual_seed(1)
    labels = torch.arange(n) % CLASSES
    means = torch.randn(CLASSES, 1, k, generator=draw)[labels]
    means = means + 0.8 * torch.randn(n, 1, k, generator=draw)
    details = torch.randn(n, patches, k, generator=draw)
    details = details - details.mean(1, keepdim=True)
    # Neighbouring patches become alike: each takes the mean over more and more of the others.
    distances = (torch.arange(patches)[:, None] - torch.arange(patches)).abs()
    weights = (-distances / (1e-3 + 5 * smoothing)).softmax(1)
    return means + (1 - smoothing) * (weights @ details), labels


def test_both_measures_see_patches_that_become_alike_while_knn_does_not():
    ranks, drifts, accuracies = [], [], []
    reference = patch_grams(degraded(0.0)[0])
    for smoothing in (0.0, 0.3, 0.6, 0.9):
        tokens, labels = degraded(smoothing)
        ranks.append(float(patch_rank(tokens)))
        drifts.append(float(gram_drift(patch_grams(tokens), reference)))
        memory, queries = tokens.mean(1).split(30)
        memory, queries = [(memory, labels[:30])], [(queries, labels[30:])]
        accuracies.append(float(neighbours.accuracy(memory, queries, k=5, temperature=0.07).knn))
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[-1] < ranks[0] / 2
    assert drifts == sorted(drifts)
    assert drifts[0] == 0
    assert drifts[-1] > 0.3
    assert min(accuracies) > 80
    assert max(accuracies) - min(accuracies) < 5
