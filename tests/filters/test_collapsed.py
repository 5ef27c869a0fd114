"""Collapsed batches through the filters, on a CPU and on a device that is none."""

import pytest
from support.collapsed import KINDS, errors
from support.second_device import DEVICE

SHAPES = [(16, 48), (48, 48), (48, 16)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_collapsed_batches_are_filtered(kind, shape, on_second_device):
    results = errors(kind, shape, "cpu")
    on_device = on_second_device(errors, kind, shape, DEVICE)
    assert max(results.values()) < 1
    assert max(on_device.values()) < 1
