"""Train small runs on synthetic images and read their tables."""

import csv
import json
from pathlib import Path

import pytest
import torch

from rdm_solo.ground.lightning import pl
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.train import compose
from rdm_solo.train.run import run as train

# Columns of images that only the user of a watch passes.
WATCHED = {name for name in COLUMNS if "/held_out" in name or name.endswith("/patches")}

QUICK = ["max_epochs=2", "scheduler.warmup_epochs=1", "trainer.enable_progress_bar=false"]

# The smallest run that writes all files.
DRAWN = [
    "dataset=synthetic",
    "dataset.num_train=64",
    "dataset.num_val=32",
    "dataset.image_size=8",
    "batch_size=16",
    "backbone.name=small_resnet",
    "backbone.kwargs.zero_init_residual=null",
    "method.kwargs.proj_hidden_dim=32",
    "method.kwargs.proj_output_dim=16",
    "method.kwargs.pred_hidden_dim=8",
    "trainer.accelerator=cpu",
    "threads=1",
    "knn.every_n_epochs=1",
]
# The run of the fixture ``finished``. No test changes its folder.
FINISHED = [*DRAWN, "filter=target_pow", "max_epochs=3"]
FINISHED += ["scheduler.warmup_epochs=1", "trainer.enable_progress_bar=false"]
# The smallest run without figures/erank.png, which takes a third of its time.
SMALL = [*DRAWN, "~callbacks.ranks"]
# The same for methods without a predictor.
WITHOUT_PREDICTOR = [option for option in SMALL if "pred_hidden" not in option]

# A Trainer that writes and prints nothing.
SILENT = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def configure(*overrides: str):
    """Return the config of a quick run. An override replaces an earlier one of the same key."""
    chosen = {}
    for override in [*QUICK, *overrides]:
        key = override.partition("=")[0]
        chosen[key] = override
    return compose(list(chosen.values()))


def small(method: str) -> list[str]:
    """Return the options of the smallest run of a method without a learnable predictor."""
    options = [*WITHOUT_PREDICTOR, f"method={method}"]
    if method in ("swav", "dino"):
        options.append("method.kwargs.num_prototypes=8")
    return options


def run(folder: Path, *overrides: str, callbacks=()) -> dict:
    """Train a quick run in that folder."""
    return train(configure(*overrides), folder, callbacks, overrides)


def rows(folder: Path) -> list[dict]:
    """Return the epochs of a run's table, without empty cells and the untrained network."""
    return [row for row in all_rows(folder) if row["epoch"]]


def all_rows(folder: Path) -> list[dict]:
    """Return all rows, including the untrained network's."""
    table = []
    lines = (folder / "metrics.csv").read_text().splitlines()
    for row in csv.DictReader(lines):
        table.append({name: float(text) for name, text in row.items() if text})
    return table


def learned(folder: Path) -> bool:
    """Return whether the loss falls and kNN rises above the untrained network's.

    In three epochs of SimSiam with sigma^-0.5 on digits, the loss falls by 0.25 to 0.3 and kNN
    rises by 8 to 16 points (three seeds, on a CPU). With a learning rate of 1e-9 the loss rises,
    and kNN rises by 7.5 points, because batch norm adapts.
    """
    untrained, first, *_, last = all_rows(folder)
    falls = last["train/loss"] < first["train/loss"] - 0.1
    return falls and last["val/knn_acc1"] > untrained["val/knn_acc1"] + 4


def read_summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def files(folder: Path) -> set[str]:
    """Return the names of a run's files, without the lock."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return names - {".lock"}


def checkpoint(folder: Path) -> dict:
    """Return the content of a run's last checkpoint."""
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def same(a: object, b: object) -> bool:
    """Return whether two nested values have bit-identical tensors."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


class CutInEpoch(pl.Callback):
    """Raise an error at the beginning of an epoch (the first is 1), in place of a kill."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch + 1 == self.epoch:
            raise RuntimeError("killed")


def run_until(epoch: int, folder: Path, *options: str) -> None:
    """Start or resume a run that is killed at the beginning of an epoch."""
    with pytest.raises(RuntimeError, match="killed"):
        run(folder, *options, callbacks=[CutInEpoch(epoch)])
