"""A run that is stopped and resumed equals the uninterrupted one, to the bit."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_runs import CutInEpoch, all_rows, checkpoint, rows, run, same

from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS as DESCRIBED
from rdm_solo.runs import spectra_files

# Of grey images: the weights of a convolution of one channel have strides that are ambiguous, and
# a resumed run whose weights got others sums in another order. Images of three channels hid that.
GREY = ["backbone.kwargs.width=8", "batch_size=32", "trainer.accelerator=cpu", "~callbacks.ranks"]
GREY += ["++trainer.limit_train_batches=3", "++trainer.limit_val_batches=1"]
GREY += ["max_epochs=3", "knn.every_n_epochs=0", "method.kwargs.proj_hidden_dim=16"]
METHODS = {
    "simsiam": ["filter=target_pow"],
    "byol": ["method.momentum.classifier=true", "filter=online_pow", "filter.momentum=0.9"],
    "swav": ["method.kwargs.queue_size=64", "method.kwargs.epoch_queue_starts=0"],
    "dino": ["method.kwargs.num_prototypes=8"],
    # Layers that are left out by chance resume with the checkpoint's random numbers.
    "symsimsiam": ["backbone.name=timm/test_resnet", "+backbone.kwargs.drop_path_rate=0.5"],
    "vanilla": ["trainer.accumulate_grad_batches=2"],
    "deepclusterv2": [  # of nearly all images, since k-means is of those of the epoch before
        *("method.kwargs.num_prototypes=[8,8]", "batch_size=256"),
        "++trainer.limit_train_batches=5",
    ],
}
HERE = [name for name, known in DESCRIBED.items() if solo_learn.GENERATION in known.versions]
# All others of solo-learn's.
OTHERS = [name for name in HERE if name not in METHODS]
LONG = [pytest.param(n, marks=pytest.mark.long) for n in ("simsiam", "dino", "vanilla", *OTHERS)]


@pytest.mark.parametrize("method", ["byol", "swav", "symsimsiam", "deepclusterv2", *LONG])
def test_a_resumed_run_equals_one_that_was_not_interrupted(method, tmp_path):
    whole, resumed = (tmp_path / name for name in ("whole", "resumed"))
    options = [*GREY, f"method={method}", *METHODS.get(method, [])]
    if DESCRIBED[method].queue:
        options.append("method.kwargs.queue_size=96")
    if method == "wmse":
        options.append("method.kwargs.whitening_size=32")
    run(whole, *options)
    with pytest.raises(RuntimeError, match="killed"):
        run(resumed, *options, callbacks=[CutInEpoch(2)])
    assert len(rows(resumed)) == 1
    run(resumed, *options)
    assert len(rows(whole)) == 3
    assert not any("val/knn_acc1" in row for row in all_rows(whole)), "knn.every_n_epochs=0"
    assert rows(resumed) == rows(whole)
    spectra, again = (spectra_files.read(folder)[0] for folder in (whole, resumed))
    assert spectra.keys() == again.keys()
    for name, array in spectra.items():
        np.testing.assert_array_equal(again[name], array)
    a, b = checkpoint(whole), checkpoint(resumed)
    assert same(a["state_dict"], b["state_dict"])
    assert same(a["optimizer_states"], b["optimizer_states"])


def _two(rank: int, world: int, method: str, folder: str) -> None:
    """A run of two processes, and its last two epochs once more from its first checkpoint."""
    whole, resumed = (Path(folder) / name for name in ("whole", "resumed"))
    options = [f"method={method}", *METHODS[method], *METHODS["symsimsiam"], "checkpoint.keep=all"]
    options += ["trainer.strategy=ddp", f"trainer.devices={world}"]
    options += ["batch_size=16"] if method == "swav" else []
    run(whole, *GREY, *options)
    if rank == 0:
        last = resumed / "checkpoints" / "last.ckpt"
        shutil.copytree(whole, resumed)
        (resumed / "checkpoints" / "epoch_0001.ckpt").replace(last)
        (resumed / "summary.json").unlink()
    torch.distributed.barrier()
    run(resumed, *GREY, *options)


@pytest.mark.long
@pytest.mark.parametrize("method", ["swav", "deepclusterv2"])
def test_two_processes_resume_as_if_nothing_had_happened(method, worlds, tmp_path):
    """Each has a queue, or a memory of its images, and random numbers of its own."""
    worlds(2).run(_two, method, str(tmp_path))
    a, b = checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "resumed")
    if method == "swav":
        first, second = a["state_dict"]["queue"].chunk(2, 1)
        assert first.shape[1] == 32
        assert not torch.equal(first, second)
    else:
        assert a["state_dict"]["local_memory_index"].unique().numel() == 2 * 2 * 256
    assert same(a["state_dict"], b["state_dict"])
    assert same(a["callbacks"]["Checkpoints"], b["callbacks"]["Checkpoints"])
    assert len(a["callbacks"]["Checkpoints"]["random"]) == 2
    assert rows(tmp_path / "whole") == rows(tmp_path / "resumed")
