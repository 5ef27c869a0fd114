"""A run on another device gives the weights of the CPU, and its steps wait only as listed."""

from pathlib import Path

import numpy as np
import pytest
from support.device_runs import run_there
from support.small_runs import checkpoint, rows, run, same, small

OPTIONS = ["dataset.num_train=48", "+backbone.kwargs.width=8", "knn.k=3"]

# A filter's decomposition.
EIGH = "_linalg_eigh rdm_solo/filters/batch.py"
# solo-learn's clipping, which compares the norm of each weight's gradient on the host.
CLIPPED = "_local_scalar_dense solo/methods/dino.py"
# What a step of each run waits for.
RUNS = {
    "simsiam filter=linear trainer.gradient_clip_val=1": [],
    "byol filter=online_log1p": [EIGH],
    "swav method.kwargs.queue_size=16 method.kwargs.epoch_queue_starts=0": [],
    "dino method.kwargs.clip_grad=3": [CLIPPED],
}


def options(words: str) -> list[str]:
    method, *more = words.split()
    return [*small(method), *OPTIONS, *more]


def on_device(folder: Path, words: str) -> list[list[str]]:
    """Train on the second device and return the operators for which each step waited."""
    names = []
    for waits in run_there(folder, *options(words)):
        names.append([f"{wait.operator} {wait.where.rpartition(':')[0]}" for wait in waits])
    return names


@pytest.mark.parametrize("words", RUNS)
def test_a_run_equals_that_on_the_cpu_and_its_steps_wait_only_as_listed(
    on_second_device, words, tmp_path
):
    """Run views, training, diagnostics, kNN, watch, table and checkpoints on the device."""
    steps = on_second_device(on_device, tmp_path / "there", words)
    assert len(steps) == 3
    for step in steps:
        assert list(dict.fromkeys(step)) == RUNS[words]
        if EIGH in RUNS[words]:
            assert step.count(EIGH) == 2, "one for each view"

    run(tmp_path / "here", *options(words))
    expected = rows(tmp_path / "here")
    actual = rows(tmp_path / "there")
    assert {"val/knn_acc1", "erank/target", "train/loss"} <= expected[-1].keys()
    for row, expected_row in zip(actual, expected, strict=True):
        assert row == pytest.approx(expected_row, rel=1e-9, abs=1e-9)
    weights = checkpoint(tmp_path / "there")["state_dict"]
    assert same(weights, checkpoint(tmp_path / "here")["state_dict"])
    paths = sorted((tmp_path / "here").rglob("*.npz"))
    assert paths
    for path in paths:
        spectra = np.load(tmp_path / "there" / path.relative_to(tmp_path / "here"))
        for name, values in np.load(path).items():
            if name.startswith("lam_"):  # the Gram matrices are other BLAS calls: 1e-16
                np.testing.assert_allclose(spectra[name], values, rtol=0, atol=1e-12, err_msg=name)
