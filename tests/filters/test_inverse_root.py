"""The solver by matrix products: exact where it is used, and refused where it is not."""

import math
import pickle

import pytest
import torch
from conftest import features
from torch.utils.checkpoint import checkpoint

from rdm_solo.filters import SpectralFilter, relative_cut
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


def products(p, **options):
    return SpectralFilter("target", "pow", p, solver="products", **options)


def filtered_rows(x, p):
    """Return the filtered rows by a float64 SVD, scaled to unit length."""
    u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
    is_kept = sigma > relative_cut(x.dtype, *x.shape) * sigma[0]
    gain = torch.where(is_kept, sigma ** (1 + p), 0.0)
    return unit_rows((u * gain) @ vh)


def unit_rows(x):
    return torch.nn.functional.normalize(x.double(), dim=1)


def is_refused(module, x):
    """Return whether a batch is mapped to zero, after one that is checked at once."""
    module.check_delay = 10
    module(features("batchnorm", *x.shape))
    assert not module._needs_eigh
    return not module(x).any()


@pytest.mark.parametrize("p", EXPONENTS.values())
@pytest.mark.parametrize("kind", ["gaussian", "batchnorm", "1/i", "1/i^2"])
@pytest.mark.parametrize("shape", SHAPES)
def test_common_batches_are_exact(shape, kind, p):
    x = features(kind, *shape)
    # Measured: at most 4e-8, which is the rounding to float32.
    assert (unit_rows(products(p)(x)) - filtered_rows(x, p)).norm(dim=1).max() < 1e-7
    assert not is_refused(products(p), x)


@pytest.mark.parametrize("order", ORDERS)
def test_no_eigenvalue_falls_to_rounding_noise_within_the_steps(order):
    """Without a lower bound of the intervals, 0.6736 and 0.6117 of |G| became 1e-9."""
    n = 64
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


@pytest.mark.parametrize("p", EXPONENTS.values())
def test_many_rows_near_the_bound_are_exact_or_refused(p):
    refused = []
    for ratio in torch.logspace(-5.3, -3, 24).tolist():
        x = with_one_weak_direction(512, 64, ratio)
        module = products(p)
        refused.append(is_refused(module, x))
        if not refused[-1]:
            error = unit_rows(module(x)) - filtered_rows(x, p)
            bound = 3.1e-7 + 16 * torch.finfo(torch.float64).eps / ratio**2  # SpectralFilter's
            assert error.norm(dim=1).max() < bound
    assert refused[0]
    assert not refused[-1]


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
    centred_rows = features("gaussian", 512, 64)
    centred_rows -= centred_rows.mean(1, keepdim=True)
    unlike_ones = x.clone()
    unlike_ones[0] = x[1:].sum(0)  # now (1, -1, ..., -1) is the null direction
    many_rows = features("gaussian", 512, 64)
    many_rows[7] *= 2e-6
    return {
        "zeros": torch.zeros(64, 512),
        "rank 1": x[:1] * torch.arange(1.0, 65.0)[:, None],
        "equal pairs": equal_pairs,
        "NaN": with_nan,
        "a short row": short_row,
        "a direction of noise": ((left * sigma) @ right.mT).float(),
        "half precision": x.bfloat16(),
        "float64": x.double(),
        "too long rows": x * 1e12,
        "too short rows": x * 1e-8,
        "a short row of many": many_rows,
        "rows that are centred themselves": centred_rows,
        "another null direction": unlike_ones,
    }


@pytest.mark.parametrize("p", EXPONENTS.values())
@pytest.mark.parametrize("kind", refused_batches())
def test_other_batches_are_decomposed(kind, p):
    x = refused_batches()[kind]
    expected = SpectralFilter("target", "pow", p, solver="eigh")(x)
    for delay in (0, 2):
        module = products(p, check_delay=delay)
        for _ in range(4):
            assert torch.equal(module(x), expected)


@pytest.mark.parametrize("p", EXPONENTS.values())
def test_a_delayed_check_maps_a_batch_to_zero_and_later_ones_are_decomposed(p, caplog):
    good, bad = features("batchnorm", 64, 512), refused_batches()["equal pairs"]
    by_eigh = SpectralFilter("target", "pow", p, solver="eigh")
    module = products(p, check_delay=2)
    for epoch in range(2):
        assert torch.equal(module(good), products(p)(good))
        assert not module(bad).any()
        assert torch.equal(module(good), products(p)(good))
        for x in (good, bad):  # the check of the second call is read in the fourth
            assert torch.equal(module(x), by_eigh(x))
        module.set_epoch(epoch)
    assert [record.message.count("filter.solver") for record in caplog.records].count(1) == 1


def test_a_check_that_is_read_at_the_epochs_end_is_logged(caplog):
    module = products(-1, check_delay=2)
    assert is_refused(module, refused_batches()["equal pairs"])
    assert not caplog.records
    module.report()
    assert len(caplog.records) == 1


def test_a_batch_of_nan_gives_nan_at_once_and_an_error_with_its_check():
    good = features("batchnorm", 64, 512)
    for later in (SpectralFilter.report, lambda module: module(good)):
        module = products(-0.5, check_delay=1)
        module(good)
        assert module(good * torch.nan).isnan().all()
        with pytest.raises(FloatingPointError, match="all 64 rows"):
            later(module)


def test_a_square_batch_is_decomposed():
    x = features("batchnorm", 64, 64)
    expected = SpectralFilter("target", "pow", -1, solver="eigh")(x)
    assert torch.equal(products(-1)(x), expected)


def test_a_filter_with_unread_checks_can_be_copied():
    module = products(-1, check_delay=2)
    x = features("batchnorm", 64, 512)
    expected = module(x)
    module(x)
    copy = pickle.loads(pickle.dumps(module))
    assert torch.equal(copy(x), expected)


def test_one_refused_view_does_not_change_the_other():
    views = torch.stack([features("batchnorm", 64, 512), refused_batches()["equal pairs"]])
    module = products(-1, check_delay=2)
    expected = module(views[0])
    good, refused = module(views)
    assert (unit_rows(good) - unit_rows(expected)).norm(dim=1).max() < 1e-7
    assert not refused.any()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_of_an_online_filter_has_its_values_and_gradients(reentrant):
    x = refused_batches()["equal pairs"]
    results = []
    for call in (SpectralFilter.__call__, checkpoint):
        module = SpectralFilter("online", "pow", -0.5, solver="products", check_delay=2)
        leaf = x.clone().requires_grad_()
        options = {"use_reentrant": reentrant} if call is checkpoint else {}
        out = call(module, leaf, **options)
        out.square().sum().backward()
        results += [out.detach(), leaf.grad]
    for plain, checkpointed in zip(results[:2], results[2:]):
        # Measured: 2.7e-7. The reentrant call without gradients multiplies in float64.
        torch.testing.assert_close(
            checkpointed, plain, rtol=0, atol=8e-7 * plain.abs().max().item()
        )


@pytest.mark.parametrize(("solver", "count"), [("auto", 1), ("eigh", 1), ("products", 0)])
def test_a_cpu_decomposes_unless_products_are_chosen(solver, count, monkeypatch):
    calls = []
    eigh = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda gram: calls.append(gram) or eigh(gram))
    SpectralFilter("target", "pow", -0.5, solver=solver)(features("batchnorm", 64, 512))
    assert len(calls) == count
