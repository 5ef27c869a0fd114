"""The paper's lemmas and theorems on exact samples, as properties, and where they end."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rdm_solo import theory
from rdm_solo.spectra import correlation, effective_rank, filter_curve

# What is compared is of order one; measured errors are below 1e-13.
CLOSE = {"rtol": 1e-10, "atol": 1e-11}

few = settings(max_examples=25, deadline=None)
steps = st.floats(0.02, 0.98)


def normal(*shape: int, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def rotation(k: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(normal(k, k, seed=seed))[0]


def turned(v: Tensor, lam: Tensor) -> Tensor:
    return (v * lam) @ v.mT


def eigenvalues(C: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(C).flip(0)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def erank(lam: Tensor) -> float:
    return float(effective_rank(lam))


@st.composite
def spectra(draw, least: int = 2) -> Tensor:
    """A descending spectrum of whole numbers, so that what differs differs by much."""
    lam = draw(st.lists(st.integers(1, 60), min_size=least, max_size=8))
    return torch.tensor(sorted(lam, reverse=True), dtype=torch.float64) / sum(lam)


@st.composite
def falling(draw, k: int) -> Tensor:
    """A positive curve that falls along the index, and somewhere does: low-pass, not constant."""
    falls = draw(st.lists(st.integers(0, 9), min_size=k - 1, max_size=k - 1).filter(any))
    return vector(*falls, draw(st.integers(1, 9))).flip(0).cumsum(0).flip(0) / 10


@st.composite
def low_passed(draw) -> tuple[Tensor, Tensor]:
    """A target's spectrum and an online one that a low-pass filter made of it."""
    lam_z = draw(spectra())
    return lam_z, theory.filtered_eigenvalues(lam_z, draw(falling(len(lam_z))))


def factors(lam_p: Tensor, lam_z: Tensor, lam_plus: Tensor, alpha: float) -> Tensor:
    """By which Theorem 4's step multiplies each online eigenvalue."""
    return theory.updated_eigenvalues(lam_p, lam_z, lam_plus, alpha) / lam_p


def pairs(lam_z: Tensor, lam_plus: Tensor, v: Tensor, n: int = 40) -> tuple[Tensor, Tensor]:
    """Two views whose sample has these spectra and eigenvectors exactly."""
    k = len(lam_z)
    q = torch.linalg.qr(normal(n, 2 * k, seed=1))[0] * n**0.5
    common = q[:, :k] * ((lam_z + lam_plus) / 2).sqrt()
    apart = q[:, k:] * ((lam_z - lam_plus) / 2).clamp_min(0).sqrt()
    return (common + apart) @ v.mT, (common - apart) @ v.mT


def isotropic(d: int, noise: float, n: int = 60) -> tuple[Tensor, Tensor]:
    """Two views whose sample moments are exactly those that Lemma 1 assumes."""
    q = torch.linalg.qr(normal(n, 3 * d, seed=2))[0] * n**0.5
    bar, a, b = q.split(d, dim=1)
    return bar + noise * a, bar + noise * b


