"""The rows kept of large outputs, against all rows hashed at once; and processes without a row."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.branches import assert_same, outputs, random_views

from rdm_solo.spectra import BranchSpectra, Spectra
from rdm_solo.spectra.sampling import LAST, row_hashes

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
]
ROUTES = {
    "matrices": {},
    "sample": {"max_dim": 4, "sample": 12},
}
routes = pytest.mark.parametrize("route", ROUTES)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    sizes=st.lists(
        st.integers(0, 30),
        min_size=1,
        max_size=6,
    ),
    sample=st.integers(1, 40),
    number=st.integers(2, 4),
    dtype=st.sampled_from(DTYPES),
)
def test_the_kept_rows_are_the_smallest_of_all_hashed_at_once(seed, sizes, sample, number, dtype):
    draw = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    drawn = torch.randn(number, n, 5, generator=draw)
    parts = drawn.to(dtype)
    is_valid = torch.rand(n, generator=draw) > 0.2
    parts[1, ~is_valid, 2] = math.nan
    metric = BranchSpectra(5, max_dim=4, sample=sample)
    for step in parts.split(sizes, dim=1):
        metric.update(*step)

    # Targets stand in for positives and projections that are not passed.
    targets = parts[1].expand(4 - number, n, 5)
    parts = torch.cat([parts, targets])
    keys, order = row_hashes(list(parts), is_valid).sort()
    size = min(sample, int(is_valid.sum()))
    kept_keys, place = metric.kept_keys[0].sort()
    assert torch.equal(kept_keys[:size], keys[:size])
    assert (kept_keys[size:] == LAST).all()
    kept = metric.kept[0][place[:size]]
    expected = parts[:, order[:size]].to(kept.dtype)
    assert torch.equal(kept, expected.transpose(0, 1))


def test_rows_that_differ_only_in_signs_have_different_hashes():
    """If a sign changed only the highest bit, an even number of changes would cancel."""
    both = torch.tensor([1.0, -1.0])
    signs = torch.cartesian_prod(*[both] * 8)
    valid = torch.ones(256, dtype=torch.bool)
    cases = [
        [signs],
        [signs, signs],
        [signs, -signs],
    ]
    for parts in cases:
        hashes = row_hashes(parts, valid)
        assert len(hashes.unique()) == 256


def test_copies_and_forward_calls_add_up():
    parts = torch.stack(outputs(90, 12))
    metric = BranchSpectra(12, max_dim=4, sample=20)
    copied = copy.deepcopy(metric)
    forward = copy.deepcopy(metric)
    for batch in parts.split(30, dim=1):
        copied = copy.deepcopy(copied)
        copied.update(*batch)
        assert forward(*batch).rows == 20
    assert metric.count == 0
    metric.update(*parts)
    expected = metric.compute()
    assert_same(copied.compute(), expected, tolerance=1e-12)
    assert_same(forward.compute(), expected, tolerance=1e-12)


def measure(route: str, *batches: range) -> list[Spectra]:
    """Return the spectra after each batch of these rows, of which there may be none."""
    metric = BranchSpectra(8, **ROUTES[route])
    spectra = []
    for rows in batches:
        if rows:
            batch = random_views(50, 4, 8)[rows].float()
            metric.update(*batch.unbind(1))
        spectra.append(metric.compute())
    return spectra


def measure_part(rank: int, world: int, route: str) -> list[Spectra]:
    if rank == 0:
        return measure(route, range(0), range(30, 45))
    return measure(route, range(30), range(45, 50))


@routes
def test_a_process_without_a_batch_measures_what_the_others_do(worlds, route):
    expected = measure(route, range(30), range(30, 50))
    for spectra in worlds(2).run(measure_part, route):
        for actual, other in zip(spectra, expected, strict=True):
            assert_same(actual, other)
