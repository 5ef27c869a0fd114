"""INTL and LeJEPA against independent implementations in NumPy."""

import numpy as np
import pytest
import torch
from support.small_methods import batch, classifier_loss, loss_of, make
from torch import Tensor
from torch.autograd import grad

from rdm_solo.methods import isotropic
from rdm_solo.spectra.rows import directions


def draw(n: int, k: int) -> list[Tensor]:
    """Draw two views of the same rows."""
    rng = torch.Generator().manual_seed(n)
    x, noise1, noise2 = torch.randn(3, n, k, generator=rng, dtype=torch.float64)
    return [x + noise1, x + noise2]


def intl(views: list[Tensor], steps: int, weight: float) -> float:
    """Whiten by a polynomial of the covariance's eigenvalues, and average 2 - 2 cos."""
    n, k = views[0].shape
    rows = []
    trace = 0.0
    for view in views:
        x = view.numpy()
        if n <= k:
            x = x.T
        x = x - x.mean(0)
        lam, vectors = np.linalg.eigh(np.cov(x.T))
        total = lam.sum()
        gain = np.ones_like(lam)
        for _ in range(steps):
            gain = 1.5 * gain - 0.5 * gain**3 * lam / total
        x = x @ (vectors * gain / np.sqrt(total)) @ vectors.T
        variances = np.diag(np.cov(x.T))
        trace += np.sum((variances - 1) ** 2)
        if n <= k:
            x = x.T
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
        rows.append(x / lengths)
    cosine = np.sum(rows[0] * rows[1], axis=1).mean()
    trace_weight = weight * (np.log2(min(n, k)) - 3)
    return 2 - 2 * cosine + trace_weight * trace


def lejepa(views: list[Tensor], weight: float, slices: int, seed: int) -> float:
    """Integrate over t from -3 to 3 by the trapezoidal rule, view by view."""
    n, k = views[0].shape
    axes = directions(k, slices, seed).numpy()
    mean = sum(views).numpy() / 2
    t = np.linspace(-3, 3, 33)
    normal = np.exp(-(t**2) / 2)
    distance = statistic = 0.0
    for view in views:
        z = view.numpy()
        distance += np.mean((z - mean) ** 2) / 2
        projections = z @ axes
        waves = np.exp(1j * projections[..., None] * t)  # (n, slices, t)
        error = np.abs(waves.mean(0) - normal) ** 2 * normal
        integrals = np.trapezoid(error, t, axis=1)
        statistic += n * integrals.mean() / 2
    return (1 - weight) * distance + weight * statistic


@pytest.mark.parametrize(("n", "k"), [(64, 16), (16, 32)])
def test_intls_loss_whitens_the_smaller_side(n, k):
    views = draw(n, k)
    expected = intl(views, 4, 0.01)
    assert isotropic.intl_loss(views, 4, 0.01).item() == pytest.approx(expected, rel=1e-10)


def test_lejepas_loss_tests_each_view_apart():
    views = draw(64, 8)
    actual = isotropic.lejepa_loss(views, 0.3, 32, seed=5)
    expected = lejepa(views, 0.3, 32, seed=5)
    assert actual.item() == pytest.approx(expected, rel=1e-6)


def both_losses(views: list[Tensor]) -> Tensor:
    intl_loss = isotropic.intl_loss(views, 4, 0.01)
    return intl_loss + isotropic.lejepa_loss(views, 0.3, 32, seed=5)


def test_collapsed_outputs_have_a_finite_loss_and_gradient():
    views = [torch.ones(16, 32, requires_grad=True) for _ in range(2)]
    loss = both_losses(views)
    gradients = grad(loss, views)
    assert loss.isfinite()
    assert torch.stack(gradients).isfinite().all()


@pytest.mark.parametrize("name", ["intl", "lejepa"])
def test_the_gradient_is_the_slope_of_the_independent_loss(name):
    """Compare the gradient at the projector's last weight with finite differences."""
    model = make(f"method={name}", "method.kwargs.proj_output_dim=8").double()
    indices, images, labels = batch(32)
    data = indices, [x.double() for x in images], labels
    loss = loss_of(model, data)
    weight = model.projector[-1].weight
    (gradient,) = grad(loss, weight)
    options = model.options

    @torch.no_grad()
    def independent(step: float) -> float:
        weight[2, 3] += step
        z = [model.projector(model.backbone(x)) for x in data[1]]
        weight[2, 3] -= step
        if name == "intl":
            value = intl(z, options["steps"], options["trace_weight"])
        else:
            value = lejepa(z, options["sigreg_weight"], options["slices"], seed=0)
        return value + float(classifier_loss(model, data))

    assert loss.item() == pytest.approx(independent(0), rel=1e-5)
    slope = (independent(1e-5) - independent(-1e-5)) / 2e-5
    assert float(gradient[2, 3]) == pytest.approx(slope, rel=2e-2, abs=2e-5)


def _gradient(rank: int, size: int) -> Tensor:
    """Return the gradient at a process's part of the first view."""
    parts = [z.chunk(size)[rank].requires_grad_() for z in draw(32, 8)]
    both_losses(isotropic.gathered(parts)).backward()
    return parts[0].grad / size  # DDP averages over processes


@pytest.mark.process
def test_the_losses_are_those_of_the_global_batch(worlds):
    parts = worlds(2).run(_gradient)
    torch.testing.assert_close(torch.cat(parts), _gradient(0, 1))
