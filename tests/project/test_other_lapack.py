"""No test of the mathematics depends on which signs and bases LAPACK happens to choose."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT
from support.other_lapack import other_eigh, other_svd

QUICK = ["rdm_solo/filters", "rdm_solo/spectra", "rdm_solo/theory", "tests/theory/test_effect.py"]
ROOMS = ["tests/filters", "tests/theory", "tests/spectra"]
# Their other processes have another LAPACK than this one, which the bits of a sum may show.
IN_PROCESSES = ("test_device_filters", "test_distributed", "test_sampling")


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("where", [QUICK, ROOMS], ids=["doctests", "rooms"])
def test_the_tests_pass_with_other_vectors(where):
    ignored = [f"--ignore-glob=*{name}.py" for name in IN_PROCESSES]
    out = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "support.other_lapack"),
            *("-p", "no:cacheprovider", "--tb=short", *ignored, *where),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stdout[-3000:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_vectors_are_those_of_the_same_matrix(dtype):
    """Two equal values, two of zero, and one alone."""
    draw = torch.Generator().manual_seed(0)
    q, _ = torch.linalg.qr(torch.randn(6, 6, generator=draw, dtype=torch.float64))
    p, _ = torch.linalg.qr(torch.randn(9, 6, generator=draw, dtype=torch.float64))
    sigma = torch.tensor([3.0, 2.0, 2.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    exact = 50 * torch.finfo(dtype).eps
    a, symmetric = ((p * sigma) @ q.mT).to(dtype), ((q * sigma) @ q.mT).to(dtype)
    for full in (False, True):
        found = torch.linalg.svd(a, full_matrices=full)
        u, s, vh = other_svd(_numbers(), *found)
        torch.testing.assert_close(u[:, :6] * s @ vh, a, rtol=0, atol=exact)
        torch.testing.assert_close(u.mT @ u, torch.eye(len(u.mT), dtype=dtype), rtol=0, atol=exact)
    lam, v = torch.linalg.eigh(symmetric)
    other, w = other_eigh(_numbers(), lam, v)
    torch.testing.assert_close(w * other @ w.mT, symmetric, rtol=0, atol=exact)
    mixed = (v.mT @ w).abs()
    assert 0.01 < mixed[0, 1] < 0.999  # two of zero
    assert 0.01 < mixed[3, 4] < 0.999  # two of two
    torch.testing.assert_close(mixed[[2, 5], [2, 5]], torch.ones(2, dtype=dtype))


def _numbers() -> np.random.Generator:
    return np.random.default_rng(3)
