"""The network before its first step is measured, and that changes nothing."""

import copy

import pytest
import torch
from support.small_runs import SMALL, all_rows, run

from rdm_solo.ground.lightning import pl

EPOCH = ["max_epochs=1", "scheduler.warmup_epochs=0"]


class Before(pl.Callback):
    """Keep the state from before any callback has measured, and compare it before training."""

    def setup(self, trainer, pl_module, stage):
        self.state = copy.deepcopy(pl_module.state_dict())

    def on_fit_start(self, trainer, pl_module):
        self.random = torch.get_rng_state()

    def on_train_start(self, trainer, pl_module):
        assert torch.equal(self.random, torch.get_rng_state())
        for name, value in self.state.items():
            assert torch.equal(pl_module.state_dict()[name], value), name
        self.backbone = copy.deepcopy(pl_module.backbone)
        self.batches = [views for _, views, _ in trainer.train_dataloader]


SOFTMAX = ["method.kwargs.num_prototypes=24", "optimizer.name=sgd"]


@pytest.mark.parametrize(
    "options",
    [
        ["method=simsiam", "filter=target_pow"],
        ["method=swav", *SOFTMAX],
        ["method=dino", *SOFTMAX],
        ["method=deepclusterv2", "optimizer.name=sgd"],
    ],
)
def test_weights_queues_centres_and_random_numbers_are_as_before(options, tmp_path):
    sizes = [option for option in SMALL if "pred_hidden_dim" not in option]
    run(tmp_path, *sizes, *EPOCH, *options, callbacks=[Before()])
    assert [row["epoch"] for row in all_rows(tmp_path)] == [0, 1]


def test_row_0_is_the_spectrum_of_the_first_epochs_views(tmp_path):
    """Against the eigenvalues of all features, in float64."""
    before = Before()
    run(tmp_path, *SMALL, *EPOCH, callbacks=[before])
    row, first = all_rows(tmp_path)
    with torch.no_grad():
        features = [before.backbone.train()(x).double() for views in before.batches for x in views]
    x = torch.cat(features)
    assert len(x) == 128
    for name, rows in (("erank/features", x), ("erank/features_centred", x - x.mean(0))):
        q = torch.linalg.eigvalsh(rows.T @ rows).clamp_min(1e-300)
        q = q / q.sum()
        assert row[name] == pytest.approx(float((-(q * q.log()).sum()).exp()), rel=1e-6)
    assert "train/loss" in first
    assert "train/loss" not in row
