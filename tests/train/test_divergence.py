"""Runs that diverge end with a sentence, and leave what was measured before as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.small_runs import SMALL, configure, rows

from rdm_solo import train
from rdm_solo.callbacks.divergence import Diverged
from rdm_solo.lightning import pl

QUICK = [option for option in SMALL if "pred_hidden" not in option and "num_train" not in option]
QUICK += ["dataset.num_train=32", "knn.k=3", "trainer.enable_progress_bar=false"]
QUICK += ["+backbone.kwargs.width=4", "scheduler.warmup_epochs=0", "~callbacks.ranks"]


def options(method: str) -> list[str]:
    few = {"swav": ["method.kwargs.num_prototypes=8"], "dino": ["method.kwargs.num_prototypes=8"]}
    return [*QUICK, f"method={method}", *few.get(method, [])]


class Poison(pl.Callback):
    """NaN or infinity in a tensor of the model, behind step 1 of an epoch."""

    def __init__(self, name: str, epoch: int = 2, number: float = torch.nan) -> None:
        self.name, self.epoch, self.number = name, epoch, number
        self.steps = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.steps += 1
        if (trainer.current_epoch + 1, batch_idx) == (self.epoch, 0):
            tensor = pl_module.state_dict()[self.name]
            tensor[(0,) * tensor.ndim] = self.number


def ended(folder: Path, given: list[str], *callbacks: pl.Callback) -> Diverged:
    """How that run ended."""
    folder.mkdir(exist_ok=True)
    with pytest.raises(Diverged) as found:
        train.run(configure(*given), folder, callbacks)
    assert (folder / "failed.txt").read_text() == f"{found.value}\n"
    assert "\n" not in str(found.value)
    return found.value


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("method", "precision"),
    [
        *(("simsiam", "bf16-mixed"), ("byol", "32-true"), ("swav", "bf16-mixed")),
        *(("dino", "bf16-mixed"), ("vanilla", "32-true"), ("symsimsiam", "32-true")),
    ],
)
def test_every_method_ends_in_the_epoch_in_which_it_diverges(method, precision, tmp_path):
    given = [*options(method), "optimizer.lr=1e30", f"trainer.precision={precision}"]
    error = ended(tmp_path, given)
    assert (error.epoch, error.step) == (1, 2)
    for said in ("training diverged in epoch 1, step 2: the loss is NaN", "optimizer.lr=1e+30"):
        assert said in str(error)
    assert files(tmp_path) == {"failed.txt", "format.json", "summary.json"}
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["diverged"] == {"epoch": 1, "step": 2, "what": error.what}
    assert (summary["last"], summary["last_measured"]) == ({}, {})


def test_a_later_epoch_leaves_the_earlier_ones_as_they_were(tmp_path, caplog):
    given = [*options("simsiam"), "filter=target_pow", "optimizer.lr=0.1", "max_epochs=4"]
    kept: dict[str, bytes] = {}

    class Keep(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 2:
                kept.update({name: (tmp_path / name).read_bytes() for name in files(tmp_path)})

    with caplog.at_level("INFO", "rdm_solo"):
        error = ended(tmp_path, given, Keep(), Poison("backbone.stem.0.weight", epoch=3))
    assert (error.epoch, error.step) == (3, 2)
    assert "all 16 rows of the batch that reached the target filter" in str(error)
    assert files(tmp_path) - set(kept) == {"failed.txt", "summary.json"}
    assert "checkpoints/last.ckpt" in kept
    assert all((tmp_path / name).read_bytes() == content for name, content in kept.items())
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["last"]["epoch"] == rows(tmp_path)[-1]["epoch"] == 2
    assert summary["last"]["train/loss"] == rows(tmp_path)[-1]["train/loss"]
    go_on = f"to go on: python -m rdm_solo.train resume={tmp_path} optimizer.lr=0.01"
    assert go_on in [record.message for record in caplog.records]


@pytest.mark.parametrize(
    ("method", "name", "number"),
    [
        ("simsiam", "backbone.stem.1.running_var", torch.inf),
        ("byol", "momentum_backbone.stem.0.weight", torch.nan),
        ("dino", "dino_loss_func.center", -torch.inf),
    ],
)
def test_weights_and_buffers_that_no_loss_shows_yet(method, name, number, tmp_path):
    """A run of one step an epoch, so that none follows in which the loss would show it."""
    given = [*options(method), "batch_size=32", "optimizer.lr=0.01"]
    error = ended(tmp_path, given, Poison(name, number=number))
    assert (error.epoch, error.step) == (2, None)
    assert error.what == f"the weight {name} holds NaN or infinity"
    saved = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert saved["epoch"] == 0
    assert all(value.isfinite().all() for value in saved["state_dict"].values())
    assert [row["epoch"] for row in rows(tmp_path)] == [1]