def trained(z: Tensor, z_plus: Tensor, weight_decay: float) -> Tensor:
    """The predictor that an optimiser finds on the sample, by autograd."""
    W = torch.zeros(z.shape[1], z.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([W], max_iter=300, line_search_fn="strong_wolfe")
    optimizer.param_groups[0].update(tolerance_grad=1e-11, tolerance_change=1e-14)

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
    """k = 8 > d = 6: singular correlations, as long as something decays."""
    x, x_plus = isotropic(6, noise=0.7)
    W_f = normal(k, 6, seed=3)
    C_z, C_plus, W, C_p = theory.linear_setting(W_f, 0.7, weight_decay)
    z, z_plus = x @ W_f.mT, x_plus @ W_f.mT
    torch.testing.assert_close(C_z, correlation(z), **CLOSE)
    torch.testing.assert_close(C_plus, z.mT @ z_plus / len(z), **CLOSE)
    torch.testing.assert_close(W, trained(z, z_plus, weight_decay), rtol=0, atol=1e-6)
    torch.testing.assert_close(C_p, correlation(z @ W.mT), **CLOSE)
    for C in (C_z, W, C_p):  # one basis for all
        torch.testing.assert_close(C @ C_plus, C_plus @ C, **CLOSE)


@few
@given(seed=st.integers(0, 999), noise=st.floats(0, 2), weight_decay=st.floats(0.01, 3))
def test_lemma_1_is_low_pass_by_weight_decay_alone(seed, noise, weight_decay):
    W_f = normal(5, 7, seed=seed)
    C_z, _, _, C_p = theory.linear_setting(W_f, noise, weight_decay)
    lam, lam_p, lam_z = map(eigenvalues, (W_f @ W_f.mT, C_p, C_z))
    curve = filter_curve(lam_p, lam_z)
    torch.testing.assert_close(curve, lam / ((1 + noise**2) * lam + weight_decay), **CLOSE)
    assert theory.kind(curve) == "low-pass"
    assert theory.rank_difference(lam_p, lam_z) > 1e-6
    C_z, _, _, C_p = theory.linear_setting(W_f, noise)
    gap = theory.rank_difference(eigenvalues(C_p), eigenvalues(C_z))
    assert gap == pytest.approx(0, abs=1e-10)


@few
@given(seed=st.integers(0, 999), m=st.integers(2, 4), weight_decay=st.sampled_from([0.0, 0.2]))
def test_theorem_2_holds_without_shared_eigenvectors(seed, m, weight_decay):
    """A population of n samples with m views each, all pairs drawn: omega lies in [0, 1]."""
    z = normal(9, m, 4, seed=seed) * vector(3, 2, 1, 0.5) + normal(9, 1, 4, seed=seed + 1)
    C_z, C_bar = correlation(z.flatten(0, 1)), theory.mean_correlation(z)
    W = theory.optimal_predictor(C_z, C_bar, weight_decay).requires_grad_()
    loss = (W @ C_z * W).sum() / 2 - (W * C_bar).sum() + weight_decay / 2 * W.square().sum()
    loss.backward()
    torch.testing.assert_close(W.grad, torch.zeros_like(W), rtol=0, atol=1e-11)
    gains = torch.linalg.eigvals(W.detach())
    assert gains.imag.abs().max() < 1e-9
    assert gains.real.min() > -1e-11
    assert gains.real.max() < 1 + 1e-11
    omega = theory.ideal_filter(eigenvalues(C_bar), eigenvalues(C_z))
    assert omega.min() > -1e-11
    assert omega.max() < 1 + 1e-11


def test_the_ideal_filter_is_the_predictors_spectrum_and_its_outputs_curve():
    v, lam_z = rotation(3), vector(0.6, 0.3, 0.1)
    lam_plus = vector(0.5, 0.2, 0.01)
    omega = theory.ideal_filter(lam_plus, lam_z, weight_decay=0.05)
    W = theory.optimal_predictor(turned(v, lam_z), turned(v, lam_plus), weight_decay=0.05)
    torch.testing.assert_close(W, turned(v, omega), **CLOSE)
    z, z_plus = pairs(lam_z, lam_plus, v)
    torch.testing.assert_close(trained(z, z_plus, 0.05), W, rtol=0, atol=1e-6)
    lam_p = eigenvalues(W @ turned(v, lam_z) @ W.mT)
    torch.testing.assert_close(filter_curve(lam_p, lam_z), omega, **CLOSE)
    assert theory.ideal_filter(vector(1, 1), vector(1, 0)).isnan().tolist() == [False, True]


@few
@given(both=low_passed(), seed=st.integers(0, 999))
def test_lemma_2_reproduces_the_online_correlation(both, seed):
    """Whole-number spectra repeat eigenvalues, for which V is not unique."""
    lam_z, lam_p = both
    v = rotation(len(lam_z), seed)
    C_z, C_p = turned(v, lam_z), turned(v, lam_p)
    W = theory.equivalent_filter(C_p, C_z)
    torch.testing.assert_close(W, turned(v, filter_curve(lam_p, lam_z)), **CLOSE)
    torch.testing.assert_close(W @ C_z @ W.mT, C_p, **CLOSE)
    apart = turned(rotation(len(lam_z), seed + 1), lam_p)
    W = theory.equivalent_filter(apart, C_z)
    torch.testing.assert_close(W @ C_z @ W.mT, apart, **CLOSE)


@few
@given(n=st.integers(1, 4), m=st.integers(2, 4), seed=st.integers(0, 999))
def test_lemma_3_holds_on_samples(n, m, seed):
    z = normal(n, m, 3, seed=seed)
    C_z, C_bar = torch.zeros(3, 3).double(), torch.zeros(3, 3).double()
    C_plus, V = torch.zeros_like(C_z), torch.zeros_like(C_z)
    for views in z:  # as the definitions read
        mean = sum(views) / m
        C_bar += torch.outer(mean, mean) / n
        for i, a in enumerate(views):
            C_z += torch.outer(a, a) / (n * m)
            V += torch.outer(a - mean, a - mean) / (n * m)
            for b in [*views[:i], *views[i + 1 :]]:
                C_plus += torch.outer(a, b) / (n * m * (m - 1))
    torch.testing.assert_close(theory.mean_correlation(z), C_bar, **CLOSE)
    torch.testing.assert_close(theory.positive_correlation(z), C_plus, **CLOSE)
    torch.testing.assert_close(theory.conditional_covariance(z), V, **CLOSE)
    torch.testing.assert_close(C_bar + V, C_z, **CLOSE)
    torch.testing.assert_close(C_bar - V / (m - 1), C_plus, **CLOSE)


@few
@given(both=low_passed(), scale=st.floats(1e-3, 1e3))
def test_theorem_3_strict_and_equal(both, scale):
    lam_z, lam_p = both
    curve = filter_curve(lam_p, lam_z)
    assert theory.kind(curve) == "low-pass"
    assert theory.rank_difference(lam_p, lam_z) > 1e-7
    assert theory.rank_difference(lam_p.sqrt(), lam_z.sqrt()) > 1e-7  # of singular values, too
    # The other way round: a high-pass online filter puts the target below the online branch.
    assert theory.kind(1 / curve) == "high-pass"
    assert theory.rank_difference(lam_z, lam_p) < -1e-7
    # Equality: a constant filter.
    assert theory.kind(filter_curve(scale * lam_z, lam_z)) == "none"
    assert theory.rank_difference(scale * lam_z, lam_z) == pytest.approx(0, abs=1e-12)


def test_kinds_by_turns():
    assert theory.kind(vector(1, 2, 1, 2)) == "multi-band"
    assert theory.kind(vector(3, 2, 2, 1)) == "low-pass"
    assert theory.kind(vector(3, float("nan"), 2)) == "low-pass"
    assert theory.kind(vector(3, 2, 2.01, 1)) == "multi-band"
    assert theory.kind(vector(3, 2, 2.01, 1), tolerance=0.01) == "low-pass"
    # A drift in steps below the tolerance is still a drift.
    assert theory.kind(torch.linspace(1, 0.5, 100), tolerance=0.1) == "low-pass"
    assert theory.kind(vector(float("nan"))) == theory.kind(vector(1)) == "none"
    assert theory.kind(torch.zeros(3)) == "none"


def stepped(p: Tensor, z_plus: Tensor, alpha: float) -> Tensor:
    """The online outputs after one step of SGD on free features."""
    free = p.clone().requires_grad_()
    ((free - z_plus).square().sum() / 2).backward()
    torch.optim.SGD([free], lr=alpha).step()
    return free.detach()


@st.composite
def settings_of_theorem_4(draw) -> tuple[Tensor, Tensor, Tensor]:
    lam_z, lam_p = draw(low_passed())
    omega = draw(st.lists(st.integers(0, 10), min_size=len(lam_z), max_size=len(lam_z)))
    return lam_p, lam_z, lam_z * torch.tensor(sorted(omega, reverse=True)).double() / 10


@few
@given(case=settings_of_theorem_4(), alpha=st.floats(0.02, 1.5))
def test_theorem_4_is_what_gradient_descent_does(case, alpha):
    lam_p, lam_z, lam_plus = case
    v = rotation(len(lam_z))
    z, z_plus = pairs(lam_z, lam_plus, v)
    W = turned(v, filter_curve(lam_p, lam_z))
    both, other = torch.cat([z, z_plus]), torch.cat([z_plus, z])
    C = correlation(stepped(both @ W, other, alpha))
    want = theory.updated_eigenvalues(lam_p, lam_z, lam_plus, alpha)
    torch.testing.assert_close(eigenvalues(C), want.sort(descending=True).values, **CLOSE)
    torch.testing.assert_close(C, turned(v, want), **CLOSE)
    gain = factors(lam_p, lam_z, lam_plus, alpha)
    torch.testing.assert_close(gain * lam_p, want, **CLOSE)
    h, omega = (lam_z / lam_p).sqrt(), lam_plus / lam_z
    printed = (1 - alpha) ** 2 + alpha**2 * h**2 + 2 * alpha * (1 - alpha) * h * omega
    torch.testing.assert_close(gain, printed, **CLOSE)
    # Directions that either branch has lost.
    new = theory.updated_eigenvalues(
        vector(0.5, 0, 1), vector(0.5, 0.5, 0), vector(0.5, 0.5, 3), 0.1
    )
    torch.testing.assert_close(new, vector(0.5, 0.005, 0.81))


@few
@given(both=low_passed(), alpha=steps, slope=st.floats(0, 1))
def test_theorem_4_the_rank_rises_under_either_condition_and_all_between(both, alpha, slope):
    """omega = g^slope: slope 1 is W* (condition 1), slope 0 perfect alignment (condition 2)."""
    lam_z, lam_p = both
    gain = filter_curve(lam_p, lam_z)
    lam_p = lam_p / gain[0] ** 2  # omega is at most 1
    gain = gain / gain[0]
    lam_plus = lam_z * gain**slope
    new = theory.updated_eigenvalues(lam_p, lam_z, lam_plus, alpha)
    assert theory.kind(factors(lam_p, lam_z, lam_plus, alpha), 1e-9) == "high-pass"
    assert (new.diff() <= 1e-15).all()  # the order stays, which Theorem 3 needs
    assert erank(new) > erank(lam_p)


def test_refusals_name_the_argument():
    lam, C = vector(1, 1), torch.eye(2)
    for call, says in (
        (lambda: theory.updated_eigenvalues(lam, lam, lam[:1], 0.5), r"lam_plus \(1,\)"),
        (lambda: theory.updated_eigenvalues(lam, lam, lam, 0.0), "alpha must be"),
        (lambda: theory.equivalent_filter(C[:1], C[:1]), r"C_p \(1, 2\)"),
        (lambda: theory.equivalent_filter(C, torch.diag(vector(1, 0))), "no filter"),
        (lambda: theory.optimal_predictor(C, C, -1.0), "weight_decay must be"),
        (lambda: theory.linear_setting(C, -1.0), "noise must be"),
        (lambda: theory.positive_correlation(torch.ones(3, 1, 2)), "m >= 2 views"),
        (lambda: theory.mean_correlation(C), r"\(n, m, k\)"),
    ):
        with pytest.raises(ValueError, match=says):
            call()
