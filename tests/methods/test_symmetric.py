"""Theorem 1, and the centre in it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_solo.ground.errors import UserError
from rdm_solo.methods.symmetric import Center, symmetric_loss


def views(n: int, k: int, seed: int, offset: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw two views of unit rows in float64, around a common point."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, k, generator=rng, dtype=torch.float64) + offset
    noise = (0.3 * torch.randn(n, k, generator=rng, dtype=torch.float64) for _ in range(2))
    z1, z2 = (torch.nn.functional.normalize(x + e, dim=1) for e in noise)
    return z1, z2


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40), k=st.integers(1, 24), seed=st.integers(0, 10**6), offset=st.floats(0, 20)
)
def test_theorem_1(n, k, seed, offset):
    z1, z2 = views(n, k, seed, offset)
    both = torch.cat([z1, z2])
    mu, variance = both.mean(0), (both - both.mean(0)).square().sum(1).mean()
    centred, plain = symmetric_loss(z1, z2, mu), symmetric_loss(z1, z2)
    torch.testing.assert_close(centred, plain - variance + 1, rtol=0, atol=1e-12)
    # At any other centre the loss is lower by the squared distance.
    off = symmetric_loss(z1, z2, mu + 1)
    torch.testing.assert_close(centred - off, torch.tensor(float(k)).double(), rtol=0, atol=1e-12)


def test_the_gradient_is_the_same_with_the_mean_stopped():
    gradients = []
    for stopped in (True, False):
        z1, z2 = (z.requires_grad_() for z in views(20, 6, 0))
        mu = torch.cat([z1, z2]).mean(0)
        symmetric_loss(z1, z2, mu.detach() if stopped else mu).backward()
        gradients.append(torch.cat([z1.grad, z2.grad]))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("kind", "kept"), [("ema", 0.9), ("batch", 0.0)])
def test_the_centre_averages_over_steps(kind, kept):
    center, expected = Center(4, kind, momentum=0.9), torch.zeros(4)
    for seed in range(5):
        z = torch.randn(10, 4, generator=torch.Generator().manual_seed(seed)).requires_grad_()
        expected = kept * expected + (1 - kept) * z.detach().mean(0)
        mu = center(z)
        torch.testing.assert_close(mu, expected)
        assert not mu.requires_grad
    assert torch.equal(center.state_dict()["value"], center.value)


@pytest.mark.parametrize("options", [{"kind": "mean"}, {"momentum": 1.5}])
def test_refusals(options):
    with pytest.raises(UserError, match=r"method\.center"):
        Center(4, **options)


def compare(rank: int, world: int) -> None:
    z = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Center(4, "batch")(z.chunk(world)[rank]), z.mean(0))


def test_the_batch_is_that_of_all_processes(worlds):
    worlds(2).run(compare)
