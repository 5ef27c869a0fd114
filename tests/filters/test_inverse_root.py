"""The solver by matrix products: exact where it is used, and refused where it is not."""

import math
import pickle

import pytest
import torch
from conftest import features
from torch.nn.functional import batch_norm

from rdm_solo.filters import SpectralFilter, decompose, get, relative_cut
from rdm_solo.filters.inverse_root import STEPS, inverse_root

ORDERS = [2, 4]
EXPONENTS = {2: -1.0, 4: -0.5}
SHAPES = [(64, 512), (128, 64)]


@pytest.mark.parametrize("order", ORDERS)
def test_the_polynomials_map_their_interval_to_one(order):
    lowest = 3e-6 ** (2 / order)
    x = torch.logspace(math.log10(lowest), 0, 100_001, dtype=torch.float64)
    for a, b, c in STEPS[order]:
        power = x**order
        x = x * (a + b * power + c * power**2)
    assert (x - 1).abs().max() < 3e-9


def unit_rows(x):
    return torch.nn.functional.normalize(x.double(), dim=1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", ["gaussian", "batchnorm", "1/i", "1/i^2"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_root_that_is_used_is_exact(shape, kind, order):
    x = features(kind, *shape)
    p = EXPONENTS[order]
    spectrum = decompose(x)
    gain = get("pow", p)(spectrum.sigma)
    matrix = (spectrum.vectors * gain) @ spectrum.vectors.mT
    expected = matrix @ x.double() if spectrum.dual else x.double() @ matrix
    gram = x.double() @ x.double().mT if spectrum.dual else x.double().mT @ x.double()
    root, usable = inverse_root(gram[None], order, relative_cut(x.dtype, *shape))
    assert usable.item()
    filtered = root[0] @ x.double() if spectrum.dual else x.double() @ root[0]
    # Measured: at most 6e-8. It grows with the share of batch norm's null direction.
    assert (unit_rows(filtered) - unit_rows(expected)).norm(dim=1).max() < 1e-7
    by_products = SpectralFilter("target", "pow", p, solver="products")(x)
    torch.testing.assert_close(by_products, filtered.float(), rtol=0, atol=0)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [16, 64, 256])
def test_no_eigenvalue_falls_to_rounding_noise_within_the_steps(n, order):
    """Without a lower bound of the intervals, 0.6736 and 0.6117 of |G| became 1e-9."""
    largest = torch.linspace(0.55, 0.75, 101).double()
    largest = torch.cat([largest, torch.tensor([0.6736, 0.6117]).double()])
    others = ((1 - largest**2) / (n - 1)).sqrt()
    lam = others[:, None].repeat(1, n)
    lam[:, 0] = largest
    q = torch.linalg.qr(features("gaussian", n, n).double())[0]
    gram = (q * lam[:, None]) @ q.mT
    root, usable = inverse_root(gram, order, 1e-6)
    assert usable.all()
    expected = (q * lam[:, None] ** (-1 / order)) @ q.mT
    assert (root - expected).norm(dim=-1).amax() < 1e-7 * expected.norm(dim=-1).amax()


def with_one_weak_direction(n, k, ratio):
    left = torch.linalg.qr(features("gaussian", n, min(n, k)).double())[0]
    right = torch.linalg.qr(features("gaussian", k, min(n, k), seed=1).double())[0]
    sigma = torch.ones(min(n, k)).double()
    sigma[-1] = ratio
    return ((left * sigma) @ right.mT).float()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(64, 512), (512, 64)])
def test_a_root_near_the_bound_is_exact_or_refused(shape, order):
    p = EXPONENTS[order]
    used = []
    for ratio in torch.logspace(-5.3, -3, 24).tolist():
        x = with_one_weak_direction(*shape, ratio)
        gram = x.double() @ x.double().mT if shape[0] < shape[1] else x.double().mT @ x.double()
        usable = inverse_root(gram[None], order, relative_cut(x.dtype, *shape)).usable
        used.append(usable.item())
        if usable:
            u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
            expected = unit_rows((u * sigma ** (1 + p)) @ vh)
            actual = unit_rows(SpectralFilter("target", "pow", p, solver="products")(x))
            bound = 3.1e-7 + 16 * torch.finfo(torch.float64).eps / ratio**2  # SpectralFilter's
            assert (actual - expected).norm(dim=1).max() < bound
    assert used[-1]
    assert not all(used)


def test_a_direction_of_noise_is_refused_by_its_own_rule():
    """The iteration reaches this direction, which the cut of a (16, 65536) batch excludes."""
    cut = relative_cut(torch.float32, 16, 65_536)
    q = torch.linalg.qr(features("gaussian", 16, 16).double())[0]
    sigma = torch.ones(16).double()
    sigma[-1] = 0.9 * cut
    gram = (q * sigma**2) @ q.mT
    assert not inverse_root(gram[None], 4, cut).usable
    assert inverse_root(gram[None], 4, cut / 100).usable


@pytest.mark.parametrize(("order", "smallest"), [(2, 5e-11), (4, 3e-11)])
def test_an_inexact_root_is_refused(order, smallest):
    """The steps bring the smallest eigenvalue to 1 only up to 5e-5, and the cut is below it."""
    q = torch.linalg.qr(features("gaussian", 64, 64).double())[0]
    lam = torch.ones(64).double()
    lam[-1] = smallest
    gram = (q * lam) @ q.mT
    assert not inverse_root(gram[None], order, 1e-12).usable


