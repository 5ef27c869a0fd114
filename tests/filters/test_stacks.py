"""A stack of batches is filtered batch by batch, with one decomposition."""

import math

import pytest
import torch
from conftest import features
from torch.nn.functional import normalize

from rdm_solo.filters import SpectralFilter


def views(n, k):
    x = torch.stack([features("1/i", n, k, seed=seed) for seed in range(3)])
    x[1, 4] = math.nan
    x[2, 6:] = x[2, :1]  # few directions, so the views keep different numbers of them
    return x


def unit_rows(module, batches):
    """Return the rows of the output and, of an online filter, of a gradient; all of length 1."""
    leaves = [x.clone().requires_grad_() for x in batches]
    outputs = [module(leaf) for leaf in leaves]
    results = [torch.cat(outputs)]
    if module.branch == "online":
        grads = torch.autograd.grad(outputs, leaves, [x.nan_to_num() for x in batches])
        results.append(torch.cat(grads))
    return [normalize(x.detach().flatten(0, -2).double()) for x in results]


@pytest.mark.parametrize(
    ("function", "options"),
    [
        ("pow", {"p": -0.5}),
        ("log1p", {}),
        ("directcopy", {}),
        ("iternorm", {}),  # a function of all singular values and of the number of rows
    ],
)
@pytest.mark.parametrize("momentum", [0, 0.9])
def test_a_stack_is_filtered_as_single_batches_are(function, options, momentum):
    for shape in [(16, 48), (48, 16)]:
        for dtype in [torch.float32, torch.float64, torch.bfloat16]:
            batches = views(*shape).to(dtype)
            for branch in ("online", "target"):
                single = SpectralFilter(branch, function, momentum=momentum, **options)
                stacked = SpectralFilter(branch, function, momentum=momentum, **options)
                expected = unit_rows(single, batches)
                actual = unit_rows(stacked, [batches])
                # Measured: the same bits on AVX-512, AVX2 and SSE4.2. A library may choose other
                # kernels for a stack; this allows a rounding, and 45 eps64 in decompositions.
                atol = torch.finfo(dtype).eps + 1e-14
                torch.testing.assert_close(actual, expected, rtol=0, atol=atol)
