"""A run that is stopped and resumed equals the uninterrupted one, to the bit."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_runs import all_rows, checkpoint, rows, run, run_until, same

from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS as DESCRIBED
from rdm_solo.runs import checkpoints, spectra_files

# The default data set has grey images. Weights of a convolution with one input channel have
# ambiguous strides, and a resumed run whose weights get other strides sums in another order.
# Images with three channels would hide that.
GREY = [
    "dataset=digits",
    "backbone.kwargs.width=8",
    "batch_size=32",
    "trainer.accelerator=cpu",
    "~callbacks.ranks",
    "++trainer.limit_train_batches=3",
    "++trainer.limit_val_batches=1",
    "max_epochs=3",
    "knn.every_n_epochs=0",
    "method.kwargs.proj_hidden_dim=16",
]
METHODS = {
    "simsiam": ["filter=target_pow", "p={schedule: steps, 1: -0.5, 2: 0, 3: -1}"],
    "byol": ["method.momentum.classifier=true", "filter=online_pow", "filter.momentum=0.9"],
    "swav": ["method.kwargs.queue_size=64", "method.kwargs.epoch_queue_starts=0"],
    "dino": ["method.kwargs.num_prototypes=8"],
    # Layers that are left out by chance resume with the checkpoint's random numbers.
    "symsimsiam": ["backbone.name=timm/test_resnet", "+backbone.kwargs.drop_path_rate=0.5"],
    "vanilla": ["trainer.accumulate_grad_batches=2"],
    "wmse": ["method.kwargs.whitening_size=32"],
    # k-means clusters the images of the epoch before, so these batches hold nearly all images.
    "deepclusterv2": [
        "method.kwargs.num_prototypes=[8,8]",
        "batch_size=256",
        "++trainer.limit_train_batches=5",
    ],
}
CASES: list = ["byol"]
for name, description in DESCRIBED.items():
    if solo_learn.GENERATION in description.versions and name not in CASES:
        CASES.append(pytest.param(name, marks=pytest.mark.long))


def options_of(method: str) -> list[str]:
    options = [*GREY, f"method={method}", *METHODS.get(method, [])]
    if DESCRIBED[method].queue:
        options.append("method.kwargs.queue_size=96")
    return options


def train_and_resume(folder: Path, options: list[str]) -> None:
    """Train a run of three epochs, and one that is killed in the second epoch and resumes."""
    run(folder / "uninterrupted", *options)
    run_until(2, folder / "resumed", *options)
    assert len(rows(folder / "resumed")) == 1
    run(folder / "resumed", *options)


def assert_equal(resumed: Path, expected: Path) -> None:
    assert all_rows(resumed) == all_rows(expected)
    spectra = spectra_files.read(resumed)[0]
    expected_spectra = spectra_files.read(expected)[0]
    assert spectra.keys() == expected_spectra.keys()
    for name, array in expected_spectra.items():
        np.testing.assert_array_equal(spectra[name], array)
    for name in ("state_dict", "optimizer_states"):
        assert same(checkpoint(resumed)[name], checkpoint(expected)[name])


@pytest.mark.parametrize("method", CASES)
def test_a_resumed_run_equals_one_that_was_not_interrupted(method, tmp_path):
    train_and_resume(tmp_path, options_of(method))
    expected = tmp_path / "uninterrupted"
    assert_equal(tmp_path / "resumed", expected)
    assert len(rows(expected)) == 3
    for row in all_rows(expected):
        assert "val/knn_acc1" not in row, "knn.every_n_epochs=0"


@pytest.mark.long
def test_a_run_that_shares_epochs_equals_one_that_trains_them(tmp_path):
    options = [*GREY, "filter=target_pow", "checkpoint.keep=all", "max_epochs=4"]
    steps = "p={schedule: steps, 1: -0.5, 3: 0.5}"
    expected = tmp_path / "alone" / "steps"
    run(expected, *options, steps, "share_epochs=true")
    assert list(checkpoints.by_epoch(expected)) == [1, 2, 3, 4]

    shared = tmp_path / "sweep" / "steps"
    run(shared.with_name("seed"), *options, "p=-0.5", "seed=1")
    run(shared.with_name("shorter"), *options, "p=-0.5", "++trainer.limit_train_batches=2")
    run(shared.with_name("first"), *options, "p={schedule: steps, 1: -0.5, 2: 0.5}")
    run(shared.with_name("alike"), *options, "p=-0.5")
    run(shared, *options, steps, "share_epochs=true")
    assert list(checkpoints.by_epoch(shared)) == [3, 4]  # trained by itself
    assert_equal(shared, expected)

    # A damaged checkpoint is passed over.
    last_shared = checkpoints.by_epoch(shared.with_name("alike"))[2]
    last_shared.write_bytes(last_shared.read_bytes()[:-100])
    shutil.rmtree(shared)
    run(shared, *options, steps, "share_epochs=true")
    assert list(checkpoints.by_epoch(shared)) == [2, 3, 4]
    assert all_rows(shared) == all_rows(expected)


def _train_and_resume(rank: int, world: int, method: str, folder: str) -> None:
    options = [*options_of(method), *METHODS["symsimsiam"]]
    options += ["trainer.strategy=ddp", f"trainer.devices={world}"]
    if method == "swav":
        options.append("batch_size=16")
    train_and_resume(Path(folder), options)


@pytest.mark.long
@pytest.mark.parametrize("method", ["swav", "deepclusterv2"])
def test_two_processes_resume_exactly(method, worlds, tmp_path):
    """Each process has its own queue or memory of its images, and its own random numbers."""
    worlds(2).run(_train_and_resume, method, str(tmp_path))
    expected = checkpoint(tmp_path / "uninterrupted")
    weights = expected["state_dict"]
    if method == "swav":
        first, second = weights["queue"].chunk(2, 1)
        assert first.shape[1] == 32
        assert not torch.equal(first, second)
    else:
        assert weights["local_memory_index"].unique().numel() == 2 * 2 * 256
    saved = expected["callbacks"]["Checkpoints"]
    assert len(saved["random"]) == 2
    assert same(checkpoint(tmp_path / "resumed")["callbacks"]["Checkpoints"], saved)
    assert_equal(tmp_path / "resumed", tmp_path / "uninterrupted")
