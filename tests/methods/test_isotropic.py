"""INTL and LeJEPA against independent implementations in NumPy."""

import numpy as np
import pytest
import torch
from support.small_methods import batch, classifier_loss, loss_of, make
from torch.autograd import grad

from rdm_solo.methods import isotropic
from rdm_solo.spectra.rows import directions


def draw(n, k):
    """Draw two views of the same rows."""
    rng = torch.Generator().manual_seed(n)
    x, noise1, noise2 = torch.randn(3, n, k, generator=rng, dtype=torch.float64)
    return [x + noise1, x + noise2]


def intl(views, steps, weight):
    """Whiten by a polynomial of the covariance's eigenvalues, and average 2 - 2 cos."""
    n, k = views[0].shape
    cosines = 1.0
    trace = 0.0
    for view in views:
        x = view.numpy()
        if n <= k:
            x = x.T
        x = x - x.mean(0)
        covariance = np.cov(x.T)
        lam, vectors = np.linalg.eigh(covariance)
        total = lam.sum()
        gain = np.ones_like(lam)
        for _ in range(steps):
            gain = 1.5 * gain - 0.5 * gain**3 * lam / total
        gain = gain / np.sqrt(total)
        x = x @ (vectors * gain) @ vectors.T
        variances = x.var(0, ddof=1)
        trace += np.sum((variances - 1) ** 2)
        if n <= k:
            x = x.T
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
        cosines = cosines * (x / lengths)
    cosine = cosines.sum(1).mean()
    d = min(n, k)
    trace_weight = weight * (np.log2(d) - 3)
    return 2 - 2 * cosine + trace_weight * trace


def lejepa(views, weight, slices, seed):
    """Integrate over t from -3 to 3 by the trapezoidal rule, view by view."""
    n, k = views[0].shape
    axes = directions(k, slices, seed).numpy()
    mean = sum(views).numpy() / 2
    t = np.linspace(-3, 3, 33)
    square = t**2
    normal = np.exp(-square / 2)
    loss = 0.0
    for view in views:
        z = view.numpy()
        distance = np.mean((z - mean) ** 2)
        projections = z @ axes
        phases = projections[..., None] * t  # (n, slices, t)
        waves = np.exp(1j * phases).mean(0)
        error = np.abs(waves - normal) ** 2
        integrals = np.trapezoid(error * normal, t, axis=1)
        statistic = n * integrals.mean()
        loss += (1 - weight) * distance + weight * statistic
    return loss / 2


def test_intls_loss_whitens_rows_if_there_are_fewer():
    views = draw(16, 32)
    actual = isotropic.intl_loss(views, 4, 0.01)
    expected = intl(views, 4, 0.01)
    assert actual.item() == pytest.approx(expected, rel=1e-10)


def both_losses(views):
    intl_loss = isotropic.intl_loss(views, 4, 0.01)
    return intl_loss + isotropic.lejepa_loss(views, 0.3, 32, seed=5)


def test_collapsed_outputs_have_a_finite_loss_and_gradient():
    x = torch.ones(16, 32, requires_grad=True)
    loss = both_losses([x, x])
    (gradient,) = grad(loss, x)
    assert loss.isfinite()
    assert gradient.isfinite().all()


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
    def independent(step):
        weight[2, 3] += step
        features = [model.backbone(x) for x in data[1]]
        z = [model.projector(x) for x in features]
        weight[2, 3] -= step
        if name == "intl":
            value = intl(z, options["steps"], options["trace_weight"])
        else:
            value = lejepa(z, options["sigreg_weight"], options["slices"], seed=0)
        return value + float(classifier_loss(model, data))

    expected = independent(0)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    rise = independent(1e-5) - independent(-1e-5)
    actual = float(gradient[2, 3])
    assert actual == pytest.approx(rise / 2e-5, rel=2e-2, abs=2e-5)


def _gradient(rank, size):
    """Return the gradient at a process's part of the first view."""
    parts = [z.chunk(size)[rank] for z in draw(32, 8)]
    first = parts[0].requires_grad_()
    views = isotropic.gathered(parts)
    both_losses(views).backward()
    return first.grad / size  # DDP averages over processes


@pytest.mark.process
def test_the_losses_are_those_of_the_global_batch(worlds):
    parts = worlds(2).run(_gradient)
    expected = _gradient(0, 1)
    torch.testing.assert_close(torch.cat(parts), expected)
