"""Jumps of the loss: none while a stuck loss leaves its plateau, and one far above the noise."""

import math

import pytest
import torch

from rdm_solo.observe.loss_record import LossRecord

STEPS = torch.arange(3000)
NOISE = torch.randn(3000, generator=torch.Generator().manual_seed(0))
PLATEAU = math.log(4096) + 1e-6 * NOISE[:60].sigmoid()
ZEROS = torch.zeros(60)


def recorded(losses):
    record = LossRecord()
    for loss in losses:
        record.add(loss)
    record.read()
    return record


@pytest.mark.parametrize(
    ("before", "loss", "jumps"),
    [
        (PLATEAU, PLATEAU[0] + 0.001, 0),
        (PLATEAU, PLATEAU[0] + 0.01, 0),
        (PLATEAU, PLATEAU[0] + 1, 1),
        (-PLATEAU, 0.01 - PLATEAU[0], 0),
        (-PLATEAU, 1 - PLATEAU[0], 1),
        (ZEROS, 1e-12, 0),
        ([*ZEROS, 1e-12, 1e-11], 1e-10, 0),
        (ZEROS, 0.1, 1),
        ([1e8, *PLATEAU], 50.0, 1),
    ],
)
def test_a_loss_that_leaves_its_plateau_jumps_if_it_rises_far(before, loss, jumps):
    assert len(recorded([*before, loss]).jumps) == jumps


@pytest.mark.parametrize(
    "losses",
    [NOISE, (-STEPS / 500).exp() + 0.01 * NOISE, -1 + 1e-7 * NOISE],
    ids=["noise", "decay", "constant"],
)
def test_noise_is_no_jump(losses):
    record = recorded(losses)
    assert record.count == 3000
    assert record.total == pytest.approx(float(losses.double().sum()), rel=1e-9, abs=1e-9)
    assert not record.jumps
