"""Runs that diverge end with a sentence, and leave what was measured before as it was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from support.drills import draws, record, tries
from support.small_runs import SMALL, rows, run

from rdm_solo import runs
from rdm_solo.callbacks.divergence import Diverged
from rdm_solo.lightning import pl
from rdm_solo.messages import UserError

QUICK = [option for option in SMALL if "pred_hidden" not in option and "num_train" not in option]
QUICK += ["dataset.num_train=32", "knn.k=3", "trainer.enable_progress_bar=false"]
QUICK += ["+backbone.kwargs.width=8", "scheduler.warmup_epochs=0"]


METHODS = ["simsiam", "byol", "swav", "dino", "vanilla", "symsimsiam"]


def options(method: str) -> list[str]:
    few = {"swav": ["method.kwargs.num_prototypes=8"], "dino": ["method.kwargs.num_prototypes=8"]}
    return [*QUICK, f"method={method}", *few.get(method, [])]


class Poison(pl.Callback):
    """NaN or infinity in a tensor of the model, drawn if it has no name, after a step."""

    def __init__(self, name: str, epoch: int, number: float = torch.nan, step=0, draw=None) -> None:
        self.name, self.epoch, self.number, self.step, self.draw = name, epoch, number, step, draw

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if (trainer.current_epoch + 1, batch_idx) == (self.epoch, self.step):
            state = {n: x for n, x in pl_module.state_dict().items() if x.is_floating_point()}
            self.name = self.name or self.draw.choice(sorted(state))
            tensor = state[self.name]
            tensor[(0,) * tensor.ndim] = self.number


def ended(folder: Path, given: list[str], *callbacks: pl.Callback) -> Diverged:
    """How that run ended."""
    folder.mkdir(exist_ok=True)
    with pytest.raises(Diverged) as found:
        run(folder, *given, callbacks=callbacks)
    assert (folder / "failed.txt").read_text() == f"{found.value}\n"
    assert "\n" not in str(found.value)
    return found.value


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("method", "precision"),
    [("simsiam", "bf16-mixed"), ("swav", "32-true"), ("dino", "bf16-mixed")],
)
def test_every_method_ends_in_the_epoch_in_which_it_diverges(method, precision, tmp_path):
    given = [*options(method), "optimizer.lr=1e30", f"trainer.precision={precision}"]
    error = ended(tmp_path, given)
    assert (error.epoch, error.step) == (1, 2)
    for said in ("training diverged in epoch 1, step 2: the loss is NaN", "optimizer.lr=1e+30"):
        assert said in str(error)
    about = {".hydra/config.yaml", ".hydra/overrides.yaml", "owner.json", "train.log"}
    assert files(tmp_path) - {".lock"} == {"failed.txt", "summary.json", *about}
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["diverged"] == {"epoch": 1, "step": 2, "what": error.what}
    assert (summary["last"], summary["last_measured"]) == ({}, {})


LATER = [*options("simsiam"), "filter=target_pow", "optimizer.lr=0.1", "max_epochs=4"]


@pytest.fixture(scope="module")
def later(tmp_path_factory):
    """A run that diverged in epoch 3, how it ended, and its files when that epoch began."""
    folder, kept = tmp_path_factory.mktemp("later"), {}

    class Keep(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 2:
                kept.update({name: (folder / name).read_bytes() for name in files(folder)})

    error = ended(folder, LATER, Keep(), Poison("backbone.stem.0.weight", epoch=3))
    return folder, error, kept


def test_a_later_epoch_leaves_the_earlier_ones_as_they_were(later):
    folder, error, kept = later
    assert (error.epoch, error.step) == (3, 2)
    assert "all 16 rows of the batch that reached the target filter" in str(error)
    assert files(folder) - set(kept) == {"failed.txt", "summary.json"}
    assert "checkpoints/last.ckpt" in kept
    kept.pop("train.log")
    assert all((folder / name).read_bytes() == content for name, content in kept.items())
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["last"]["epoch"] == rows(folder)[-1]["epoch"] == 2
    assert summary["last"]["train/loss"] == rows(folder)[-1]["train/loss"]
    found = runs.load(folder)
    assert (found.diverged, found.epochs) == (3, 2)


def test_export_uses_the_last_finite_checkpoint(later, tmp_path, typed):
    folder = Path(shutil.copytree(later[0], tmp_path / "run"))
    out = typed("rdm_solo.export", f"run={folder}", cwd=tmp_path)
    assert out.returncode == 0, out
    (reason,) = (what for what in runs.load(folder).missing if what.startswith("it failed"))
    assert "training diverged in epoch 3, step 2" in reason
    with pytest.raises(UserError, match="diverged in epoch 3"):
        run(folder, *LATER)


@pytest.mark.drill
def test_whichever_tensor_breaks_the_epochs_before_are_what_stays(tmp_path):
    """Weights, batch norm's statistics, DINO's centre and momentum branches, in loss or not."""
    tried, survived = tries(2, 60), 0
    draw = draws("divergence")
    for number in range(tried):
        method, precision = draw.choice(METHODS), draw.choice(["32-true", "bf16-mixed"])
        epoch, folder = draw.randint(1, 3), tmp_path / str(number)
        given = [*options(method), "optimizer.lr=0.01", "max_epochs=3"]
        number_there = draw.choice([torch.nan, torch.inf, -torch.inf])
        poison = Poison("", epoch, number_there, step=draw.randrange(2), draw=draw)
        error = ended(folder, [*given, f"trainer.precision={precision}"], poison)
        assert error.epoch == epoch, (method, poison.name, str(error))
        found, path = runs.load(folder), folder / "checkpoints" / "last.ckpt"
        assert (found.diverged, found.epochs) == (epoch, epoch - 1)
        assert len(list(folder.glob("spectra/*"))) == epoch - 1
        assert path.exists() == (epoch > 1)
        if epoch > 1:
            saved = torch.load(path, weights_only=True)
            assert saved["epoch"] == epoch - 2
            floats = (x for x in saved["state_dict"].values() if x.is_floating_point())
            assert all(x.isfinite().all() for x in floats)
        survived += 1
    record("divergence", tried, survived)


def _poisoned(rank: int, world: int, folder: str) -> str:
    """A run of one step an epoch, in which the second process alone gets infinity."""
    launched = {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(world)}
    ddp = ["trainer.strategy=ddp", f"trainer.devices={world}", "optimizer.lr=0.01"]
    poison = Poison("backbone.stem.0.weight", epoch=2 if rank else 9, number=torch.inf)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in launched.items():
            patch.setenv(name, value)
        try:
            run(Path(folder), *options("simsiam"), *ddp, callbacks=[poison])
        except Diverged as error:
            return str(error)
    return "it went on"


def test_all_processes_end_where_one_has_found_something(worlds, tmp_path):
    first, second = worlds(2).run(_poisoned, str(tmp_path))
    assert first == second == (tmp_path / "failed.txt").read_text().strip()
    assert "epoch 2: the weight backbone.stem.0.weight holds NaN or infinity" in first
    assert json.loads((tmp_path / "summary.json").read_text())["diverged"]["epoch"] == 2
    saved = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert (saved["epoch"], [row["epoch"] for row in rows(tmp_path)]) == (0, [1])
