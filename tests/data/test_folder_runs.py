"""Runs on folders of images, from their configs."""

import logging
import re
from pathlib import Path

import pytest
from hydra.utils import instantiate
from support.image_files import SIZE, truncate, write_tree
from support.small_runs import SMALL, configure, rows, run

from rdm_solo import cli, runs
from rdm_solo.callbacks import skipped_images
from rdm_solo.data import DataError
from rdm_solo.evaluate import figure5, linear


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return write_tree(tmp_path_factory.mktemp("tree"))


TRAIN = [option for option in SMALL if not option.startswith("dataset")]
TRAIN += ["dataset=folder", f"dataset.image_size={SIZE}", "batch_size=10", "max_epochs=1"]
TRAIN += ["dataset.workers=0"]


@pytest.mark.parametrize("name", ["folder", "imagenet100", "imagenet"])
def test_the_configs_reach_their_sources(tmp_path, name):
    cfg = configure(f"dataset={name}", f"dataset.root={tmp_path / 'gone'}")
    (pipeline,) = instantiate(cfg.dataset.views).pipelines
    assert (pipeline.size, pipeline.blur, pipeline.crop_scale) == (224, 0.5, (0.2, 1.0))
    with pytest.raises(Exception, match=r"dataset\.root=.*gone does not exist"):
        instantiate(cfg.dataset.source)


def test_a_folder_trains(tree, tmp_path):
    run(tmp_path, *TRAIN, f"dataset.root={tree}", "filter=target_pow")
    (row,) = rows(tmp_path)
    assert 0 <= row["val/knn_acc1"] <= 100
    assert 0 <= row["val/acc1"] <= 100
    assert row["erank/target"] > 1
    run(tmp_path / "two", *TRAIN, f"dataset.root={tree}", "filter=target_pow", "dataset.workers=2")
    assert rows(tmp_path / "two") == rows(tmp_path)


@pytest.mark.parametrize("options", [["dataset.labels=false"], ["dataset.train=val"]])
def test_without_labels_or_validation_it_trains_without_accuracies(tree, tmp_path, options):
    root = tree if "labels" in options[0] else tree / "train"
    options = options if "labels" in options[0] else []
    run(tmp_path, *TRAIN, f"dataset.root={root}", *options)
    header, line = (tmp_path / "metrics.csv").read_text().split()
    row = dict(zip(header.split(","), line.split(",")))
    assert row["val/acc1"] == row["val/knn_acc1"] == ""
    assert float(row["erank/target"]) > 1


def test_an_unreadable_image_ends_a_run_with_a_sentence(tmp_path):
    root = write_tree(tmp_path / "tree", train=4, val=1)
    truncate(root / "train" / "cat" / "00.jpg")
    options = [*TRAIN, f"dataset.root={root}", "batch_size=12", "knn.k=5"]
    broken = re.escape(str(root / "train" / "cat" / "00.jpg"))
    with pytest.raises(DataError, match=f"{broken} cannot be decoded"):
        run(tmp_path / "run", *options)


def test_a_run_names_the_images_that_it_skipped(tmp_path, caplog):
    """Once, at the end of the epoch, also where an epoch ends before its last image."""
    root = write_tree(tmp_path / "tree", train=4, val=2)
    spoilt = [root / "train" / "cat" / "00.jpg", root / "val" / "dog" / "01.jpg"]
    for path in spoilt:
        truncate(path)
    options = [*TRAIN, f"dataset.root={root}", "batch_size=6", "knn.k=5", "max_epochs=2"]
    options += ["dataset.skip_broken=true", "++trainer.limit_train_batches=1"]
    with caplog.at_level(logging.WARNING, "rdm_solo"):
        run(tmp_path / "run", *options)
    (said,) = [line for line in caplog.messages if "unreadable" in line]
    assert said.startswith("warning: epoch 1: 2 unreadable images were skipped: ")
    assert all(f"{path} cannot be decoded" in said for path in spoilt)
    listed = (tmp_path / "run" / "skipped.txt").read_text().splitlines()
    assert [line.split(" cannot")[0] for line in listed] == [f"epoch 1: {path}" for path in spoilt]
    assert len(rows(tmp_path / "run")) == 2
    # The linear probe leaves out of its rows what cannot be read, and says so.
    caplog.clear()
    cfg = cli.compose("linear", [f"run={tmp_path / 'run'}", "features=cached", "epochs=1"])
    with caplog.at_level(logging.WARNING, "rdm_solo"):
        assert linear.evaluate(cfg)["images"] == {"train": 11, "val": 5}
    assert [line.count("1 unreadable image was skipped") for line in caplog.messages] == [1, 1]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "rdm_solo"):
        figure5.measure(runs.load(tmp_path / "run"), rows=24)
    assert f"skipped: {spoilt[0]}" in caplog.text


def _skip_on_two(rank: int, world: int, folder: str) -> list[str]:
    launched = {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(world)}
    root, out, said = Path(folder, "tree"), Path(folder, "run"), []
    options = [*TRAIN, f"dataset.root={root}", "batch_size=6", "knn.every_n_epochs=0"]
    options += ["trainer.strategy=ddp", "trainer.devices=2", "dataset.skip_broken=true"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in launched.items():
            patch.setenv(name, value)
        patch.setattr(skipped_images.log, "warning", said.append)
        run(out, *options)
    return said


def test_the_first_of_two_processes_names_what_either_skipped(tmp_path, worlds):
    root = write_tree(tmp_path / "tree", train=4, val=1)
    spoilt = sorted((root / "train").rglob("0[01].jpg"))
    for path in spoilt:
        truncate(path)
    first, second = worlds(2).run(_skip_on_two, str(tmp_path))
    assert second == []
    assert [line.split(": ")[2] for line in first] == ["6 unreadable images were skipped"]
    listed = (tmp_path / "run" / "skipped.txt").read_text()
    assert all(f"epoch 1: {path} cannot" in listed for path in spoilt)
