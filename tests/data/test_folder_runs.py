"""Runs on folders of images, from their configs."""

import re

import pytest
from hydra.utils import instantiate
from support.image_files import SIZE, truncate, write_tree
from support.small_runs import SMALL, configure, rows, run

from rdm_solo.data import DataError


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
    run(tmp_path / "skips", *options, "dataset.skip_broken=true")
    assert len(rows(tmp_path / "skips")) == 1
