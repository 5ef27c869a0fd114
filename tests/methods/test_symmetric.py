"""Theorem 1, and the centre in it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize
from torch.testing import assert_close

from rdm_solo.methods.symmetric import Center, symmetric_loss


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40),
    k=st.integers(1, 24),
    seed=st.integers(0, 10**6),
    offset=st.floats(0, 20),
)
def test_theorem_1(n, k, seed, offset):
    """Draw two views of unit rows around a common point."""
    rng = torch.Generator().manual_seed(seed)
    noise = torch.randn(2, n, k, generator=rng, dtype=torch.float64)
    z1, z2 = normalize(noise + offset, dim=2)
    rows = torch.cat([z1, z2])
    mu = rows.mean(0)
    deviations = rows - mu
    variance = deviations.square().sum(1).mean()
    centred = symmetric_loss(z1, z2, mu)
    plain = symmetric_loss(z1, z2)
    expected = plain - variance + 1
    assert_close(centred, expected, rtol=0, atol=1e-12)
    # At any other centre the loss is lower by the squared distance.
    elsewhere = symmetric_loss(z1, z2, mu + 1)
    assert_close(elsewhere, centred - k, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "weight"),
    [
        ("ema", 0.9),
        ("batch", 0.0),
    ],
)
def test_the_centre_averages_over_steps(kind, weight):
    center = Center(4, kind, momentum=0.9)
    expected = torch.zeros(4)
    for _ in range(5):
        z = torch.randn(10, 4, requires_grad=True)
        mean = z.detach().mean(0)
        expected = weight * expected + (1 - weight) * mean
        mu = center(z)
        assert_close(mu, expected)
        assert not mu.requires_grad
    assert torch.equal(center.state_dict()["value"], mu)


def compare(rank, world):
    z = torch.arange(48.0).reshape(12, 4)
    center = Center(4, "batch")
    part = z.chunk(world)[rank]
    assert_close(center(part), z.mean(0))


def test_the_batch_is_that_of_all_processes(worlds):
    worlds(2).run(compare)
