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


STEPS = torch.arange(3000)
NOISE = torch.randn(3000, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "losses",
    [NOISE, (-STEPS / 500).exp() + 0.01 * NOISE, -1 + 1e-7 * NOISE],
    ids=["noise", "decay", "constant"],
)
def test_noise_is_no_jump(losses):
    record = LossRecord()
    for loss in losses:
        record.add(loss)
    record.read()
    assert record.count == 3000
    assert record.total == pytest.approx(float(losses.double().sum()), rel=1e-9, abs=1e-9)
    assert not record.jumps
