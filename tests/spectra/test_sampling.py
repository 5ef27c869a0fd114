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


def outputs(n: int, k: int) -> list[Tensor]:
    """Return online outputs, targets, positives and projections."""
    return [features("gaussian", n, k, seed=seed) for seed in range(4)]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    sample=st.integers(1, 40),
    number=st.integers(2, 4),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_the_kept_rows_are_the_smallest_of_all_hashed_at_once(seed, sizes, sample, number, dtype):
    draw = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    parts = list(torch.randn(number, n, 5, generator=draw).to(dtype))
    is_broken = torch.rand(n, generator=draw) < 0.2
    parts[1][is_broken, 2] = math.nan
    metric = BranchSpectra(5, max_dim=4, sample=sample)
    for step in zip(*[x.split(sizes) for x in parts]):
        metric.update(*step)

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
    valid = torch.ones(256, dtype=torch.bool)
    for parts in ([signs], [signs, signs], [signs, -signs]):
        assert len(row_hashes(parts, valid).unique()) == 256


def test_copies_and_forward_calls_add_up():
    parts = outputs(90, 12)
    metric = BranchSpectra(12, max_dim=4, sample=20)
    expected = copy.deepcopy(metric)
    expected.update(*parts)
    forward = copy.deepcopy(metric)
    copied = metric
    for batch in zip(*[x.split(30) for x in parts]):
        copied = copy.deepcopy(copied)
        copied.update(*batch)
        assert forward(*batch).rows == 20
    assert metric.count == 0
    scalars = expected.compute().scalars
    assert copied.compute().scalars == pytest.approx(scalars, rel=1e-12)
    assert forward.compute().scalars == pytest.approx(scalars, rel=1e-12)


def measure(metric: BranchSpectra, rows: range) -> dict[str, object]:
    """Update the metric with these rows, if any, and return scalars and arrays."""
    if rows:
        metric.update(*[x[list(rows)] for x in outputs(50, 8)])
    spectra = metric.compute()
    return {"scalars": spectra.scalars, **spectra.arrays()}


def measure_part(rank: int, world: int) -> dict[str, list[dict[str, object]]]:
    """Measure after a first batch on one process, and after a second batch on both."""
    results = {}
    for route, options in ROUTES.items():
        metric = BranchSpectra(8, **options)
        first = measure(metric, [range(0), range(30)][rank])
        second = measure(metric, [range(30, 45), range(45, 50)][rank])
        results[route] = [first, second]
    return results


def test_a_process_without_a_batch_measures_what_the_others_do(worlds):
    results = worlds(2).run(measure_part)
    for route, options in ROUTES.items():
        for update, rows in enumerate([range(30), range(50)]):
            expected = measure(BranchSpectra(8, **options), rows)
            scalars = expected.pop("scalars")
            for result in results:
                actual = result[route][update]
                assert actual.pop("scalars") == pytest.approx(scalars, rel=1e-9, abs=1e-12)
                torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9, equal_nan=True)


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
