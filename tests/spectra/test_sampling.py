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

from rdm_solo.spectra import BranchSpectra
from rdm_solo.spectra.logits import StepCorrelation
from rdm_solo.spectra.sampling import LAST, row_hashes

NAMES = ("online", "target", "positive", "projection")


def outputs(n: int, k: int, names: tuple[str, ...] = NAMES) -> dict[str, torch.Tensor]:
    return {name: features("gaussian", n, k, seed=NAMES.index(name)) for name in names}


def of(parts: dict[str, torch.Tensor], rows: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: x[rows] for name, x in parts.items()}


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    sample=st.integers(1, 40),
    names=st.sampled_from([NAMES[:2], NAMES[:3], NAMES]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_the_rows_kept_are_the_smallest_of_all_hashed_at_once(seed, sizes, sample, names, dtype):
    rng = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    parts = {name: torch.randn(n, 5, generator=rng).to(dtype) for name in names}
    broken = torch.rand(n, generator=rng) < 0.2
    parts["target"][broken, 2] = math.nan
    metric = BranchSpectra(5, max_dim=4, sample=sample)
    for rows in torch.arange(n).split(sizes):
        metric.update(**of(parts, rows))

    four = [parts.get(name, parts["target"]) for name in NAMES]
    key, order = row_hashes(four, ~broken).sort()
    order = order[: min(sample, n - int(broken.sum()))]
    kept, place = metric.kept_keys[0].flatten().sort()
    assert kept[: len(order)].tolist() == key[: len(order)].tolist()
    assert (kept[len(order) :] == LAST).all()
    want = torch.stack([x[order] for x in four], 1)
    assert torch.equal(metric.kept[0][place[: len(order)]], want.to(metric.kept[0].dtype))


def test_rows_that_differ_in_signs_alone_are_told_apart():
    """Where a sign reached the highest bit alone, an even number of changes would cancel."""
    signs = torch.cartesian_prod(*[torch.tensor([1.0, -1.0])] * 8)
    ones = torch.ones_like(signs)
    for parts in ([signs], [signs, signs], [signs, -signs], [ones, ones, ones, signs]):
        assert len(row_hashes(parts, torch.ones(256, dtype=torch.bool)).unique()) == 256


def test_copies_and_forward_calls_add_up():
    batches = [of(outputs(90, 12), rows) for rows in torch.arange(90).split(30)]
    want = BranchSpectra(12, max_dim=4, sample=20)
    want.update(**outputs(90, 12))
    metric, forward = (BranchSpectra(12, max_dim=4, sample=20) for _ in "ab")
    metric.update(**batches[0])
    copied = copy.deepcopy(metric)
    for batch in batches[1:]:
        copied.update(**batch)
    for batch in batches:
        assert forward(**batch).rows == 20
    assert int(metric.count) == 30
    for found in (copied, forward):
        assert torch.equal(found._kept_rows(), want._kept_rows())


ROUTES = {"matrices": {}, "sample": {"max_dim": 4, "sample": 12}}


def spectra(route: str, names: tuple[str, ...], rows: range) -> BranchSpectra:
    metric = BranchSpectra(8, **ROUTES[route])
    if rows:
        metric.update(**of(outputs(50, 8, names), torch.tensor(rows)))
    return metric


def work(rank: int, world: int) -> dict[str, object]:
    results: dict[str, object] = {}

    def computed(metric: BranchSpectra) -> object:
        spectra = metric.compute()
        return {"scalars": spectra.scalars, **spectra.arrays()}

    for route in ROUTES:
        for names in (NAMES[:2], NAMES):
            rows = [range(30), range(0)] if len(names) == 2 else [range(0), range(30)]
            metric = spectra(route, names, rows[rank])
            results[f"one empty {route} {len(names)}"] = computed(metric)
            more = [range(30, 45), range(45, 50)][rank]  # it goes on from where it was
            metric.update(**of(outputs(50, 8, names), torch.tensor(more)))
            results[f"then more {route} {len(names)}"] = computed(metric)
    return results


@pytest.fixture(scope="module")
def two(worlds):
    return worlds(2).run(work)


@pytest.mark.parametrize("names", [NAMES[:2], NAMES])
@pytest.mark.parametrize("route", ROUTES)
def test_a_process_without_a_batch_sees_what_the_others_saw(two, route, names):
    for case, rows in (("one empty", range(30)), ("then more", range(50))):
        want = spectra(route, names, rows).compute()
        for rank in two:
            got = dict(rank[f"{case} {route} {len(names)}"])
            assert got.pop("scalars") == pytest.approx(want.scalars, rel=1e-9, abs=1e-12)
            rel = 0 if route == "sample" else 1e-9
            for name, array in want.arrays().items():
                torch.testing.assert_close(got[name], array, rtol=rel, atol=rel, equal_nan=True)


def waits_of_an_update(route: str) -> list[str]:
    """Of the second update; the first makes the room."""
    metric = BranchSpectra(24, steps=True, **ROUTES[route]).to(DEVICE)
    hidden = StepCorrelation(24).to(DEVICE)
    batch = [x.to(DEVICE) for x in outputs(12, 24).values()]
    metric.update(*batch)
    with Waits() as waits:
        metric.update(*batch)
        hidden.update(batch[0])
    return [wait.where for wait in waits.found]


@pytest.mark.parametrize("route", ROUTES)
def test_an_update_does_not_wait_for_the_device(on_second_device, route):
    assert on_second_device(waits_of_an_update, route) == []
