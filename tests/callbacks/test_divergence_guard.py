"""When the guard looks, and at what; whole runs are in tests/train."""

import pytest
import torch
from support.small_runs import SILENT
from torch import nn
from torch.utils.data import DataLoader

from rdm_solo.callbacks.divergence import Diverged, DivergenceGuard
from rdm_solo.ground.lightning import pl


class Regression(pl.LightningModule):
    """A regression whose loss is infinite in one step."""

    def __init__(self, infinite_step: int | None = None) -> None:
        super().__init__()
        self.net = nn.Linear(3, 2)
        self.infinite_step = infinite_step
        self.steps = 0

    def training_step(self, batch: torch.Tensor, batch_idx: int):
        self.steps += 1
        loss = self.net(batch).square().mean()
        if self.steps == self.infinite_step:
            return loss * torch.inf
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(model: Regression, steps: int, folder, **options) -> None:
    guard = DivergenceGuard(lambda epoch, step: f"Look at {epoch} and {step}.")
    trainer = pl.Trainer(
        callbacks=[guard],
        max_epochs=2,
        default_root_dir=folder,
        **SILENT,
        **options,
    )
    batches = list(torch.randn(steps, 5, 3))
    trainer.fit(model, DataLoader(batches, batch_size=None))


def test_a_long_epoch_ends_soon_after_its_first_bad_loss(tmp_path):
    model = Regression(infinite_step=7)
    with pytest.raises(Diverged) as error:
        fit(model, 3 * DivergenceGuard.EVERY, tmp_path)
    assert "Look at 1 and 7." in str(error.value)
    assert model.steps == DivergenceGuard.EVERY


def test_steps_that_the_gradient_scaler_skips_are_no_divergence(tmp_path):
    """The scale begins so high that gradients are infinite, and is halved until they are not."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=1000)
    half = pl.plugins.MixedPrecision("16-mixed", "cpu", scaler)
    model = Regression()
    weight = model.net.weight
    before = weight.detach().clone()
    fit(model, 30, tmp_path, plugins=[half])
    assert model.steps == 60
    assert 1 < scaler.get_scale() < 2.0**39, "some steps were skipped, and others were not"
    assert not torch.equal(weight, before)
    assert weight.isfinite().all()