@pytest.mark.parametrize("order", ORDERS)
def test_the_null_direction_of_batch_norm_is_mapped_to_zero(order):
    x = features("batchnorm", 64, 512).double()
    (root,), usable = inverse_root((x @ x.mT)[None], order, relative_cut(torch.float32, 64, 512))
    assert usable
    assert root.sum(1).abs().max() < 1e-6 * root.abs().max()


def steep():
    """Return a batch whose null direction is the vector of ones up to 1e-5 only."""
    return batch_norm(features("1/i^2", 64, 512), None, None, training=True)


def refused_batches():
    x = features("batchnorm", 64, 512)
    equal_pairs = x.clone()
    equal_pairs[32:] = x[:32]
    with_nan = x.clone()
    with_nan[5, 3] = math.nan
    short_row = features("gaussian", 64, 512)
    short_row[7] *= 2e-6
    # The smallest of 64 singular values is noise: below relative_cut times the largest.
    left = torch.linalg.qr(features("gaussian", 64, 64).double())[0]
    right = torch.linalg.qr(features("gaussian", 512, 64, seed=1).double())[0]
    sigma = torch.ones(64).double()
    sigma[-1] = 0.9 * relative_cut(torch.float32, 64, 512)
    many_rows = features("gaussian", 512, 64)
    many_rows[7] *= 2e-6
    return {
        "zeros": torch.zeros(64, 512),
        "rank 1": x[:1] * torch.arange(1.0, 65.0)[:, None],
        "equal pairs": equal_pairs,
        "NaN": with_nan,
        "a short row": short_row,
        "a direction of noise": ((left * sigma) @ right.mT).float(),
        "a steep spectrum after batch norm": steep(),
        "half precision": x.bfloat16(),
        "float64": x.double(),
        "too long rows": x * 1e12,
        "too short rows": x * 1e-8,
        "a short row of many": many_rows,
    }


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", refused_batches())
@pytest.mark.parametrize("delay", [0, 2])
def test_other_batches_are_decomposed(delay, kind, order):
    x = refused_batches()[kind]
    p = EXPONENTS[order]
    expected = SpectralFilter("target", "pow", p, solver="eigh")(x)
    module = SpectralFilter("target", "pow", p, solver="products", check_delay=delay)
    for _ in range(4):
        assert torch.equal(module(x), expected)


@pytest.mark.parametrize("order", ORDERS)
def test_a_delayed_check_maps_a_batch_to_zero_and_later_ones_are_decomposed(order, caplog):
    good, bad = features("batchnorm", 64, 512), steep()
    p = EXPONENTS[order]
    by_eigh = SpectralFilter("target", "pow", p, solver="eigh")
    by_products = SpectralFilter("target", "pow", p, solver="products")
    module = SpectralFilter("target", "pow", p, solver="products", check_delay=2)
    for epoch in range(2):
        assert torch.equal(module(good), by_products(good))
        assert not module(bad).any()
        assert torch.equal(module(good), by_products(good))
        for x in (good, bad):  # the check of the second call is read in the fourth
            assert torch.equal(module(x), by_eigh(x))
        module.set_epoch(epoch)
    assert [record.message.count("filter.solver") for record in caplog.records] == [1]


def test_a_check_that_is_read_at_the_epochs_end_is_logged(caplog):
    module = SpectralFilter("target", "pow", -1, solver="products", check_delay=2)
    module(features("batchnorm", 64, 512))
    module(steep())
    assert not caplog.records
    module.report()
    assert len(caplog.records) == 1


def test_a_square_batch_is_decomposed():
    x = features("batchnorm", 64, 64)
    expected = SpectralFilter("target", "pow", -1, solver="eigh")(x)
    assert torch.equal(SpectralFilter("target", "pow", -1, solver="products")(x), expected)


def test_a_filter_with_unread_checks_can_be_copied():
    module = SpectralFilter("target", "pow", -1, solver="products", check_delay=2)
    x = features("batchnorm", 64, 512)
    expected = module(x)
    module(x)
    copy = pickle.loads(pickle.dumps(module))
    assert torch.equal(copy(x), expected)


def test_a_null_direction_that_is_not_the_vector_of_ones_is_refused():
    x = features("batchnorm", 64, 512)
    x[0] = x[1:].sum(0)  # now (1, -1, ..., -1) is the null direction
    gram = x.double() @ x.double().mT
    assert not inverse_root(gram[None], 2, relative_cut(x.dtype, 64, 512)).usable


def test_one_refused_view_does_not_change_the_other():
    views = torch.stack([features("batchnorm", 64, 512), steep()])
    module = SpectralFilter("target", "pow", -1, solver="products", check_delay=2)
    expected = module(views[0])
    good, refused = module(views)
    assert torch.equal(good, expected)
    assert not refused.any()


def test_a_cpu_decomposes_unless_products_are_chosen():
    x = features("batchnorm", 64, 512)
    by_default = SpectralFilter("target", "pow", -0.5)(x)
    assert torch.equal(by_default, SpectralFilter("target", "pow", -0.5, solver="eigh")(x))
    assert not torch.equal(by_default, SpectralFilter("target", "pow", -0.5, solver="products")(x))
