"""Which checkpoints a run writes, by the options checkpoint.*, and when it cannot."""

from __future__ import annotations

import shutil

import pytest
from support.same_values import same
from support.small_disk import small_disk
from support.small_runs import configure, rows, run

from rdm_solo import train
from rdm_solo.lightning import pl
from rdm_solo.runs import checkpoints

TINY = ["backbone.kwargs.width=4", "batch_size=32", "trainer.accelerator=cpu", "~callbacks.ranks"]
TINY += ["++trainer.limit_train_batches=2", "method.kwargs.proj_hidden_dim=16"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Five epochs, the accuracy measured in the first, the fourth and the last."""
    folder = tmp_path_factory.mktemp("kept")
    options = ["max_epochs=5", "checkpoint.every_n_epochs=2", "checkpoint.keep=2"]
    return folder, run(folder, *TINY, *options, "checkpoint.best=true", "knn.every_n_epochs=3")


def epoch_of(path) -> int:
    return checkpoints.read(path)["epoch"] + 1


def test_every_second_epoch_the_last_one_and_the_newest_two(kept):
    folder, _ = kept
    found = {path.name: epoch_of(path) for path in (folder / "checkpoints").iterdir()}
    best = found.pop("best.ckpt")
    assert best in (1, 4, 5)
    assert found.pop("previous.ckpt") == 4
    assert found == {"last.ckpt": 5, "epoch_0004.ckpt": 4, "epoch_0005.ckpt": 5}


def test_the_best_is_that_of_the_highest_accuracy_and_the_summary_says_which(kept):
    folder, summary = kept
    measured = {row["epoch"]: row["val/knn_acc1"] for row in rows(folder) if "val/knn_acc1" in row}
    assert list(measured) == [1, 4, 5]
    best = max(measured, key=measured.get)
    assert summary["best"] == {"epoch": best, "accuracy": pytest.approx(measured[best])}
    assert epoch_of(folder / "checkpoints" / "best.ckpt") == best
    weights, _ = checkpoints.of_run(folder, folder / "checkpoints" / "best.ckpt")
    assert weights.epoch == best


def test_a_run_that_goes_on_elsewhere_brings_the_best_along(kept, tmp_path):
    folder, summary = kept
    cfg = configure(*TINY, "max_epochs=6", "checkpoint.best=true", f"resume={folder}")
    cfg.knn.every_n_epochs = 100
    cfg.checkpoint.keep = "all"
    again = train.run(cfg, tmp_path)
    assert again["best"]["epoch"] in (summary["best"]["epoch"], 6)
    assert epoch_of(tmp_path / "checkpoints" / "best.ckpt") == again["best"]["epoch"]
    assert [*checkpoints.kept(tmp_path)] == [6]


def test_a_torn_last_checkpoint_gives_way_to_the_one_before(kept, tmp_path, caplog):
    """Wherever a run's checkpoint is read; what is later than it is done again."""
    folder = tmp_path / "run"
    shutil.copytree(kept[0], folder)
    last = folder / "checkpoints" / "last.ckpt"
    right = checkpoints.read(last)
    last.unlink()  # it has other names
    last.write_bytes(kept[0].joinpath("checkpoints", "last.ckpt").read_bytes()[:-1000])
    weights, _ = checkpoints.of_run(folder)
    assert (weights.path.name, weights.epoch) == ("previous.ckpt", 4)
    assert "last.ckpt cannot be read as a checkpoint" in caplog.text
    caplog.clear()
    options = ["max_epochs=5", "knn.every_n_epochs=3", f"resume={folder}"]
    run(folder, *TINY, *options)
    (said,) = [message for message in caplog.messages if "cannot be read" in message]
    assert said.endswith("previous.ckpt, of epoch 4, is taken")
    assert rows(folder) == rows(kept[0])
    again = checkpoints.read(last)
    assert same(again["state_dict"], right["state_dict"])
    assert same(again["optimizer_states"], right["optimizer_states"])


def test_values_that_no_run_can_use(tmp_path):
    for options, says in (
        (["checkpoint.every_n_epochs=0"], "checkpoint.every_n_epochs must be a whole number of"),
        (["checkpoint.keep=-1"], "checkpoint.keep must be a whole number of at least 0, or all"),
        (["checkpoint.best=yes"], "checkpoint.best must be true or false, got 'yes'"),
        (["checkpoint.best=true", "knn.every_n_epochs=0"], "checkpoint.best=true would be ignored"),
    ):
        with pytest.raises(ValueError, match=says):
            train.build(configure(*TINY, *options), tmp_path)


class Remove(pl.Callback):
    """Removes the run's folder in the second epoch."""

    def __init__(self, folder) -> None:
        self.folder = folder

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            shutil.rmtree(self.folder)


def test_a_full_disk_ends_the_command_with_a_sentence(typed, tmp_path, monkeypatch):
    with small_disk(tmp_path / "disk", "600k") as disk:
        options = [*TINY, "backbone.kwargs.width=16", "hydra.run.dir=run", "max_epochs=2"]
        options += ["knn.every_n_epochs=0", "scheduler.warmup_epochs=0"]
        out = typed("rdm_solo.train", *options, cwd=disk)
        monkeypatch.chdir(tmp_path)
        assert out.returncode == 2
        sentence = "error: run/checkpoints/last.ckpt cannot be written: No space left on device\n"
        assert out.stderr.replace(f"{disk}/", "") == sentence
        assert not list((disk / "run" / "checkpoints").iterdir())
        assert len(rows(disk / "run")) == 1


def test_a_folder_that_is_removed_while_the_run_trains_is_not_made_again(tmp_path):
    folder = tmp_path / "removed"
    folder.mkdir()
    with pytest.raises(OSError, match=r"cannot be written: No such file or directory") as refused:
        train.run(configure(*TINY, "knn.every_n_epochs=0"), folder, [Remove(folder)])
    assert str(refused.value).startswith(str(folder))
    assert not folder.exists()
