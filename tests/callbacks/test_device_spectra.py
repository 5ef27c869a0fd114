"""Diagnostics of a method of one's own on a device like a GPU, with and without float64."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from support.device_runs import Accelerator
from support.second_device import DEVICE, without_float64
from torch import nn
from torch.utils.data import DataLoader

from rdm_solo.callbacks import Diagnostics
from rdm_solo.filters import SpectralFilter
from rdm_solo.lightning import pl

pytestmark = [pytest.mark.filterwarnings("ignore:.*num_workers", "ignore:.*many workers")]


class Own(pl.LightningModule):
    """A projector with a target filter behind it; what diagnostics read is returned."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.projector, self.filter = nn.Linear(6, 4), SpectralFilter("target", "pow", -0.5)

    def training_step(self, batch: torch.Tensor, batch_idx: int):
        online = self.projector(batch)
        target = self.filter(online)
        loss = -nn.functional.cosine_similarity(online, target).mean()
        return {"loss": loss, "online": online.detach(), "target": target}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trained(folder: Path, device: str, float64: bool = True) -> dict[str, float]:
    """The scalars of the second epoch."""
    folder.mkdir()
    made = Diagnostics(folder)
    there: dict[str, object] = {"accelerator": "cpu"}
    if device == DEVICE:
        strategy = pl.strategies.SingleDeviceStrategy(DEVICE)
        there = {"accelerator": Accelerator(), "strategy": strategy}
    trainer = pl.Trainer(
        **there,
        **{"max_epochs": 2, "logger": False, "enable_checkpointing": False, "devices": 1},
        **{"enable_progress_bar": False, "enable_model_summary": False},
        default_root_dir=folder,
        callbacks=[made],
    )
    torch.manual_seed(1)
    batches = DataLoader(list(torch.randn(4, 16, 6).unbind()), batch_size=None)
    with contextlib.nullcontext() if float64 else without_float64():
        trainer.fit(Own(), batches)
    return made.latest.scalars


@pytest.mark.parametrize("float64", [True, False])
def test_spectra_are_those_of_the_cpu(on_second_device, tmp_path, float64):
    found = on_second_device(trained, tmp_path / "there", DEVICE, float64)
    want = trained(tmp_path / "here", "cpu")
    assert {"erank/online", "erank/target"} <= want.keys()
    assert found == pytest.approx(want, rel=1e-9, abs=1e-9, nan_ok=True)
