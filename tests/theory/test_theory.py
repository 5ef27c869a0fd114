"""The paper's lemmas and theorems on exact samples, as properties, and where they end."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rdm_solo import theory
from rdm_solo.spectra import correlation, effective_rank, filter_curve

few = settings(max_examples=25, deadline=None)
steps = st.floats(0.02, 0.98)
seeds = st.integers(0, 999)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Compare values of order one; measured errors are below 1e-13."""
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-11)


def normal(*shape: int, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def orthonormal(n: int, k: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(normal(n, k, seed=seed))[0]


def matrix(v: Tensor, lam: Tensor) -> Tensor:
    """Return the matrix with these eigenvectors and eigenvalues."""
    return (v * lam) @ v.mT


def eigenvalues(C: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(C).flip(0)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def low_passed(draw) -> tuple[Tensor, Tensor]:
    """Draw a target's spectrum, and an online spectrum that a low-pass filter made of it.

    Both follow from integers, so that different numbers differ by much.
    """
    lam_z = draw(st.lists(st.integers(1, 60), min_size=2, max_size=8))
    k = len(lam_z)
    falls = draw(st.lists(st.integers(0, 9), min_size=k - 1, max_size=k - 1).filter(any))
    smallest = draw(st.integers(1, 9))
    gain = vector(smallest, *falls).cumsum(0).flip(0) / 10
    lam_z = vector(*lam_z).sort(descending=True).values / sum(lam_z)
    return lam_z, theory.filtered_eigenvalues(lam_z, gain)


def factors(lam_p: Tensor, lam_z: Tensor, lam_plus: Tensor, alpha: float) -> Tensor:
    """Return the factors by which Theorem 4's step multiplies the online eigenvalues."""
    return theory.updated_eigenvalues(lam_p, lam_z, lam_plus, alpha) / lam_p


def pairs(lam_z: Tensor, lam_plus: Tensor, v: Tensor, n: int = 40) -> tuple[Tensor, Tensor]:
    """Return two views whose sample has exactly these spectra and eigenvectors."""
    k = len(lam_z)
    q = orthonormal(n, 2 * k, seed=1) * n**0.5
    common = q[:, :k] * ((lam_z + lam_plus) / 2).sqrt()
    different = q[:, k:] * ((lam_z - lam_plus) / 2).clamp_min(0).sqrt()
    return (common + different) @ v.mT, (common - different) @ v.mT


def train_predictor(z: Tensor, z_plus: Tensor, weight_decay: float) -> Tensor:
    """Return the predictor that an optimiser finds on the sample."""
    k = z.shape[1]
    W = torch.zeros(k, k, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [W],
        max_iter=300,
        line_search_fn="strong_wolfe",
        tolerance_grad=1e-11,
        tolerance_change=1e-14,
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (z @ W.mT - z_plus).square().sum(1).mean() / 2
        loss = loss + weight_decay / 2 * W.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return W.detach()


@pytest.mark.parametrize(("weight_decay", "k"), [(0.0, 4), (0.3, 4), (0.3, 8)])
def test_lemma_1_gives_what_training_finds(weight_decay, k):
    """With k = 8 > d = 6 correlations are singular, which needs weight decay."""
    d, n, noise = 6, 60, 0.7
    W_f = normal(k, d, seed=3)
    # Views whose sample moments are exactly those that the lemma assumes.
    q = orthonormal(n, 3 * d, seed=2) * n**0.5
    mean, noise_1, noise_2 = q.split(d, dim=1)
    z = (mean + noise * noise_1) @ W_f.mT
    z_plus = (mean + noise * noise_2) @ W_f.mT
    C_z, C_plus, W, C_p = theory.linear_setting(W_f, noise, weight_decay)
    assert_close(C_z, correlation(z))
    assert_close(C_plus, z.mT @ z_plus / n)
    assert_close(C_p, correlation(z @ W.mT))
    torch.testing.assert_close(W, train_predictor(z, z_plus, weight_decay), rtol=0, atol=1e-6)
    for C in (C_z, W, C_p):  # all share their eigenvectors
        assert_close(C @ C_plus, C_plus @ C)


@few
@given(seed=seeds, noise=st.floats(0, 2), weight_decay=st.floats(0.01, 3))
def test_lemma_1_is_low_pass_only_with_weight_decay(seed, noise, weight_decay):
    W_f = normal(5, 7, seed=seed)
    lam = eigenvalues(W_f @ W_f.mT)
    C_z, _, _, C_p = theory.linear_setting(W_f, noise, weight_decay)
    lam_p, lam_z = eigenvalues(C_p), eigenvalues(C_z)
    curve = filter_curve(lam_p, lam_z)
    assert_close(curve, lam / ((1 + noise**2) * lam + weight_decay))
    assert theory.kind(curve) == "low-pass"
    assert theory.rank_difference(lam_p, lam_z) > 1e-6
    C_z, _, _, C_p = theory.linear_setting(W_f, noise)
    gap = theory.rank_difference(eigenvalues(C_p), eigenvalues(C_z))
    assert gap == pytest.approx(0, abs=1e-10)


@few
@given(seed=seeds, m=st.integers(2, 4), weight_decay=st.sampled_from([0.0, 0.2]))
def test_theorem_2_holds_without_shared_eigenvectors(seed, m, weight_decay):
    """For a population of n samples with m views each, omega lies in [0, 1]."""
    z = normal(9, m, 4, seed=seed) * vector(3, 2, 1, 0.5) + normal(9, 1, 4, seed=seed + 1)
    C_z = correlation(z.flatten(0, 1))
    C_bar = theory.mean_correlation(z)
    W = theory.optimal_predictor(C_z, C_bar, weight_decay).requires_grad_()
    loss = (W @ C_z * W).sum() / 2 - (W * C_bar).sum() + weight_decay / 2 * W.square().sum()
    loss.backward()
    torch.testing.assert_close(W.grad, torch.zeros_like(W), rtol=0, atol=1e-11)
    gains = torch.linalg.eigvals(W.detach())
    omega = theory.ideal_filter(eigenvalues(C_bar), eigenvalues(C_z))
    assert gains.imag.abs().max() < 1e-9
    for values in (gains.real, omega):
        assert values.min() > -1e-11
        assert values.max() < 1 + 1e-11


def test_the_ideal_filter_is_the_predictors_spectrum_and_its_outputs_curve():
    v = orthonormal(3, 3)
    lam_z, lam_plus = vector(0.6, 0.3, 0.1), vector(0.5, 0.2, 0.01)
    C_z, C_plus = matrix(v, lam_z), matrix(v, lam_plus)
    omega = theory.ideal_filter(lam_plus, lam_z, weight_decay=0.05)
    W = theory.optimal_predictor(C_z, C_plus, weight_decay=0.05)
    assert_close(W, matrix(v, omega))
    z, z_plus = pairs(lam_z, lam_plus, v)
    torch.testing.assert_close(train_predictor(z, z_plus, 0.05), W, rtol=0, atol=1e-6)
    assert_close(filter_curve(eigenvalues(W @ C_z @ W.mT), lam_z), omega)
    assert theory.ideal_filter(vector(1, 1), vector(1, 0)).isnan().tolist() == [False, True]


@few
@given(spectra=low_passed(), seed=seeds)
def test_lemma_2_reproduces_the_online_correlation(spectra, seed):
    """Spectra of integers repeat eigenvalues, for which V is not unique."""
    lam_z, lam_p = spectra
    k = len(lam_z)
    v = orthonormal(k, k, seed)
    C_z = matrix(v, lam_z)
    shared = matrix(v, lam_p)
    assert_close(theory.equivalent_filter(shared, C_z), matrix(v, filter_curve(lam_p, lam_z)))
    for C_p in (shared, matrix(orthonormal(k, k, seed + 1), lam_p)):
        W = theory.equivalent_filter(C_p, C_z)
        assert_close(W @ C_z @ W.mT, C_p)


@few
@given(n=st.integers(1, 4), m=st.integers(2, 4), seed=seeds)
def test_lemma_3_holds_on_samples(n, m, seed):
    z = normal(n, m, 3, seed=seed)
    C_z, C_bar, C_plus, V = torch.zeros(4, 3, 3, dtype=torch.float64)
    for views in z:  # as the definitions read
        mean = sum(views) / m
        C_bar += torch.outer(mean, mean) / n
        for i, a in enumerate(views):
            C_z += torch.outer(a, a) / (n * m)
            V += torch.outer(a - mean, a - mean) / (n * m)
            for j, b in enumerate(views):
                if i != j:
                    C_plus += torch.outer(a, b) / (n * m * (m - 1))
    assert_close(theory.mean_correlation(z), C_bar)
    assert_close(theory.positive_correlation(z), C_plus)
    assert_close(theory.conditional_covariance(z), V)
    assert_close(C_bar + V, C_z)
    assert_close(C_bar - V / (m - 1), C_plus)


@few
@given(spectra=low_passed(), scale=st.floats(1e-3, 1e3))
def test_theorem_3_is_strict_unless_the_filter_is_constant(spectra, scale):
    lam_z, lam_p = spectra
    curve = filter_curve(lam_p, lam_z)
    assert theory.kind(curve) == "low-pass"
    assert theory.rank_difference(lam_p, lam_z) > 1e-7
    assert theory.rank_difference(lam_p.sqrt(), lam_z.sqrt()) > 1e-7  # singular values
    # A high-pass online filter puts the target below the online branch.
    assert theory.kind(1 / curve) == "high-pass"
    assert theory.rank_difference(lam_z, lam_p) < -1e-7
    assert theory.kind(filter_curve(scale * lam_z, lam_z)) == "none"
    assert theory.rank_difference(scale * lam_z, lam_z) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("curve", "tolerance", "expected"),
    [
        ([1, 2, 1, 2], 1e-6, "multi-band"),
        ([3, 2, 2, 1], 1e-6, "low-pass"),
        ([3, float("nan"), 2], 1e-6, "low-pass"),
        ([3, 2, 2.01, 1], 1e-6, "multi-band"),
        ([3, 2, 2.01, 1], 0.01, "low-pass"),
        (torch.linspace(1, 0.5, 100), 0.1, "low-pass"),  # in steps below the tolerance
        ([float("nan")], 1e-6, "none"),
        ([0, 0, 0], 1e-6, "none"),
    ],
)
def test_kinds_by_turns(curve, tolerance, expected):
    assert theory.kind(torch.as_tensor(curve), tolerance) == expected


@st.composite
def positive_pairs(draw) -> tuple[Tensor, Tensor, Tensor]:
    """Draw spectra of C_p, C_z and C_+."""
    lam_z, lam_p = draw(low_passed())
    k = len(lam_z)
    omega = draw(st.lists(st.integers(0, 10), min_size=k, max_size=k))
    omega = vector(*omega).sort(descending=True).values / 10
    return lam_p, lam_z, omega * lam_z


@few
@given(spectra=positive_pairs(), alpha=st.floats(0.02, 1.5))
def test_theorem_4_is_what_gradient_descent_does(spectra, alpha):
    lam_p, lam_z, lam_plus = spectra
    v = orthonormal(len(lam_z), len(lam_z))
    z, z_plus = pairs(lam_z, lam_plus, v)
    W = matrix(v, filter_curve(lam_p, lam_z))
    # One step of SGD on free features.
    features = (torch.cat([z, z_plus]) @ W).requires_grad_()
    loss = (features - torch.cat([z_plus, z])).square().sum() / 2
    loss.backward()
    torch.optim.SGD([features], lr=alpha).step()
    expected = theory.updated_eigenvalues(lam_p, lam_z, lam_plus, alpha)
    assert_close(correlation(features), matrix(v, expected))
    h, omega = (lam_z / lam_p).sqrt(), lam_plus / lam_z
    printed = (1 - alpha) ** 2 + alpha**2 * h**2 + 2 * alpha * (1 - alpha) * h * omega
    assert_close(factors(lam_p, lam_z, lam_plus, alpha), printed)


def test_theorem_4_with_directions_that_either_branch_has_lost():
    lam_p, lam_z, lam_plus = vector(0.5, 0, 1), vector(0.5, 0.5, 0), vector(0.5, 0.5, 3)
    new = theory.updated_eigenvalues(lam_p, lam_z, lam_plus, 0.1)
    torch.testing.assert_close(new, vector(0.5, 0.005, 0.81))


@few
@given(spectra=low_passed(), alpha=steps, slope=st.floats(0, 1))
def test_theorem_4_raises_the_rank_under_either_condition_and_between(spectra, alpha, slope):
    """omega = g^slope: slope 1 is W* (condition 1), slope 0 perfect alignment (condition 2)."""
    lam_z, lam_p = spectra
    gain = filter_curve(lam_p, lam_z)
    # Scale the gain, so that omega is at most 1.
    lam_p = lam_p / gain[0] ** 2
    lam_plus = lam_z * (gain / gain[0]) ** slope
    new = theory.updated_eigenvalues(lam_p, lam_z, lam_plus, alpha)
    assert theory.kind(factors(lam_p, lam_z, lam_plus, alpha), 1e-9) == "high-pass"
    assert (new.diff() <= 1e-15).all()  # Theorem 3 needs the same order
    assert effective_rank(new) > effective_rank(lam_p)


LAM = vector(1, 1)
EYE = torch.eye(2)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (theory.updated_eigenvalues, (LAM, LAM, LAM, 0.0), "alpha"),
        (theory.equivalent_filter, (EYE, torch.diag(vector(1, 0))), "no filter"),
        (theory.optimal_predictor, (EYE, EYE, -1.0), "weight_decay"),
        (theory.positive_correlation, (torch.ones(3, 1, 2),), "views"),
        (theory.mean_correlation, (EYE,), "views"),
    ],
)
def test_refusals_name_the_argument(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)
