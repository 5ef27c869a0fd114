"""Batches on which a GPU's solvers have failed: the tool for collapse must not die of collapse."""

import pytest
import torch
from support.collapsed import KINDS, errors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DEVICE = "cuda"
SHAPES = [(256, 2048), (2048, 2048), (4096, 256)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_collapsed_batches_are_filtered(kind, shape):
    results = errors(kind, shape, DEVICE)
    wrong = {name: error for name, error in results.items() if not error < 1}
    assert wrong == {}
