"""The network before its first step is measured, and that changes nothing."""

import copy

import pytest
import torch
from support.small_runs import SMALL, all_rows, run, same, small

from rdm_solo.ground.lightning import pl

EPOCH = ["max_epochs=1", "scheduler.warmup_epochs=0"]


class StateBefore(pl.Callback):
    """Keep the state from before any callback has measured, and compare it before training."""

    def setup(self, trainer, pl_module, stage):
        self.state = copy.deepcopy(pl_module.state_dict())

    def on_fit_start(self, trainer, pl_module):
        self.random = torch.get_rng_state()

    def on_train_start(self, trainer, pl_module):
        assert torch.equal(self.random, torch.get_rng_state())
        assert same(dict(pl_module.state_dict()), dict(self.state))
        self.backbone = copy.deepcopy(pl_module.backbone)
        self.batches = [batch[1] for batch in trainer.train_dataloader]


@pytest.mark.parametrize("method", ["swav", "dino", "deepclusterv2"])
def test_weights_queues_centres_and_random_numbers_are_as_before(method, tmp_path):
    run(tmp_path, *small(method), *EPOCH, callbacks=[StateBefore()])
    assert [row["epoch"] for row in all_rows(tmp_path)] == [0, 1]


def test_row_0_is_the_spectrum_of_the_first_epochs_views(tmp_path):
    """Compare with the eigenvalues of all features, in float64."""
    before = StateBefore()
    run(tmp_path, *SMALL, *EPOCH, callbacks=[before])
    untrained, trained = all_rows(tmp_path)
    backbone = before.backbone.train()
    outputs = []
    with torch.no_grad():
        for views in before.batches:
            for view in views:
                outputs.append(backbone(view))
    x = torch.cat(outputs).double()
    assert len(x) == 128
    rows = {"erank/features": x, "erank/features_centred": x - x.mean(0)}
    for name, features in rows.items():
        lam = torch.linalg.eigvalsh(features.T @ features).clamp_min(0)
        entropy = torch.special.entr(lam / lam.sum()).sum()
        erank = float(entropy.exp())
        assert untrained[name] == pytest.approx(erank, rel=1e-6)
    assert "train/loss" in trained
    assert "train/loss" not in untrained
