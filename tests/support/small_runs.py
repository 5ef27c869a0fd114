"""Small training runs on synthetic images, and their tables."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from rdm_solo.ground.lightning import pl
from rdm_solo.train import compose
from rdm_solo.train.run import run as train

QUICK = ["max_epochs=2", "scheduler.warmup_epochs=1", "trainer.enable_progress_bar=false"]

# The smallest run that writes all files.
DRAWN = ["dataset=synthetic", "dataset.num_train=64", "dataset.num_val=32", "batch_size=16"]
DRAWN += ["dataset.image_size=8", "backbone.name=small_resnet", "threads=1"]
DRAWN += ["backbone.kwargs.zero_init_residual=null", "method.kwargs.proj_hidden_dim=32"]
DRAWN += ["method.kwargs.proj_output_dim=16", "method.kwargs.pred_hidden_dim=8"]
DRAWN += ["trainer.accelerator=cpu", "knn.every_n_epochs=1"]
# The same without figures/erank.png, which takes a third of its time.
SMALL = [*DRAWN, "~callbacks.ranks"]

# A Trainer that writes and prints nothing.
SILENT = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
SILENT |= {"enable_progress_bar": False, "enable_model_summary": False}


def configure(*overrides: str) -> Any:
    """Return the config of a quick run; an override replaces an earlier one of the same key."""
    chosen = {override.partition("=")[0]: override for override in [*QUICK, *overrides]}
    return compose(list(chosen.values()))


def run(folder: Path, *overrides: str, callbacks: Sequence[pl.Callback] = ()) -> dict:
    """Train a quick run in that folder."""
    return train(configure(*overrides), folder, callbacks, overrides)


def rows(folder: Path) -> list[dict[str, float]]:
    """Return the epochs of a run's table, without empty cells and the untrained network."""
    return [row for row in all_rows(folder) if row["epoch"]]


def all_rows(folder: Path) -> list[dict[str, float]]:
    """Return all rows, including the untrained network's."""
    with open(folder / "metrics.csv", newline="") as file:
        return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]


def checkpoint(folder: Path) -> dict[str, Any]:
    """Return the content of a run's last checkpoint."""
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def train_study(options: Sequence[str], folder: Path) -> dict[str, Any]:
    """Do what ``studies.training.train`` does, in this process and with two batches an epoch."""
    run(folder, *options, "++trainer.limit_train_batches=2")
    return json.loads((folder / "summary.json").read_text())


def same(a: object, b: object) -> bool:
    """Return whether two nested values have bit-identical tensors."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


class CutInEpoch(pl.Callback):
    """Raise an error at the beginning of an epoch (the first is 1), in place of a kill."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch + 1 == self.epoch:
            raise RuntimeError("killed")
