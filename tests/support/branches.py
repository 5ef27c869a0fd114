"""Outputs of both branches, views of samples, and a comparison of results of BranchSpectra."""

import pytest
import torch
from conftest import features
from torch import Tensor

from rdm_solo.spectra import Spectra


def outputs(n: int, k: int) -> list[Tensor]:
    """Return online outputs, targets, positives and projections."""
    return [
        features("1/i", n, k, seed=0),
        features("batchnorm", n, k, seed=1),
        features("1/i", n, k, seed=2),
        features("gaussian", n, k, seed=3),
    ]


def random_views(n: int, q: int, k: int, seed: int = 0, steepness: float = 0.5) -> Tensor:
    """Return q views of each of n samples, (n, q, k), in float64."""
    draw = torch.Generator().manual_seed(seed)
    drawn = torch.randn(n, q + 1, k, generator=draw, dtype=torch.float64)
    means, noise = drawn.split([1, q], dim=1)
    i = torch.arange(1, k + 1, dtype=torch.float64)
    scale = i**-steepness
    return means * scale + 0.3 * noise * scale.sqrt()


def assert_same(actual: Spectra, expected: Spectra, tolerance: float = 1e-9) -> None:
    """Compare scalars, and arrays relative to their largest entry."""
    differing = actual.scalars.keys() ^ expected.scalars.keys()
    if actual.sampled != expected.sampled:
        # A sample of rows consists of pairs of views in any order, and has no RankMe.
        differing -= {"lidar/target", "rankme/online", "rankme/target"}
    assert not differing
    for name in actual.scalars.keys() & expected.scalars.keys():
        atol = tolerance
        if name == "uniformity/target":
            # Distances between float32 rows. Measured: 4.8e-7, with kernels of four instruction
            # sets and two threads.
            atol = 1.5e-6
        close = pytest.approx(expected.scalars[name], rel=tolerance, abs=atol)
        assert actual.scalars[name] == close, name
    arrays = actual.arrays()
    expected_arrays = expected.arrays()
    del expected_arrays["sampled"]
    for name, array in expected_arrays.items():
        atol = tolerance * float(array.nan_to_num().abs().max())
        torch.testing.assert_close(
            arrays[name],
            array,
            rtol=tolerance,
            atol=atol,
            equal_nan=True,
            msg=name,
        )
