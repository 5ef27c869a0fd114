"""INTL and LeJEPA against independent implementations in NumPy."""

import numpy as np
import pytest
import torch
from support.small_methods import batch, classifier_loss, loss_of, make

from rdm_solo.methods import isotropic
from rdm_solo.spectra.rows import directions


def draw(n: int, k: int) -> list[torch.Tensor]:
    """Draw two views of the same rows."""
    rng = torch.Generator().manual_seed(n)
    x = torch.randn(n, k, generator=rng, dtype=torch.float64)
    return [x + torch.randn(n, k, generator=rng, dtype=torch.float64) for _ in range(2)]


def intl(views: list[torch.Tensor], steps: int = 4, weight: float = 0.01) -> float:
    """Whiten by a polynomial of the covariance's eigenvalues, and average 2 - 2 cos."""
    n, k = views[0].shape
    whitened, trace = [], 0.0
    for view in views:
        x = view.numpy() if n > k else view.numpy().T
        x = x - x.mean(0)
        lam, vectors = np.linalg.eigh(np.cov(x.T))
        gain = np.ones_like(lam)
        for _ in range(steps):
            gain = 1.5 * gain - 0.5 * gain**3 * lam / lam.sum()
        x = x @ (vectors * gain / np.sqrt(lam.sum())) @ vectors.T
        trace += np.sum((np.diag(np.cov(x.T)) - 1) ** 2)
        rows = x if n > k else x.T
        whitened.append(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    cosine = np.mean(np.sum(whitened[0] * whitened[1], axis=1))
    return 2 - 2 * cosine + weight * (np.log2(min(n, k)) - 3) * trace


def lejepa(views: list[torch.Tensor], weight: float, slices: int, seed: int) -> float:
    """Integrate over t from -3 to 3 by the trapezoidal rule, view by view."""
    arrays = [view.numpy() for view in views]
    axes = directions(views[0].shape[1], slices, seed).numpy()
    mean = sum(arrays) / len(arrays)
    t = np.linspace(-3, 3, 33)
    distances, statistics = [], []
    for z in arrays:
        distances.append(np.mean((z - mean) ** 2))
        wave = np.exp(1j * (z @ axes)[..., None] * t).mean(0)  # (slices, t)
        error = np.abs(wave - np.exp(-(t**2) / 2)) ** 2 * np.exp(-(t**2) / 2)
        statistics.append(len(z) * np.trapezoid(error, t, axis=1).mean())
    return (1 - weight) * np.mean(distances) + weight * np.mean(statistics)


@pytest.mark.parametrize(("n", "k"), [(64, 16), (16, 32)])
def test_intls_loss_whitens_the_smaller_side(n, k):
    views = draw(n, k)
    assert float(isotropic.intl_loss(views)) == pytest.approx(intl(views), rel=1e-10)


def test_lejepas_loss_tests_each_view_apart():
    views = draw(64, 8)
    actual = isotropic.lejepa_loss(views, 0.3, 32, seed=5)
    assert float(actual) == pytest.approx(lejepa(views, 0.3, 32, seed=5), rel=1e-6)


@pytest.mark.parametrize(("n", "k"), [(64, 16), (16, 32)])
def test_collapsed_outputs_have_a_finite_loss_and_gradient(n, k):
    views = [torch.ones(n, k, requires_grad=True) for _ in range(2)]
    for loss in (isotropic.intl_loss(views), isotropic.lejepa_loss(views, 0.1, 8, seed=0)):
        assert loss.isfinite()
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, views))


@pytest.mark.parametrize("name", ["intl", "lejepa"])
def test_the_gradient_is_the_slope_of_the_independent_loss(name):
    """Compare the gradient at the projector's last weight with finite differences."""
    model = make(f"method={name}", "method.kwargs.proj_output_dim=8").double()
    indices, images, labels = batch(32)
    data = indices, [x.double() for x in images], labels
    loss = loss_of(model, data)
    weight = model.projector[-1].weight
    (gradient,) = torch.autograd.grad(loss, weight)
    kwargs = model.settings.kwargs

    @torch.no_grad()
    def independent(step: float) -> float:
        weight[2, 3] += step
        z = [model.projector(model.backbone(x)) for x in data[1]]
        weight[2, 3] -= step
        if name == "intl":
            value = intl(z, kwargs.steps, kwargs.trace_weight)
        else:
            value = lejepa(z, kwargs.sigreg_weight, kwargs.slices, seed=0)
        return value + float(classifier_loss(model, data))

    assert loss.item() == pytest.approx(independent(0), rel=1e-5)
    slope = (independent(1e-5) - independent(-1e-5)) / 2e-5
    assert float(gradient[2, 3]) == pytest.approx(slope, rel=2e-2, abs=2e-5)


def _gradients(rank: int, size: int) -> list[torch.Tensor]:
    """Return the gradients of both losses at a process's part of the first view."""
    gradients = []
    for weight in (None, 0.3):
        parts = [z.chunk(size)[rank].clone().requires_grad_() for z in draw(32, 8)]
        views = isotropic.gathered(parts)
        if weight is None:
            loss = isotropic.intl_loss(views)
        else:
            loss = isotropic.lejepa_loss(views, weight, 32, seed=5)
        loss.backward()
        gradients.append(parts[0].grad / size)  # DDP averages over processes
    return gradients


@pytest.mark.process
def test_the_losses_are_those_of_the_global_batch(worlds):
    first, second = worlds(2).run(_gradients)
    actual = [torch.cat(parts) for parts in zip(first, second)]
    torch.testing.assert_close(actual, _gradients(0, 1))
