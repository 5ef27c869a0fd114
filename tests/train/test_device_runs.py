"""Whole runs on a device that is not the CPU have the same weights; what their steps wait for."""

from pathlib import Path

import numpy as np
import pytest
from support.device_runs import run_there
from support.small_runs import SMALL, checkpoint, rows, run, same

OPTIONS = [option for option in SMALL if "pred_hidden" not in option]
OPTIONS += ["dataset.num_train=48", "+backbone.kwargs.width=8", "knn.k=3"]
FEW = {name: ["method.kwargs.num_prototypes=8"] for name in ("swav", "dino")}

# What waits in a step of each run: a filter's own decomposition, and
EIGH = "_linalg_eigh rdm_solo/filters/batch.py"
# solo-learn's clipping, which compares the norm of each weight's gradient on the host.
CLIPPED = "_local_scalar_dense solo/methods/dino.py"
RUNS = {
    "simsiam filter=linear trainer.gradient_clip_val=1": [],
    "byol filter=online_log1p": [EIGH],
    "swav method.kwargs.queue_size=16 method.kwargs.epoch_queue_starts=0": [],
    "dino method.kwargs.clip_grad=3": [CLIPPED],
}


def options(words: str) -> list[str]:
    method, *more = words.split()
    return [*OPTIONS, f"method={method}", *FEW.get(method, []), *more]


def on_device(folder: Path, words: str, *more: str) -> list[list[str]]:
    """Train there and return what each step waited in."""
    steps = run_there(folder, *options(words), *more)
    return [[f"{w.operator} {w.where.rpartition(':')[0]}" for w in step] for step in steps]


@pytest.mark.parametrize("words", RUNS)
def test_a_run_is_that_on_the_cpu_and_its_steps_wait_for_what_is_listed(
    on_second_device, words, tmp_path
):
    """Views, training, diagnostics, kNN, watch, table and checkpoints are on the device."""
    steps = on_second_device(on_device, tmp_path / "there", words)
    assert len(steps) == 3
    for step in steps:
        assert list(dict.fromkeys(step)) == RUNS[words]
        assert step.count(EIGH) == 2 * (EIGH in RUNS[words]), "one for each view"
    run(tmp_path / "here", *options(words))
    there, here = rows(tmp_path / "there"), rows(tmp_path / "here")
    assert {"val/knn_acc1", "erank/target", "train/loss"} <= here[-1].keys()
    for row, want in zip(there, here, strict=True):
        assert row == pytest.approx(want, rel=1e-9, abs=1e-9)
    a, b = checkpoint(tmp_path / "there"), checkpoint(tmp_path / "here")
    assert same(a["state_dict"], b["state_dict"])
    spectra = sorted((tmp_path / "here").rglob("*.npz"))
    assert spectra
    for path in spectra:
        mine = np.load(tmp_path / "there" / path.relative_to(tmp_path / "here"))
        for name, values in np.load(path).items():
            if name.startswith("lam_"):  # the Gram matrices are other BLAS calls: 1e-16
                np.testing.assert_allclose(mine[name], values, rtol=0, atol=1e-12, err_msg=name)
