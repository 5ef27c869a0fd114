"""The evaluation: frozen backbones, both kinds of features, what it writes and what it refuses."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support import small_runs
from support.read_loggers import events
from support.small_methods import load
from support.small_runs import FINISHED

from rdm_solo.cli import arguments
from rdm_solo.data import synthetic
from rdm_solo.evaluate import extraction, linear_config, linear_probe, probe
from rdm_solo.ground.errors import UserError
from rdm_solo.methods import weight_files
from rdm_solo.runs import saved_config
from rdm_solo.train import training_data

DATA = ["dataset=synthetic", "dataset.num_train=64", "dataset.num_val=32", "dataset.image_size=8"]


def configure(*argv: str):
    """The config that the command would compose."""
    return arguments.compose("linear", argv)


def evaluate(*argv: str) -> dict:
    return linear_probe.evaluate(configure(*argv, "device=cpu"))


def read_json(folder: Path) -> dict:
    return json.loads((folder / "linear.json").read_text())


@pytest.fixture
def folder(finished, tmp_path):
    """Return a copy of the finished run."""
    return Path(shutil.copytree(finished, tmp_path / "0_simsiam_target_pow_p=-0.5"))


def save_config(folder: Path, *options: str) -> None:
    cfg = small_runs.configure(*FINISHED, *options)
    saved_config.write(folder, cfg, [])


class TestResults:
    def test_files_keep_the_variants_apart_and_tensorboard_gets_each(self, folder):
        pytest.importorskip("tensorboard")
        record = {"tensorboard": {"folder": "tensorboard"}}
        (folder / "loggers.json").write_text(json.dumps(record))
        augmented = evaluate(f"run={folder}", "epochs=2", "seed=5")
        evaluate(f"run={folder}", "features=cached", "epochs=3")
        # The same settings and seed replace the record.
        cached = evaluate(f"run={folder}", "features=cached", "epochs=3")
        assert read_json(folder) == {"cached": [cached], "protocol": [augmented]}
        assert augmented["augmentation"] == {"crop_scale": [0.08, 1.0], "flip": 0.5}
        assert cached["augmentation"] is None
        for record in (augmented, cached):
            assert record["checkpoint"] == "checkpoints/last.ckpt"
            assert record["lr"] == 30
            assert record["images"] == {"train": 64, "val": 32}
        assert [row["epoch"] for row in cached["curve"]] == [1, 2, 3]
        assert cached["curve"][-1]["top1"] == cached["top1"]
        step = 12  # the checkpoint's
        scalars = events(folder / "tensorboard")
        assert scalars["linear/top1"] == [(step, augmented["top1"])]
        assert scalars["linear/cached_top5"] == [(step, cached["top5"])] * 2

    def test_every_seed_is_kept_and_those_of_the_same_settings_are_averaged(self, folder, caplog):
        caplog.set_level("INFO", logger="rdm_solo")
        # A rate so low that the accuracies are those of the first weights.
        cached = [f"run={folder}", "features=cached", "lr=0.001"]
        records = [evaluate(*cached, "epochs=1", "seed=1")]
        for seed in range(3):
            records.append(evaluate(*cached, "epochs=2", f"seed={seed}"))
        assert read_json(folder) == {"cached": records}
        top1 = [record["top1"] for record in records[1:]]
        sd = np.std(top1, ddof=1)
        assert sd > 0
        assert f"top-1 {np.mean(top1):.2f} ± {sd:.2f} % over 3 seeds" in caplog.text

    def test_cached_features_are_those_of_clean_images(self, folder):
        options = ["features=cached", "epochs=5", "lr=3", "seed=2"]
        record = evaluate(f"run={folder}", *options)
        data = synthetic(num_train=64, num_val=32, size=8)
        backbone = load(folder / "checkpoints" / "last.ckpt")
        mean = torch.tensor(data.mean).view(-1, 1, 1)
        std = torch.tensor(data.std).view(-1, 1, 1)
        parts = []
        for images in (data.train, data.val):
            x = (images.images / 255 - mean) / std
            with torch.no_grad():
                parts += [backbone(x), images.labels]
        protocol = probe.Protocol(epochs=5, lr=3.0)
        _, curve = probe.fit_linear(*parts, 10, protocol, seed=2)
        assert record["top1"] == curve[-1].top1
        assert record["top5"] == curve[-1].top5


class TestBackbone:
    def test_it_is_frozen_and_images_are_new_every_epoch(self, folder, monkeypatch):
        backbones = []
        images = []
        represent = extraction.represent

        def recording(backbone, x):
            backbones.append(backbone)
            images.append(x)
            return represent(backbone, x)

        monkeypatch.setattr(extraction, "represent", recording)
        evaluate(f"run={folder}", "epochs=2", "batch_size=20")
        before = weight_files.read(folder / "checkpoints" / "last.ckpt").state
        assert small_runs.same(dict(backbones[0].state_dict()), dict(before))
        _, *crops = images
        assert [len(x) for x in crops] == [20, 20, 20, 4] * 2
        first = torch.cat(crops[:4]).flatten(1)
        second = torch.cat(crops[4:]).flatten(1)
        is_repeated = (first[:, None] == second).all(2).any(1)
        assert is_repeated.float().mean() < 0.1

    @pytest.mark.parametrize(
        ("options", "flip", "crop_scale"),
        [
            (["dataset=digits"], 0.0, (0.7, 1.0)),  # neither mirrored nor cut apart
            ([*DATA, "augmentation={crop_scale: [0.5, 1], flip: 0.25}"], 0.25, (0.5, 1)),
        ],
    )
    def test_images_are_only_cropped_and_flipped(self, options, flip, crop_scale):
        cfg = configure("checkpoint=x", *options)
        _, views = training_data.make_data(cfg)
        (view,) = extraction.evaluation_views(views, cfg.augmentation).pipelines
        assert view.flip == flip
        assert view.crop_scale == crop_scale
        assert view.num_crops == 1
        assert not any((view.jitter, view.grey, view.blur, view.solarize, view.rotate))

    def test_a_file_is_evaluated_with_the_stem_that_is_assumed(self, tmp_path, caplog):
        path = tmp_path / "a.pt"
        spec = weight_files.Spec("resnet18", "small")
        torch.save(weight_files.build(spec).state_dict(), path)
        data = [*DATA, "dataset.channels=1"]  # grey images are repeated
        record = evaluate(f"checkpoint={path}", *data, "features=cached", "epochs=1")
        assert read_json(tmp_path / "a.pt_linear") == {"cached": [record]}
        assert record["backbone"]["stem"] == "small"
        assert record["assumed"] in caplog.text


class TestConfig:
    def test_the_runs_data_set_comes_with_its_own_settings(self, folder):
        save_config(folder)

        def dataset(*changes):
            return linear_config.with_dataset(configure(f"run={folder}", *changes)).dataset

        changed = dataset("dataset.seed=3", "dataset.views.pipelines.0.flip=0.25")
        assert (changed.num_train, changed.source.seed) == (64, 3)
        assert changed.views.pipelines[0].flip == 0.25
        again = dataset("dataset.source._target_=my.images")  # a user's own, passed again
        assert again.source._target_ == "my.images"
        assert dataset("dataset=digits").name == "digits"
        with pytest.raises(UserError, match=r"did you mean 'dataset.num_train'"):
            dataset("dataset.num_trian=3")

    def test_imagenet_takes_lars_unless_another_protocol_is_chosen(self):
        def protocol(*argv):
            return linear_config.choose_protocol(configure("checkpoint=x", *argv))

        lars = probe.PROTOCOLS["lars"]
        assert protocol("dataset=imagenet") == protocol("dataset=digits", "protocol=lars") == lars
        for other in (["dataset=imagenet100"], ["dataset=imagenet", "protocol=sgd"]):
            assert protocol(*other) == probe.Protocol()
        changed = protocol("dataset=imagenet", "epochs=3", "weight_decay=0.5")
        assert changed == dataclasses.replace(lars, epochs=3, weight_decay=0.5)


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ([], "run=RUN_FOLDER"),
        (["run={run}", "protocol=adam"], "sgd, lars"),
        (["run={run}", "backbone.name=resnet50"], "backbone.name=resnet50"),
        (["run={run}", "dataset.source.channels=2"], "3 channels"),
        (["run={run}", "features=cached", "augmentation.flip=0.5"], "augmentation.flip=0.5"),
    ],
)
def test_refusals_write_nothing(argv, names, folder):
    cfg = configure(*(argument.format(run=folder) for argument in argv))
    with pytest.raises(UserError, match=names):
        linear_probe.evaluate(cfg)
    assert not list(folder.glob("linear.*"))


def test_a_broken_file_is_refused_before_the_evaluation(folder, monkeypatch):
    (folder / "linear.json").write_text("{")
    monkeypatch.setattr(extraction, "extract", None)
    with pytest.raises(UserError, match="linear"):
        evaluate(f"run={folder}", "features=cached")


def test_each_run_of_a_multirun_is_evaluated_on_its_own_data_set(folder, monkeypatch):
    other = Path(shutil.copytree(folder, folder.with_name("1_simsiam_target_pow_p=-0.5")))
    save_config(other, "dataset.num_train=48")
    monkeypatch.chdir(folder.parent)
    runs = f"run={folder.name},{other.name}"
    monkeypatch.setattr(sys, "argv", ["linear", "-m", runs, "features=cached", "epochs=1"])
    linear_probe.main()
    for path, size in ((folder, 64), (other, 48)):
        (record,) = read_json(path)["cached"]
        assert record["images"]["train"] == size
