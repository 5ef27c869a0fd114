"""A run that diverges ends with a one-line error, and its earlier epochs stay as they were."""

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.drills import draws, record, tries
from support.small_runs import all_rows, checkpoint, files, read_summary, rows, run, small

from rdm_solo import runs
from rdm_solo.callbacks.divergence import Diverged
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl

QUICK = ["dataset.num_train=32", "knn.k=3", "+backbone.kwargs.width=8"]
QUICK += ["scheduler.warmup_epochs=0"]
METHODS = ["simsiam", "byol", "swav", "dino", "vanilla", "symsimsiam"]


@dataclass(eq=False)
class Poison(pl.Callback):
    """Put NaN or infinity into an element of a tensor of the model after a step.

    The element is drawn, and so is the tensor if it has no name.
    """

    draw: random.Random
    epoch: int
    name: str = ""
    number: float = torch.nan
    step: int = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if (trainer.current_epoch + 1, batch_idx) != (self.epoch, self.step):
            return
        state = pl_module.state_dict()
        if not self.name:
            names = [name for name, x in state.items() if x.is_floating_point()]
            self.name = self.draw.choice(names)
        tensor = state[self.name]
        self.index = tuple(self.draw.randrange(length) for length in tensor.shape)
        tensor[self.index] = self.number


def divergence(folder: Path, options: list[str], *callbacks: pl.Callback) -> Diverged:
    """Return the error with which that run ended."""
    folder.mkdir(exist_ok=True)
    with pytest.raises(Diverged) as error:
        run(folder, *options, *QUICK, callbacks=callbacks)
    assert (folder / "failed.txt").read_text() == f"{error.value}\n"
    assert "\n" not in str(error.value)
    return error.value


@pytest.mark.parametrize(("method", "precision"), [("swav", "32-true"), ("dino", "bf16-mixed")])
def test_every_method_ends_in_the_epoch_in_which_it_diverges(method, precision, tmp_path):
    options = ["optimizer.lr=1e30", f"trainer.precision={precision}"]
    error = divergence(tmp_path, [*small(method), *options])
    assert "optimizer.lr=1e+30" in str(error)
    assert files(tmp_path) == {
        ".hydra/config.yaml",
        ".hydra/overrides.yaml",
        "failed.txt",
        "metrics.csv",
        "owner.json",
        "summary.json",
        "train.log",
    }
    assert [row["epoch"] for row in all_rows(tmp_path)] == [0]
    summary = read_summary(tmp_path)
    assert summary["diverged"] == {"epoch": 1, "step": 2, "what": error.description}
    assert summary["last"] == {}


LATER = [*small("simsiam"), "filter=target_pow", "optimizer.lr=0.1", "max_epochs=4"]


@pytest.fixture(scope="module")
def later(tmp_path_factory):
    """Return a run that diverged in epoch 3, its error, and its files when that epoch began."""
    folder = tmp_path_factory.mktemp("later")
    contents = {}

    class Keep(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if trainer.current_epoch == 2:
                for name in files(folder):
                    contents[name] = (folder / name).read_bytes()

    poison = Poison(draws("later"), epoch=3, name="backbone.stem.0.weight")
    return folder, divergence(folder, LATER, Keep(), poison), contents


def test_a_later_epoch_leaves_the_earlier_ones_as_they_were(later):
    folder, error, contents = later
    assert error.epoch == 3
    assert error.step == 2
    assert files(folder) - set(contents) == {"failed.txt", "summary.json"}
    assert "checkpoints/last.ckpt" in contents
    for name in set(contents) - {"train.log"}:
        assert (folder / name).read_bytes() == contents[name]
    loaded = runs.load(folder)
    assert loaded.diverged == 3
    assert loaded.epochs == 2
    assert read_summary(folder)["last"]["train/loss"] == loaded.last("train/loss")


def test_the_last_finite_checkpoint_is_exported_and_the_run_is_not_resumed(later, tmp_path, typed):
    out = typed("rdm_solo.export", f"run={later[0]}", f"out={tmp_path / 'export'}", cwd=tmp_path)
    assert out.returncode == 0, out
    with pytest.raises(UserError, match="diverged in epoch 3"):
        run(later[0], *LATER, *QUICK)


@pytest.mark.drill
def test_the_earlier_epochs_stay_whichever_tensor_breaks(tmp_path):
    """Break weights, statistics of batch norms, DINO's centre or momentum branches."""
    count = tries(2, 60)
    draw = draws("divergence")
    for attempt in range(count):
        method = draw.choice(METHODS)
        precision = draw.choice(["32-true", "bf16-mixed"])
        epoch = draw.randint(1, 3)
        number = draw.choice([torch.nan, torch.inf, -torch.inf])
        step = draw.randrange(2)
        poison = Poison(draw, epoch, number=number, step=step)
        options = ["optimizer.lr=0.01", "max_epochs=3", f"trainer.precision={precision}"]

        folder = tmp_path / str(attempt)
        error = divergence(folder, [*small(method), *options], poison)
        assert error.epoch == epoch, (method, poison.name, poison.index)
        loaded = runs.load(folder)
        assert loaded.diverged == epoch
        assert loaded.epochs == epoch - 1
        assert len(list(folder.glob("spectra/*"))) == epoch - 1
        assert len(list(folder.glob("checkpoints/last.ckpt"))) == min(epoch - 1, 1)
        if epoch > 1:
            saved = checkpoint(folder)
            assert saved["epoch"] == epoch - 2
            for name, tensor in saved["state_dict"].items():
                assert tensor.isfinite().all(), name
    record("divergence", count, count)


def _poisoned(rank: int, world: int, folder: str) -> str:
    """Return the error of a run in which only the second process gets infinity."""
    ddp = ["trainer.strategy=ddp", f"trainer.devices={world}", "optimizer.lr=0.01"]
    epoch = 2 if rank == 1 else 9  # 9: never
    poison = Poison(draws("two"), epoch, "backbone.stem.0.weight", torch.inf)
    try:
        run(Path(folder), *small("simsiam"), *QUICK, *ddp, callbacks=[poison])
    except Diverged as error:
        return str(error)
    return "it finished"


def test_all_processes_end_when_one_diverges(worlds, tmp_path):
    first, second = worlds(2).run(_poisoned, str(tmp_path))
    assert first == second == (tmp_path / "failed.txt").read_text().strip()
    assert "backbone.stem.0.weight" in first
    assert read_summary(tmp_path)["diverged"]["epoch"] == 2
    assert checkpoint(tmp_path)["epoch"] == 0
    assert [row["epoch"] for row in rows(tmp_path)] == [1]
