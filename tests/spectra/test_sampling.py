"""The rows kept of large outputs, against all rows hashed at once; and processes without a row."""

import copy
import math

import pytest
import torch
from conftest import features
from hypothesis import given, settings
from hypothesis import strategies as st
from support.second_device import DEVICE
from support.waits import Waits
from torch import Tensor

from rdm_solo.spectra import BranchSpectra
from rdm_solo.spectra.logits import StepCorrelation
from rdm_solo.spectra.sampling import LAST, row_hashes

ROUTES = {"matrices": {}, "sample": {"max_dim": 4, "sample": 12}}
routes = pytest.mark.parametrize("route", ROUTES)


def outputs(n: int, k: int, number: int = 4) -> list[Tensor]:
    """Return online outputs, targets, positives and projections, or the first of these."""
    return [features("gaussian", n, k, seed=seed) for seed in range(number)]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    sample=st.integers(1, 40),
    number=st.integers(2, 4),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_the_kept_rows_are_the_smallest_of_all_hashed_at_once(seed, sizes, sample, number, dtype):
    rng = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    parts = [torch.randn(n, 5, generator=rng).to(dtype) for _ in range(number)]
    is_broken = torch.rand(n, generator=rng) < 0.2
    parts[1][is_broken, 2] = math.nan
    metric = BranchSpectra(5, max_dim=4, sample=sample)
    for rows in torch.arange(n).split(sizes):
        metric.update(*[x[rows] for x in parts])

    # Targets stand in for positives and projections that are not passed.
    while len(parts) < 4:
        parts.append(parts[1])
    keys, order = row_hashes(parts, ~is_broken).sort()
    size = min(sample, n - int(is_broken.sum()))
    kept_keys, place = metric.kept_keys[0].sort()
    assert torch.equal(kept_keys[:size], keys[:size])
    assert (kept_keys[size:] == LAST).all()
    kept = metric.kept[0][place[:size]]
    expected = torch.stack(parts, 1)[order[:size]]
    assert torch.equal(kept, expected.to(kept.dtype))


def test_rows_that_differ_only_in_signs_have_different_hashes():
    """If a sign changed only the highest bit, an even number of changes would cancel."""
    signs = torch.cartesian_prod(*[torch.tensor([1.0, -1.0])] * 8)
    ones = torch.ones_like(signs)
    valid = torch.ones(256, dtype=torch.bool)
    for parts in ([signs], [signs, signs], [signs, -signs], [ones, ones, ones, signs]):
        assert len(row_hashes(parts, valid).unique()) == 256


def test_copies_and_forward_calls_add_up():
    parts = outputs(90, 12)
    batches = [[x[rows] for x in parts] for rows in torch.arange(90).split(30)]
    expected, metric, forward = (BranchSpectra(12, max_dim=4, sample=20) for _ in range(3))
    expected.update(*parts)
    metric.update(*batches[0])
    copied = copy.deepcopy(metric)
    for batch in batches[1:]:
        copied.update(*batch)
    for batch in batches:
        assert forward(*batch).rows == 20
    assert int(metric.count) == 30
    assert torch.equal(copied._kept_rows(), expected._kept_rows())
    assert torch.equal(forward._kept_rows(), expected._kept_rows())


def measure(metric: BranchSpectra, number: int, rows: range) -> dict[str, object]:
    """Update the metric with these rows, if any, and return scalars and arrays."""
    if rows:
        metric.update(*[x[list(rows)] for x in outputs(50, 8, number)])
    spectra = metric.compute()
    return {"scalars": spectra.scalars, **spectra.arrays()}


def measure_part(rank: int, world: int) -> dict[tuple[str, int], list[dict[str, object]]]:
    """Measure after a first batch on one process, and after a second batch on both."""
    results = {}
    for route, options in ROUTES.items():
        for number in (2, 4):
            has_rows = rank == (number == 4)
            metric = BranchSpectra(8, **options)
            first = measure(metric, number, range(30) if has_rows else range(0))
            second = measure(metric, number, [range(30, 45), range(45, 50)][rank])
            results[route, number] = [first, second]
    return results


@pytest.fixture(scope="module")
def two_processes(worlds):
    return worlds(2).run(measure_part)


@pytest.mark.parametrize("number", [2, 4])
@routes
def test_a_process_without_a_batch_measures_what_the_others_do(two_processes, route, number):
    rel = 0 if route == "sample" else 1e-9
    for update, rows in enumerate([range(30), range(50)]):
        expected = measure(BranchSpectra(8, **ROUTES[route]), number, rows)
        scalars = expected.pop("scalars")
        for results in two_processes:
            actual = dict(results[route, number][update])
            assert actual.pop("scalars") == pytest.approx(scalars, rel=1e-9, abs=1e-12)
            torch.testing.assert_close(actual, expected, rtol=rel, atol=rel, equal_nan=True)


def waits_of_an_update(route: str) -> list[str]:
    """Return where the second update synchronises; the first allocates memory."""
    metric = BranchSpectra(24, steps=True, **ROUTES[route]).to(DEVICE)
    hidden = StepCorrelation(24).to(DEVICE)
    batch = [x.to(DEVICE) for x in outputs(12, 24)]
    metric.update(*batch)
    with Waits() as waits:
        metric.update(*batch)
        hidden.update(batch[0])
    return [wait.where for wait in waits.found]


@routes
def test_an_update_does_not_wait_for_the_device(on_second_device, route):
    assert on_second_device(waits_of_an_update, route) == []
