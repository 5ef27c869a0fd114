"""The slope of speeds over eigenvalues, and the callback that logs it."""

import pytest
import torch
from conftest import features
from support.small_runs import SMALL, rows, run

from studies.mechanism.speeds import slope


@pytest.mark.parametrize("power", [-0.5, 0.0, 0.25, 1.0])
def test_the_slope_is_the_power_of_the_eigenvalue(power):
    x = (features("gaussian", 256, 32) * torch.arange(1, 33).rsqrt()).double()
    x = x @ torch.linalg.qr(features("gaussian", 32, 32).double()).Q
    lam, vectors = torch.linalg.eigh(x.mT @ x / len(x))
    after = x + 0.01 * x @ (vectors * lam.pow(power)) @ vectors.mT
    assert slope(x, after) == pytest.approx(power, abs=1e-9)


def test_a_run_logs_the_slope_of_each_chosen_epoch(tmp_path):
    chosen = [
        "+callbacks.speeds._target_=studies.mechanism.speeds.Speeds",
        "+callbacks.speeds.rows=32",
    ]
    run(tmp_path, *SMALL, "max_epochs=5", *chosen, "+callbacks.speeds.epochs=[3,5]")
    measured = [row["epoch"] for row in rows(tmp_path) if "rate/slope" in row]
    assert measured == [3, 5]
