"""A stack of batches is filtered batch by batch, with one decomposition."""

import math

import pytest
import torch
from conftest import features

from rdm_solo.filters import SpectralFilter
from rdm_solo.methods.chosen_filter import shipped_filters

FILTERS = {name: chosen for name, chosen in shipped_filters().items() if chosen.spectral}


def views(kind, n, k):
    x = torch.stack([features(kind, n, k, seed=seed) for seed in range(3)])
    x[1, 4] = math.nan
    x[2, 6:] = x[2, :1]  # few directions, so the views keep different numbers of them
    return x


def filtered(module, batches):
    """Return the output and the gradient of a loss, or None for a target."""
    leaves = [x.clone().requires_grad_() for x in batches]
    outputs = [module(leaf) for leaf in leaves]
    if outputs[0].requires_grad:
        weights = features("gaussian", *outputs[0].shape[-2:]).to(outputs[0])
        sum((out * weights).sum() for out in outputs).backward()
    return torch.stack(outputs).detach(), [leaf.grad for leaf in leaves]


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("shape", [(16, 48), (48, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("momentum", [0, 0.9])
def test_a_stack_has_the_bits_of_single_calls(name, shape, dtype, momentum):
    batches = views("1/i", *shape).to(dtype)
    chosen = FILTERS[name]
    for branch in ("online", "target"):
        options = {"p": chosen.p, "momentum": momentum, **chosen.parameters}
        expected, grads = filtered(SpectralFilter(branch, chosen.function, **options), batches)
        module = SpectralFilter(branch, chosen.function, **options)
        (actual,), (grad,) = filtered(module, [batches])
        assert torch.equal(actual, expected)
        if branch == "online":
            assert torch.equal(grad, torch.stack(grads))
