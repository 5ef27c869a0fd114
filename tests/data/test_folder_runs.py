"""Runs on folders of images, from their configs."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.image_files import SIZE, spoil, write_tree
from support.small_runs import SMALL, all_rows, rows, run

from rdm_solo.callbacks import epoch_reports
from rdm_solo.cli import arguments
from rdm_solo.evaluate import linear_probe

TRAIN = [
    *(option for option in SMALL if not option.startswith("dataset")),
    "dataset=folder",
    f"dataset.image_size={SIZE}",
    "dataset.workers=0",
    "batch_size=6",
    "max_epochs=2",
]


def test_a_folder_without_labels_trains(tree, tmp_path):
    options = ["dataset.labels=false", "dataset.workers=2", "max_epochs=1"]
    run(tmp_path, *TRAIN, f"dataset.root={tree}", "filter=target_pow", *options)
    (row,) = rows(tmp_path)
    assert not row.keys() & {"val/knn_acc1", "val/acc1"}
    assert row["erank/target"] > 1


def test_an_unreadable_image_is_skipped_and_named(tmp_path, caplog):
    """Look for one line at the end of the epoch, also if it ends before its last image."""
    caplog.set_level(logging.WARNING, "rdm_solo")
    root = write_tree(tmp_path / "tree", train=4, val=2)
    broken = [root / "train" / "cat" / "00.jpg", root / "val" / "dog" / "01.jpg"]
    for path in broken:
        spoil(path, "truncated")
    options = [*TRAIN, f"dataset.root={root}", "knn.k=5"]
    options += ["dataset.skip_broken=true", "++trainer.limit_train_batches=1"]
    run(tmp_path / "run", *options)
    (line,) = [line for line in caplog.messages if "unreadable" in line]
    assert "epoch 1: 2 unreadable images were skipped: " in line
    lines = (tmp_path / "run" / "skipped.txt").read_text().splitlines()
    for path, entry in zip(broken, lines, strict=True):
        assert f"{path} cannot be read" in line
        assert entry.startswith(f"epoch 1: {path} cannot")
    for row in rows(tmp_path / "run"):
        assert row.keys() >= {"val/knn_acc1", "val/acc1"}
    assert not any("val/knn_pixels" in row for row in all_rows(tmp_path / "run"))
    # The linear probe leaves them out as well.
    caplog.clear()
    cfg = arguments.compose("linear", [f"run={tmp_path / 'run'}", "features=cached", "epochs=1"])
    assert linear_probe.evaluate(cfg)["images"] == {"train": 11, "val": 5}
    assert caplog.text.count("1 unreadable image was skipped") == 2


def skip_different_images(rank, world, folder):
    """Skip an image on each process and a third one on both, in each of two epochs.

    The second epoch belongs to a resumed run. Return the lines of the log.
    """
    lines = []
    callback = epoch_reports.SkippedImages(Path(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch_reports.log, "warning", lines.append)
        for epoch in range(2):
            names = [f"{epoch}{rank}.jpg", f"{epoch}both.jpg"]
            skipped = dict.fromkeys(names, "is broken")
            trainer = SimpleNamespace(
                current_epoch=epoch,
                is_global_zero=rank == 0,
                datamodule=SimpleNamespace(skipped=skipped.copy),
            )
            resumed = epoch_reports.SkippedImages(Path(folder))
            resumed.load_state_dict(callback.state_dict())
            resumed.on_train_epoch_end(trainer, None)
            callback = resumed
    return lines


def test_the_first_of_two_processes_names_what_either_skipped(tmp_path, worlds):
    lines, others = worlds(2).run(skip_different_images, str(tmp_path))
    assert others == []
    for line in lines:
        assert "3 unreadable images" in line
    entries = (tmp_path / "skipped.txt").read_text().splitlines()
    names = ["00", "01", "0both", "10", "11", "1both"]
    assert entries == [f"epoch {1 + int(name[0])}: {name}.jpg is broken" for name in names]
