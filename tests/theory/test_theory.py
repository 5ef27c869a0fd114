"""The paper's lemmas and theorems on exact samples, as properties, and where they end."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_solo.spectra import correlation, effective_rank, filter_curve
from rdm_solo.theory import (
    conditional_covariance,
    equivalent_filter,
    filtered_eigenvalues,
    ideal_filter,
    kind,
    linear_setting,
    mean_correlation,
    optimal_predictor,
    positive_correlation,
    rank_difference,
    updated_eigenvalues,
)

few = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 999)


def assert_close(actual, expected):
    """Compare values of order one; measured errors are below 1e-13."""
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-11)


def normal(*shape, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def orthonormal(n, k, seed=0):
    x = normal(n, k, seed=seed)
    q, _ = torch.linalg.qr(x)
    return q


def matrix(v, lam):
    """Return the matrix with these eigenvectors and eigenvalues."""
    return (v * lam) @ v.mT


def eigenvalues(C):
    return torch.linalg.eigvalsh(C).flip(0)


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def low_passed(draw):
    """Draw a target's spectrum, and an online spectrum that a low-pass filter made of it.

    Both follow from integers, so that different numbers differ by much.
    """
    k = draw(st.integers(2, 8))
    integers = st.lists(st.integers(0, 9), min_size=k, max_size=k)
    numbers = sorted(draw(integers), reverse=True)
    lam_z = 1 + vector(*numbers)
    rises = vector(*draw(integers))
    rises[:2] += 1  # the smallest gain is positive, and the gains differ
    gain = rises.cumsum(0).flip(0) / 10
    lam_z = lam_z / lam_z.sum()
    return lam_z, filtered_eigenvalues(lam_z, gain)


def gradient(W, z, z_plus, weight_decay):
    """Return the gradient of the predictor's loss, which is convex: it is 0 for the best W only."""
    W = W.clone().requires_grad_()
    errors = z @ W.mT - z_plus
    penalty = weight_decay * W.square().sum()
    loss = errors.square().sum(1).mean() + penalty
    loss.backward()
    return W.grad / 2


@pytest.mark.parametrize(("weight_decay", "k"), [(0.0, 4), (0.3, 8)])
def test_lemma_1_gives_the_best_predictor_of_a_sample(weight_decay, k):
    """With k = 8 > d = 6 correlations are singular, which needs weight decay."""
    noise = 0.7
    W_f = normal(k, 6, seed=3)
    # Views whose sample moments are exactly those that the lemma assumes.
    q = orthonormal(60, 18, seed=2) * 60**0.5
    mean, noise_1, noise_2 = q.split(6, dim=1)
    z = (mean + noise * noise_1) @ W_f.mT
    z_plus = (mean + noise * noise_2) @ W_f.mT
    C_z, C_plus, W, C_p = linear_setting(W_f, noise, weight_decay)
    assert_close(C_z, correlation(z))
    assert_close(C_plus, z.mT @ z_plus / 60)
    assert_close(C_p, correlation(z @ W.mT))
    assert_close(gradient(W, z, z_plus, weight_decay), 0 * W)


@few
@given(
    seed=seeds,
    noise=st.floats(0, 2),
    weight_decay=st.floats(0.01, 3),
)
def test_lemma_1_is_low_pass_only_with_weight_decay(seed, noise, weight_decay):
    W_f = normal(5, 7, seed=seed)
    lam = eigenvalues(W_f @ W_f.mT)
    C_z, _, _, C_p = linear_setting(W_f, noise, weight_decay)
    lam_p = eigenvalues(C_p)
    lam_z = eigenvalues(C_z)
    curve = filter_curve(lam_p, lam_z)
    variance = (1 + noise**2) * lam
    assert_close(curve, lam / (variance + weight_decay))
    assert kind(curve) == "low-pass"
    assert rank_difference(lam_p, lam_z) > 1e-6
    _, _, _, C_p = linear_setting(W_f, noise)
    gap = rank_difference(eigenvalues(C_p), lam_z)
    assert gap == pytest.approx(0, abs=1e-10)


