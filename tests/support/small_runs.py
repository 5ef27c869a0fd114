"""Small training runs on the digits, and their tables."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir

from rdm_solo import train
from rdm_solo.cli import config_folder
from rdm_solo.lightning import pl

QUICK = ["max_epochs=2", "scheduler.warmup_epochs=1", "trainer.enable_progress_bar=false"]

# A run as small as it can be, with all that it writes.
DRAWN = ["dataset=synthetic", "dataset.num_train=64", "dataset.num_val=32", "batch_size=16"]
DRAWN += ["dataset.image_size=8", "backbone.name=small_resnet"]
DRAWN += ["backbone.kwargs.zero_init_residual=null", "method.kwargs.proj_hidden_dim=32"]
DRAWN += ["method.kwargs.proj_output_dim=16", "method.kwargs.pred_hidden_dim=8"]
DRAWN += ["trainer.accelerator=cpu", "knn.every_n_epochs=1"]
# The same without figures/erank.png, which takes a third of its time.
SMALL = [*DRAWN, "~callbacks.ranks"]


def configure(*overrides: str):
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return compose("config", overrides=[*QUICK, *overrides])


def run(folder: Path, *overrides: str, callbacks: Sequence[pl.Callback] = ()) -> dict:
    folder.mkdir(parents=True, exist_ok=True)
    return train.run(configure(*overrides), folder, callbacks)


def rows(folder: Path) -> list[dict[str, float]]:
    with open(folder / "metrics.csv", newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


class CutInEpoch(pl.Callback):
    """Ends a run where that epoch (the first is 1) begins, as a kill would."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch + 1 == self.epoch:
            raise RuntimeError("killed")
