"""A run that is stopped and resumed equals the uninterrupted one, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.same_values import same
from support.small_runs import configure, rows, run

from rdm_solo import train
from rdm_solo.lightning import pl
from rdm_solo.runs import spectra_files

# Of grey images: the weights of a convolution of one channel have strides that are ambiguous, and
# a resumed run whose weights got others sums in another order. Images of three channels hid that.
GREY = ["backbone.kwargs.width=4", "batch_size=32", "trainer.accelerator=cpu", "~callbacks.ranks"]
GREY += ["++trainer.limit_train_batches=3", "++trainer.limit_val_batches=1"]
GREY += ["max_epochs=3", "knn.every_n_epochs=0", "method.kwargs.proj_hidden_dim=16"]
METHODS = {
    "simsiam": ["filter=target_pow"],
    "byol": ["method.momentum.classifier=true"],
    "swav": ["method.kwargs.queue_size=64", "method.kwargs.epoch_queue_starts=0"],
    "dino": ["method.kwargs.num_prototypes=8"],
    # Layers that are left out by chance go on with the checkpoint's random numbers.
    "symsimsiam": ["backbone.name=timm/test_resnet", "backbone.kwargs.drop_path_rate=0.5"],
    "vanilla": ["trainer.accumulate_grad_batches=2"],
}


class PowerCut(pl.Callback):
    """Breaks a run off after its first epoch."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            raise RuntimeError("power cut")


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_equals_one_that_was_not_interrupted(method, tmp_path):
    whole, cut, resumed = (tmp_path / name for name in ("whole", "cut", "resumed"))
    options = [*GREY, f"method={method}", *METHODS[method]]
    run(whole, *options)
    cut.mkdir()
    with pytest.raises(RuntimeError, match="power cut"):
        train.run(configure(*options), cut, [PowerCut()])
    assert len(rows(cut)) == 1
    run(resumed, *options, f"resume={cut}")
    assert len(rows(whole)) == 3
    assert rows(resumed) == rows(whole)
    spectra, again = (spectra_files.read(folder)[0] for folder in (whole, resumed))
    assert spectra.keys() == again.keys()
    for name, array in spectra.items():
        np.testing.assert_array_equal(again[name], array)
    a, b = (
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
        for folder in (whole, resumed)
    )
    assert same(a["state_dict"], b["state_dict"])
    assert same(a["optimizer_states"], b["optimizer_states"])