@few
@given(
    seed=seeds,
    m=st.integers(2, 4),
    weight_decay=st.sampled_from([0.0, 0.2]),
)
def test_theorem_2_holds_without_shared_eigenvectors(seed, m, weight_decay):
    """For a population of n samples with m views each, omega lies in [0, 1]."""
    noise = normal(9, m, 4, seed=seed)
    means = normal(9, 1, 4, seed=seed + 1)
    z = means + noise * vector(3, 2, 1, 0.5)
    views = z.flatten(0, 1)
    C_z = correlation(views)
    C_bar = mean_correlation(z)
    W = optimal_predictor(C_z, C_bar, weight_decay)
    # Pairs of a view with all views of its sample have the best predictor of their mean.
    means = z.mean(1).repeat_interleave(m, 0)
    assert_close(gradient(W, views, means, weight_decay), 0 * W)
    gains = torch.linalg.eigvals(W)
    omega = ideal_filter(eigenvalues(C_bar), eigenvalues(C_z))
    assert gains.imag.abs().max() < 1e-9
    values = torch.cat([gains.real, omega])
    assert values.min() > -1e-11
    assert values.max() < 1 + 1e-11


def test_the_ideal_filter_is_the_predictors_spectrum_and_its_outputs_curve():
    v = orthonormal(3, 3)
    lam_z = vector(0.6, 0.3, 0.1)
    lam_plus = vector(0.5, 0.2, 0.01)
    omega = ideal_filter(lam_plus, lam_z, weight_decay=0.05)
    C_z = matrix(v, lam_z)
    C_plus = matrix(v, lam_plus)
    W = optimal_predictor(C_z, C_plus, weight_decay=0.05)
    assert_close(W, matrix(v, omega))
    lam_p = eigenvalues(W @ C_z @ W.mT)
    assert_close(filter_curve(lam_p, lam_z), omega)
    omega = ideal_filter(vector(1, 1), vector(1, 0))
    assert omega.isnan().tolist() == [False, True]


@few
@given(spectra=low_passed(), seed=seeds)
def test_lemma_2_reproduces_the_online_correlation(spectra, seed):
    """Spectra of integers repeat eigenvalues, for which V is not unique."""
    lam_z, lam_p = spectra
    k = len(lam_z)
    v = orthonormal(k, k, seed)
    C_z = matrix(v, lam_z)
    W = equivalent_filter(matrix(v, lam_p), C_z)
    assert_close(W, matrix(v, filter_curve(lam_p, lam_z)))
    # Eigenvectors need not be shared.
    C_p = matrix(orthonormal(k, k, seed + 1), lam_p)
    W = equivalent_filter(C_p, C_z)
    assert_close(W @ C_z @ W.mT, C_p)


@few
@given(
    n=st.integers(1, 4),
    m=st.integers(2, 4),
    seed=seeds,
)
def test_lemma_3_holds_on_samples(n, m, seed):
    z = normal(n, m, 3, seed=seed)
    # The correlation of views a and b of the same sample, (m, m, k, k)
    C = torch.einsum("nai, nbj -> abij", z, z) / n
    is_same = torch.eye(m, dtype=torch.bool)
    C_z = C[is_same].mean(0)
    C_plus = C[~is_same].mean(0)
    C_bar = C.mean((0, 1))
    V = conditional_covariance(z)
    assert_close(mean_correlation(z), C_bar)
    assert_close(positive_correlation(z), C_plus)
    assert_close(C_bar + V, C_z)
    assert_close(C_bar - V / (m - 1), C_plus)


