"""A run on another device gives the weights of the CPU, and its steps wait only as listed."""

from pathlib import Path

import numpy as np
import pytest
from support.device_runs import run_there
from support.small_runs import checkpoint, rows, run, same, small

OPTIONS = [*small("byol"), "filter=online_log1p"]
OPTIONS += ["dataset.num_train=48", "+backbone.kwargs.width=8", "knn.k=3"]

# A step waits for its filter's decompositions, one for each view, and for nothing else.
WAITS = ["_linalg_eigh rdm_solo/filters/batch.py"] * 2


def on_device(folder: Path) -> list[list[str]]:
    """Train on the second device and return the operators for which each step waited."""
    names = []
    for waits in run_there(folder, *OPTIONS):
        names.append([f"{wait.operator} {wait.where.rpartition(':')[0]}" for wait in waits])
    return names


def test_a_run_equals_that_on_the_cpu_and_its_steps_wait_only_for_its_filter(
    on_second_device, tmp_path
):
    """Run views, training, diagnostics, kNN, watch, table and checkpoints on the device."""
    assert on_second_device(on_device, tmp_path / "there") == [WAITS] * 3
    run(tmp_path / "here", *OPTIONS)
    expected = rows(tmp_path / "here")
    actual = rows(tmp_path / "there")
    assert {"val/knn_acc1", "erank/target", "train/loss"} <= expected[-1].keys()
    for row, expected_row in zip(actual, expected, strict=True):
        assert row == pytest.approx(expected_row, rel=1e-9, abs=1e-9)
    # The device calls the CPU's kernels with the same shapes: the same bits. Measured with AVX-512,
    # AVX2, SSE4.2 and without vector instructions.
    weights = checkpoint(tmp_path / "there")["state_dict"]
    assert same(weights, checkpoint(tmp_path / "here")["state_dict"])
    paths = sorted((tmp_path / "here").rglob("*.npz"))
    assert paths
    for path in paths:
        spectra = np.load(tmp_path / "there" / path.relative_to(tmp_path / "here"))
        for name, values in np.load(path).items():
            if name.startswith("lam_"):  # the Gram matrices are other BLAS calls: 1e-16
                np.testing.assert_allclose(spectra[name], values, rtol=0, atol=1e-12, err_msg=name)
