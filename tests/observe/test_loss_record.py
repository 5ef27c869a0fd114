"""Jumps of the loss: none while a stuck loss leaves its plateau, and one far above the noise."""

import math

import pytest
import torch

from rdm_solo.observe.loss_record import LossRecord

PLATEAU = math.log(4096) + 1e-6 * torch.rand(60, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("change", "jumps"), [(0.001, 0), (0.01, 0), (1.0, 1)])
def test_a_stuck_loss_may_start_to_move(sign, change, jumps):
    record = LossRecord()
    for loss in [*sign * PLATEAU, sign * PLATEAU[0] + change]:
        record.add(loss)
    record.read()
    assert len(record.jumps) == jumps