@few
@given(
    spectra=low_passed(),
    scale=st.floats(1e-3, 1e3),
)
def test_theorem_3_is_strict_unless_the_filter_is_constant(spectra, scale):
    lam_z, lam_p = spectra
    curve = filter_curve(lam_p, lam_z)
    assert kind(curve) == "low-pass"
    assert rank_difference(lam_p, lam_z) > 1e-7
    assert rank_difference(lam_p.sqrt(), lam_z.sqrt()) > 1e-7  # singular values
    # A high-pass online filter puts the target below the online branch.
    assert kind(1 / curve) == "high-pass"
    assert rank_difference(lam_z, lam_p) < -1e-7
    scaled = scale * lam_z
    assert kind(filter_curve(scaled, lam_z)) == "none"
    assert rank_difference(scaled, lam_z) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("curve", "tolerance", "expected"),
    [
        ([1, 2, 1, 2], 1e-6, "multi-band"),
        ([3, 2, 2, 1], 1e-6, "low-pass"),
        ([3, float("nan"), 2], 1e-6, "low-pass"),
        ([3, 2, 2.01, 1], 0.01, "low-pass"),
        (torch.linspace(1, 0.5, 100), 0.1, "low-pass"),  # in steps below the tolerance
        ([float("nan")], 1e-6, "none"),
    ],
)
def test_kinds_by_turns(curve, tolerance, expected):
    assert kind(torch.as_tensor(curve), tolerance) == expected


@few
@given(
    spectra=low_passed(),
    integers=st.lists(
        st.integers(0, 10),
        min_size=8,
        max_size=8,
    ),
    alpha=st.floats(0.02, 1.5),
)
def test_theorem_4_is_what_gradient_descent_does(spectra, integers, alpha):
    lam_z, lam_p = spectra
    k = len(lam_z)
    tenths = sorted(integers[:k], reverse=True)
    lam_plus = vector(*tenths) / 10 * lam_z
    v = orthonormal(k, k)
    W = matrix(v, filter_curve(lam_p, lam_z))
    # Two views whose sample has exactly these spectra and eigenvectors.
    q = orthonormal(40, 2 * k, seed=1) * 20**0.5
    common = q[:, :k] * (lam_z + lam_plus).sqrt()
    different = q[:, k:] * (lam_z - lam_plus).sqrt()
    z = (common + different) @ v.mT
    z_plus = (common - different) @ v.mT
    # One step of SGD on free features.
    online = torch.cat([z, z_plus])
    target = torch.cat([z_plus, z])
    features = (online @ W).requires_grad_()
    loss = (features - target).square().sum() / 2
    loss.backward()
    torch.optim.SGD([features], lr=alpha).step()
    expected = updated_eigenvalues(lam_p, lam_z, lam_plus, alpha)
    assert_close(correlation(features), matrix(v, expected))


def test_theorem_4_with_directions_that_either_branch_has_lost():
    lam_p = vector(0.5, 0, 1)
    lam_z = vector(0.5, 0.5, 0)
    lam_plus = vector(0.5, 0.5, 3)
    new = updated_eigenvalues(lam_p, lam_z, lam_plus, 0.1)
    torch.testing.assert_close(new, vector(0.5, 0.005, 0.81))


@few
@given(
    spectra=low_passed(),
    alpha=st.floats(0.02, 0.98),
    slope=st.floats(0, 1),
)
def test_theorem_4_raises_the_rank_under_either_condition_and_between(spectra, alpha, slope):
    """omega = g^slope: slope 1 is W* (condition 1), slope 0 perfect alignment (condition 2)."""
    lam_z, lam_p = spectra
    gain = filter_curve(lam_p, lam_z)
    # Scale the gain, so that omega is at most 1.
    lam_p = lam_p / gain[0] ** 2
    lam_plus = lam_z * (gain / gain[0]) ** slope
    new = updated_eigenvalues(lam_p, lam_z, lam_plus, alpha)
    assert kind(new / lam_p, 1e-9) == "high-pass"
    assert (new.diff() <= 1e-15).all()  # Theorem 3 needs the same order
    assert effective_rank(new) > effective_rank(lam_p)


def test_no_filter_reaches_directions_that_the_target_has_lost():
    C_z = torch.diag(vector(1, 0))
    with pytest.raises(ValueError, match="no filter"):
        equivalent_filter(torch.eye(2), C_z)
