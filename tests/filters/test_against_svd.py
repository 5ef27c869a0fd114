"""Filters on all kinds of batches, against a float64 SVD that shares no code with them."""

import random

import pytest
import torch
from support.drills import draws, record, tries
from support.hostile import COLLAPSED, FILTERS, KINDS, batch_of, check, check_kind, random_batch
from support.second_device import DEVICE

# Fewer rows than columns, and more: another Gram matrix is decomposed in each case.
SHAPES = [(16, 48), (48, 16)]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_gradients_equal_those_of_an_svd(kind):
    check_kind(kind, SHAPES)


@pytest.mark.parametrize("kind", ["gaussian", "duplicates", *COLLAPSED])
def test_a_device_gives_the_rows_and_gradients_of_an_svd(kind, on_second_device):
    on_second_device(check_kind, kind, SHAPES, DEVICE)


@pytest.fixture(params=["highest", "medium", "autocast"])
def _digits(request):
    """Allow torch to compute float32 products with fewer digits."""
    if request.param == "autocast":
        torch.set_autocast_enabled("cpu", True)
    else:
        torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision("highest")
    torch.set_autocast_enabled("cpu", False)


@pytest.mark.usefixtures("_digits")
@pytest.mark.parametrize("shape", [(64, 512), (256, 64)])
@pytest.mark.parametrize("kind", ["gaussian", "1/i", "standardised"])
def test_products_are_exact_whatever_torch_allows(shape, kind):
    check(batch_of(kind, *shape).float())


@pytest.mark.drill
def test_hostile_batches_through_the_filters():
    draw = draws("filters")
    number = tries(120, 6000)
    faults = 0
    for _ in range(number):
        seed = draw.getrandbits(32)
        largest = draw.choice([4, 16, 40, 40, 200])
        x = random_batch(random.Random(seed), largest)
        chosen = draw.choice(FILTERS)
        try:
            check(x, [chosen])
        except AssertionError as error:
            faults += 1
            print(f"{seed} {tuple(x.shape)} {x.dtype} {chosen}: {error}")
    record("hostile batches through filters", number, number - faults)
