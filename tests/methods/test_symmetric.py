"""Theorem 1 and the centre it speaks of, and the two symmetric methods."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_solo.methods.symmetric import Center, symmetric_loss


def views(n: int, k: int, seed: int, offset: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    """Two views of unit rows in float64, around a common point."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, k, generator=rng, dtype=torch.float64) + offset
    noise = (0.3 * torch.randn(n, k, generator=rng, dtype=torch.float64) for _ in range(2))
    z1, z2 = (torch.nn.functional.normalize(x + e, dim=1) for e in noise)
    return z1, z2


class TestTheorem1:
    @settings(max_examples=60, deadline=None)
    @given(
        n=st.integers(1, 40),
        k=st.integers(1, 24),
        seed=st.integers(0, 10**6),
        offset=st.floats(0, 20),
    )
    def test_the_centred_loss_is_the_uncentred_less_the_variance_plus_one(self, n, k, seed, offset):
        z1, z2 = views(n, k, seed, offset)
        mu = torch.cat([z1, z2]).mean(0)
        variance = (torch.cat([z1, z2]) - mu).square().sum(1).mean()
        centred = symmetric_loss(z1, z2, mu)
        torch.testing.assert_close(
            centred, symmetric_loss(z1, z2) - variance + 1, rtol=0, atol=1e-12
        )

    def test_without_unit_rows_it_does_not_hold(self):
        z1, z2 = (2 * z for z in views(20, 6, 0))
        mu = torch.cat([z1, z2]).mean(0)
        variance = (torch.cat([z1, z2]) - mu).square().sum(1).mean()
        # Rows of length 2: the one of the identity is the rows' squared length.
        identity = symmetric_loss(z1, z2) - variance
        torch.testing.assert_close(symmetric_loss(z1, z2, mu), identity + 4, rtol=0, atol=1e-12)
        # At any other centre the loss is lower by the square of the distance.
        off = symmetric_loss(z1, z2, mu + 1) - symmetric_loss(z1, z2, mu)
        torch.testing.assert_close(off, torch.tensor(-6.0, dtype=torch.float64))

    def test_the_gradient_is_the_same_with_the_mean_stopped(self):
        gradients = []
        for stopped in (True, False):
            z1, z2 = (z.requires_grad_() for z in views(20, 6, 0))
            mu = torch.cat([z1, z2]).mean(0)
            symmetric_loss(z1, z2, mu.detach() if stopped else mu).backward()
            gradients.append(torch.cat([z1.grad, z2.grad]))
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-15)


class TestCenter:
    def test_an_average_over_steps(self):
        center, want = Center(4, "ema", momentum=0.9), torch.zeros(4)
        for seed in range(5):
            z = torch.randn(10, 4, generator=torch.Generator().manual_seed(seed))
            want = 0.9 * want + 0.1 * z.mean(0)
            torch.testing.assert_close(center(z), want)

    def test_the_mean_of_the_batch_forgets(self):
        center = Center(4, "batch")
        for seed in range(3):
            z = torch.randn(10, 4, generator=torch.Generator().manual_seed(seed))
            torch.testing.assert_close(center(z), z.mean(0))

    def test_it_is_saved_and_passes_no_gradient(self):
        center = Center(4)
        z = torch.ones(2, 4, requires_grad=True)
        assert not center(z).requires_grad
        other = Center(4)
        other.load_state_dict(center.state_dict())
        assert torch.equal(other.value, center.value)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"kind": "mean"}, "method.center must be one of ema, batch, got 'mean'"),
            (
                {"momentum": 1.0},
                "method.center_momentum must be a number of at least 0",
            ),
        ],
    )
    def test_refusals(self, options, says):
        with pytest.raises(ValueError, match=says):
            Center(4, **options)


def compare(rank: int, world: int) -> None:
    z = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Center(4, "batch")(z.chunk(world)[rank]), z.mean(0))


def test_the_batch_is_that_of_all_processes(worlds):
    worlds(2).run(compare)
