"""When the guard looks, and at what; whole runs are in tests/train."""

import pytest
import torch
from support.small_runs import SILENT
from torch import nn
from torch.utils.data import DataLoader

from rdm_solo.callbacks.divergence import Diverged, DivergenceGuard
from rdm_solo.ground.lightning import pl


class Regression(pl.LightningModule):
    """The loss is multiplied by ``factor(step)``."""

    def __init__(self, factor=lambda step: 1.0) -> None:
        super().__init__()
        self.net = nn.Linear(3, 2)
        self.factor, self.steps = factor, 0

    def training_step(self, batch: torch.Tensor, batch_idx: int):
        self.steps += 1
        return self.net(batch).square().mean() * self.factor(self.steps)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer_of(folder, steps: int, **options):
    guard = DivergenceGuard(lambda epoch, step: f"Look at {epoch} and {step}.")
    options = SILENT | {"max_epochs": 2, "default_root_dir": folder, **options}
    made = pl.Trainer(callbacks=[guard], **options)
    return made, DataLoader(list(torch.randn(steps, 5, 3).unbind()), batch_size=None)


def test_a_long_epoch_ends_soon_after_its_first_bad_loss(tmp_path):
    model = Regression(lambda step: torch.inf if step == 7 else 1.0)
    trainer, batches = trainer_of(tmp_path, steps=3 * DivergenceGuard.EVERY)
    with pytest.raises(Diverged) as found:
        trainer.fit(model, batches)
    assert str(found.value) == (
        "training diverged in epoch 1, step 7: the loss is NaN or infinite. Look at 1 and 7."
    )
    assert model.steps == DivergenceGuard.EVERY


def test_steps_that_float16s_scaler_skips_are_no_divergence(tmp_path):
    """The scale begins so high that gradients are infinite, and is halved until they are not."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=1000)
    half = pl.plugins.MixedPrecision("16-mixed", "cpu", scaler)
    trainer, batches = trainer_of(tmp_path, steps=30, plugins=[half])
    model = Regression()
    before = model.net.weight.detach().clone()
    trainer.fit(model, batches)
    assert model.steps == 60
    assert 1 < scaler.get_scale() < 2.0**39, "steps were skipped, and steps were made"
    assert not torch.equal(model.net.weight, before)
    assert all(p.isfinite().all() for p in model.parameters())
