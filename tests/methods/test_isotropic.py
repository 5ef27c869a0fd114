"""INTL and LeJEPA against independent implementations in NumPy."""

import copy

import numpy as np
import pytest
import torch
from support.small_methods import batch, loss_of, make
from torch.nn.functional import cross_entropy

from rdm_solo.methods import isotropic
from rdm_solo.spectra.rows import directions


def views(n: int, k: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(n)
    x = torch.randn(n, k, generator=draw, dtype=torch.float64)
    return [x + torch.randn(n, k, generator=draw, dtype=torch.float64) for _ in range(2)]


def intl(views: list[np.ndarray], steps: int = 4, weight: float = 0.01) -> float:
    """Whiten by a polynomial of the covariance's eigenvalues, and average 2 - 2 cos."""
    n, k = views[0].shape
    whitened, trace = [], 0.0
    for x in views if n > k else [z.T for z in views]:
        x = x - x.mean(0)
        lam, vectors = np.linalg.eigh(np.cov(x.T))
        gain = np.ones_like(lam)
        for _ in range(steps):
            gain = 1.5 * gain - 0.5 * gain**3 * lam / lam.sum()
        x = x @ (vectors * gain / np.sqrt(lam.sum())) @ vectors.T
        whitened.append(x if n > k else x.T)
        trace += np.sum((np.diag(np.cov(x.T)) - 1) ** 2)
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in whitened)
    return 2 - 2 * np.mean(np.sum(a * b, 1)) + weight * (np.log2(min(n, k)) - 3) * trace


def lejepa(views: list[np.ndarray], axes: np.ndarray, weight: float) -> float:
    """Integrate over t from -3 to 3 by the trapezoidal rule, view by view."""
    mean = sum(views) / len(views)
    prediction = np.mean([np.mean((z - mean) ** 2) for z in views])
    t = np.linspace(-3, 3, 33)
    statistics = []
    for z in views:
        wave = np.exp(1j * (z @ axes)[..., None] * t).mean(0)  # (slices, t)
        error = np.abs(wave - np.exp(-(t**2) / 2)) ** 2 * np.exp(-(t**2) / 2)
        statistics.append(len(z) * np.trapezoid(error, t, axis=1).mean())
    return (1 - weight) * prediction + weight * np.mean(statistics)


@pytest.mark.parametrize(("n", "k"), [(64, 16), (16, 32)])
def test_intls_loss_whitens_the_smaller_side(n, k):
    got = isotropic.intl_loss(views(n, k))
    assert float(got) == pytest.approx(intl([z.numpy() for z in views(n, k)]), rel=1e-10)


def test_lejepas_loss_tests_each_view_apart():
    axes = directions(8, 32, seed=5)
    got = isotropic.lejepa_loss(views(64, 8), 0.3, 32, seed=5)
    expected = lejepa([z.numpy() for z in views(64, 8)], axes.numpy(), 0.3)
    assert float(got) == pytest.approx(expected, rel=1e-6)


def test_collapsed_outputs_have_a_finite_loss_and_gradient():
    for n, k in ((64, 16), (16, 32)):
        z = [torch.ones(n, k, requires_grad=True) for _ in range(2)]
        for loss in (isotropic.intl_loss(z), isotropic.lejepa_loss(z, 0.1, 8, seed=0)):
            loss.backward()
            assert loss.isfinite()
            assert z[0].grad.isfinite().all()


@pytest.mark.parametrize("name", ["intl", "lejepa"])
def test_the_first_steps_descend_the_independent_loss(name):
    """Each step's direction is the finite-difference slope of the NumPy loss."""
    model = make(f"method={name}", "method.kwargs.proj_output_dim=8").double()
    data = batch(32)
    data = (data[0], [x.double() for x in data[1]], data[2])
    weight = model.projector[-1].weight
    for _ in range(3):
        model.zero_grad()
        loss = loss_of(model, data)
        loss.backward()
        step = torch.zeros_like(weight)
        step[2, 3] = 1e-5
        values = [_independent(name, copy.deepcopy(model), data, sign * step) for sign in (1, -1)]
        assert float(loss) == pytest.approx(_independent(name, model, data, 0), rel=1e-5)
        slope = (values[0] - values[1]) / 2e-5
        assert float(weight.grad[2, 3]) == pytest.approx(slope, rel=2e-2, abs=2e-5)
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.0 if p.grad is None else 0.01 * p.grad


def _independent(name: str, model, data, change) -> float:
    """Return the loss of a model whose projector's last weight is changed."""
    with torch.no_grad():
        model.projector[-1].weight += change
        features = [model.backbone(x) for x in data[1]]
        z = [model.projector(x).numpy() for x in features]
        logits = [model.classifier(x) for x in features]
        classifier = float(sum(cross_entropy(x, data[2]) for x in logits) / 2)
        kwargs = model.settings.kwargs
        if name == "intl":
            return intl(z, kwargs.steps, kwargs.trace_weight) + classifier
        axes = directions(8, kwargs.slices, seed=0).numpy()
        return lejepa(z, axes, kwargs.sigreg_weight) + classifier


def _parts(rank: int, size: int) -> dict[str, torch.Tensor]:
    """Return the mean over processes of the gradient at the inputs of both losses."""
    gradients = {}
    for name in ("intl", "lejepa"):
        leaves = [z.chunk(size)[rank].clone().requires_grad_() for z in views(32, 8)]
        whole = isotropic.gathered(leaves)
        if name == "intl":
            loss = isotropic.intl_loss(whole)
        else:
            loss = isotropic.lejepa_loss(whole, 0.3, 32, seed=5)
        loss.backward()
        gradients[name] = leaves[0].grad / size  # DDP averages over processes
    return gradients


@pytest.mark.process
def test_the_losses_are_those_of_the_global_batch(worlds):
    alone = _parts(0, 1)
    parts = worlds(2).run(_parts)
    for name, expected in alone.items():
        got = torch.cat([part[name] for part in parts])
        torch.testing.assert_close(got, expected)
