"""The evaluation: frozen backbones, both kinds of features, what it writes and what it refuses."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from support import small_runs
from support.backbones import load
from support.small_runs import SMALL, run

from rdm_solo import cli
from rdm_solo.data import loader, synthetic
from rdm_solo.evaluate import features, linear, linear_config, probe
from rdm_solo.methods import weight_files
from rdm_solo.train import datamodule

DATA = ["dataset=synthetic", "dataset.num_train=64", "dataset.num_val=32", "dataset.image_size=8"]


def configure(*argv: str):
    """The config that the command would compose."""
    return cli.compose("linear", argv, open_sections=["dataset"])


def read_table(path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def evaluate(*argv: str) -> dict:
    return linear.evaluate(configure(*argv, "device=cpu"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "0_simsiam_target_pow_p=-0.5"
    run(folder, *SMALL, "filter=target_pow")
    return folder


@pytest.fixture
def finished(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "0_simsiam_target_pow_p=-0.5"))


class TestResults:
    def test_files_keep_the_variants_apart(self, finished):
        cached = evaluate(f"run={finished}", "features=cached", "epochs=3")
        drawn = evaluate(f"run={finished}", "epochs=2", "seed=5")
        saved = json.loads((finished / "linear.json").read_text())
        assert saved == {"cached": [cached], "protocol": [drawn]}
        assert (drawn["seed"], cached["seed"]) == (5, 0)
        assert drawn["augmentation"] == {"crop_scale": [0.08, 1.0], "flip": 0.5}
        assert cached["augmentation"] is None
        for record in (drawn, cached):
            assert record["checkpoint"] == "checkpoints/last.ckpt"
            assert record["assumed"] is None
            assert (record["base_lr"], record["lr"]) == (30.0, 30.0)
            assert record["protocol"]["batch_size"] == 256
            assert record["checkpoint_epoch"] == 2
            assert record["images"] == {"train": 64, "val": 32}
            assert 0 <= record["top1"] <= record["top5"] <= 100
            assert record["device"] == "cpu"
            assert {"torch", "rdm_solo", "solo-learn"} <= set(record["versions"])
        summary = json.loads((finished / "summary.json").read_text())
        assert summary["linear"] == {
            name: {key: r[key] for key in ("top1", "top5", "seed")} for name, (r,) in saved.items()
        }
        assert summary["seed"] == 0

        again = evaluate(f"run={finished}", "features=cached", "epochs=3", "device=auto")
        saved = json.loads((finished / "linear.json").read_text())
        assert saved == {"cached": [again], "protocol": [drawn]}
        with open(finished / "linear.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [(r["features"], int(r["epoch"])) for r in rows] == [
            *(("augmented", epoch) for epoch in (1, 2)),
            *(("cached", epoch) for epoch in (1, 2, 3)),
        ]
        assert float(rows[-1]["top1"]) == again["top1"]
        assert all(math.isfinite(float(r["loss"])) for r in rows)

    def test_every_seed_is_kept_and_those_of_the_same_settings_are_averaged(self, finished):
        # A rate so low that the accuracies are those of the first weights.
        cached = [f"run={finished}", "features=cached", "lr=0.001"]
        other = evaluate(*cached, "epochs=1", "seed=1")
        first, second, third = (evaluate(*cached, "epochs=2", f"seed={s}") for s in (0, 1, 2))
        second = evaluate(f"run={os.path.relpath(finished)}", *cached[1:], "epochs=2", "seed=1")
        records = [other, first, second, third]
        assert json.loads((finished / "linear.json").read_text()) == {"cached": records}

        with open(finished / "linear.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        for i, record in enumerate(records):
            own = [row for row in rows if row["entry"] == str(i)]
            assert [row["epoch"] for row in own] == [["1"], ["1", "2"]][i > 0]
            assert {row["seed"] for row in own} == {str(record["seed"])}
            assert float(own[-1]["top1"]) == record["top1"]
        assert len(rows) == 7

        told = json.loads((finished / "summary.json").read_text())["linear"]["cached"]
        assert (told["top1"], told["top5"], told["seed"]) == (second["top1"], second["top5"], 1)
        assert told["seeds"]["n"] == 3
        for name in ("top1", "top5"):
            values = [record[name] for record in records[1:]]
            assert told["seeds"][name]["mean"] == pytest.approx(np.mean(values), rel=1e-12)
            assert told["seeds"][name]["sd"] == pytest.approx(np.std(values, ddof=1), rel=1e-12)
        assert np.std([record["top1"] for record in records[1:]]) > 0

    def test_a_file_of_one_entry_goes_on(self, finished):
        old = evaluate(f"run={finished}", "features=cached", "epochs=1")
        (finished / "linear.json").write_text(json.dumps({"cached": old}))
        new = evaluate(f"run={finished}", "features=cached", "epochs=1", "seed=1")
        assert json.loads((finished / "linear.json").read_text()) == {"cached": [old, new]}

    def test_an_earlier_versions_epochs_count_from_1_once_another_is_added(self, finished):
        cached = (f"run={finished}", "features=cached", "epochs=2")
        evaluate(*cached)
        table = finished / "linear.csv"
        now = read_table(table)
        old = [{**row, "epoch": int(row["epoch"]) - 1} for row in now]
        with open(table, "w", newline="") as file:
            writer = csv.DictWriter(file, old[0])
            writer.writeheader()
            writer.writerows(old)
        evaluate(*cached, "seed=1")
        rows = read_table(table)
        assert rows[: len(now)] == now
        assert [row["epoch"] for row in rows[len(now) :]] == ["1", "2"]

    def test_cached_features_are_those_of_plain_images(self, finished):
        record = evaluate(f"run={finished}", "features=cached", "epochs=5", "lr=3", "seed=2")
        data = synthetic(num_train=64, num_val=32, size=8)
        backbone = load(finished / "checkpoints" / "last.ckpt")
        parts = []
        for images in (data.train, data.val):
            mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (data.mean, data.std))
            with torch.no_grad():
                parts += [backbone((images.images / 255 - mean) / std), images.labels]
        expected = probe.fit_linear(*parts, 10, probe.Protocol(epochs=5, lr=3.0), seed=2)
        last = expected.curve[-1]
        assert (record["top1"], record["top5"]) == (last.top1, last.top5)

    def test_a_seed_repeats_and_another_differs(self, finished):
        def curve(seed):
            evaluate(f"run={finished}", "epochs=2", f"seed={seed}")
            with open(finished / "linear.csv", newline="") as file:
                rows = [row for row in csv.DictReader(file) if row["seed"] == str(seed)]
            return [(row["epoch"], row["loss"]) for row in rows]

        assert curve(1) == curve(1) != curve(2)

    def test_scalars_reach_the_runs_tensorboard(self, finished):
        pytest.importorskip("tensorboard")
        from support.read_loggers import events

        record = {"tensorboard": {"folder": "tensorboard"}}
        (finished / "loggers.json").write_text(json.dumps(record))
        drawn = evaluate(f"run={finished}", "epochs=1")
        cached = evaluate(f"run={finished}", "epochs=1", "features=cached")
        scalars = events(finished / "tensorboard")
        assert {name: value for name, ((_, value),) in scalars.items()} == {
            "linear/top1": drawn["top1"],
            "linear/top5": drawn["top5"],
            "linear/cached_top1": cached["top1"],
            "linear/cached_top5": cached["top5"],
        }
        assert {step for ((step, _),) in scalars.values()} == {8}  # the checkpoint's


class TestBackbone:
    def test_it_is_frozen_statistics_and_all(self, finished, monkeypatch):
        kept = []
        real = weight_files.load
        monkeypatch.setattr(weight_files, "load", lambda *a: kept.append(real(*a)) or kept[-1])
        evaluate(f"run={finished}", "epochs=2")
        before = weight_files.read(finished / "checkpoints" / "last.ckpt").state
        after = kept[0].state_dict()
        assert any("running_mean" in name for name in after)
        assert all(torch.equal(after[name], before[name]) for name in after)

    def test_training_images_are_new_every_epoch_and_validation_is_plain(
        self, finished, monkeypatch
    ):
        seen: list[torch.Tensor] = []
        real = features.represent
        monkeypatch.setattr(features, "represent", lambda b, x: seen.append(x) or real(b, x))
        evaluate(f"run={finished}", "epochs=2", "batch_size=20")
        plain, *crops = seen
        assert [len(x) for x in crops] == [20, 20, 20, 4] * 2
        first, second = torch.cat(crops[:4]).flatten(1), torch.cat(crops[4:]).flatten(1)
        assert (first[:, None] == second).all(2).any(1).float().mean() < 0.1
        data = synthetic(64, 32, 8)
        assert torch.equal(plain, next(iter(loader(data, "val", 32)))[0])

    def test_features_do_not_depend_on_the_piece(self, finished, monkeypatch):
        backbone = load(finished / "checkpoints" / "last.ckpt")
        x = torch.randn(10, 3, 8, 8)
        whole = features.represent(backbone, x)
        monkeypatch.setattr(features, "PIECE", 3)
        # Measured: 2.4e-7 of values up to 2; convolutions sum in another order.
        torch.testing.assert_close(features.represent(backbone, x), whole, rtol=0, atol=3e-6)
        assert not whole.requires_grad


class TestAugmentation:
    def settings(self, *argv):
        cfg = configure("checkpoint=x", *argv)
        return features.evaluation_views(datamodule.made(cfg)[1], cfg.augmentation).pipelines[0]

    def test_digits_are_neither_mirrored_nor_cut_apart(self):
        pipeline = self.settings("dataset=digits")
        assert (pipeline.size, pipeline.flip, pipeline.crop_scale) == (8, 0.0, (0.7, 1.0))

    def test_other_images_get_torchvisions_crop_and_a_flip_alone(self):
        pipeline = self.settings("dataset=synthetic", "dataset.channels=1")
        assert (pipeline.flip, pipeline.crop_scale, pipeline.num_crops) == (0.5, (0.08, 1.0), 1)
        off = (pipeline.jitter, pipeline.grey, pipeline.blur, pipeline.solarize, pipeline.rotate)
        assert off == (0, 0, 0, 0, 0)

    def test_it_can_be_chosen(self):
        options = ["augmentation.crop_scale=[0.5,1.0]", "augmentation.flip=0.25"]
        pipeline = self.settings("dataset=digits", *options)
        assert (pipeline.crop_scale, pipeline.flip) == ((0.5, 1.0), 0.25)


@pytest.mark.parametrize("broken", ['{"cached": [5]}', '{"cached": [', '{"cached": {"top1": 1}}'])
def test_a_broken_earlier_evaluation_is_named_before_this_one(broken, finished, monkeypatch):
    (finished / "linear.json").write_text(broken)
    monkeypatch.setattr(features, "extract", None)
    with pytest.raises(ValueError, match=r"linear\.json cannot be read"):
        evaluate(f"run={finished}", "features=cached")
    assert (finished / "linear.json").read_text() == broken


class TestConfig:
    def test_the_runs_data_set_comes_with_its_own_settings(self, finished):
        saved = finished / ".hydra" / "config.yaml"
        saved.parent.mkdir()
        saved.write_text(OmegaConf.to_yaml(small_runs.configure(*SMALL, "filter=target_pow")))
        cfg = linear_config.with_dataset(configure(f"run={finished}", "dataset.seed=3"))
        assert (cfg.dataset.name, cfg.dataset.num_train, cfg.dataset.seed) == ("synthetic", 64, 3)
        assert cfg.dataset.source.seed == 3
        flip = "dataset.views.pipelines.0.flip=0.25"
        cfg = linear_config.with_dataset(configure(f"run={finished}", flip))
        assert cfg.dataset.views.pipelines[0].flip == 0.25
        again = "dataset.source._target_=my.images"  # as the refusal of a folder's own asks for
        cfg = linear_config.with_dataset(configure(f"run={finished}", again))
        assert (cfg.dataset.name, cfg.dataset.source._target_) == ("synthetic", "my.images")
        cfg = linear_config.with_dataset(configure(f"run={finished}", "dataset=digits"))
        assert cfg.dataset.name == "digits"

    def test_a_word_of_the_runs_backbone_counts_when_it_is_typed_again(self, finished):
        summary = json.loads((finished / "summary.json").read_text())
        summary["config"]["backbone"]["kwargs"]["act"] = "my.gelu"
        (finished / "summary.json").write_text(json.dumps(summary))
        with pytest.raises(ValueError, match=r"type \+\+backbone\.kwargs\.act=my\.gelu again"):
            linear_config.find_weights(configure(f"run={finished}"))
        again = configure(f"run={finished}", "++backbone.kwargs.act=my.gelu")
        assert linear_config.find_weights(again)[1].kwargs["act"] == "my.gelu"
        other = configure(f"run={finished}", "++backbone.kwargs.act=relu")
        with pytest.raises(ValueError, match=r"backbone\.kwargs\.act=relu would be ignored"):
            linear_config.find_weights(other)

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            (["dataset.num_trian=3"], "no option 'dataset.num_trian' of this run; did you mean"),
            (["dataset.views.pipelines.1.flip=0"], "no option 'dataset.views.pipelines.1.flip'"),
            (["dataset.source.root=/x"], "no option 'dataset.source.root' of this run"),
        ],
    )
    def test_a_setting_that_the_runs_data_set_lacks(self, changes, says, finished):
        with pytest.raises(ValueError, match=re.escape(says)):
            linear_config.with_dataset(configure(f"run={finished}", *changes))

    def test_imagenet_takes_lars_unless_told_otherwise(self):
        def protocol(*argv):
            return linear_config.choose_protocol(configure("checkpoint=x", *argv))

        lars = probe.Protocol(
            "lars", epochs=90, batch_size=4096, lr=0.1, schedule="cosine", milestones=()
        )
        assert protocol("dataset=imagenet") == protocol("dataset=digits", "protocol=lars") == lars
        assert lars.effective_lr == pytest.approx(1.6)
        for other in (["dataset=imagenet100"], ["dataset=imagenet", "protocol=sgd"]):
            assert protocol(*other) == probe.Protocol()
        changed = protocol("dataset=imagenet", "epochs=3", "weight_decay=0.5")
        assert changed == dataclasses.replace(lars, epochs=3, weight_decay=0.5)

    @pytest.mark.parametrize(
        ("argument", "says"),
        [
            ("feature=cached", "there is no option 'feature'; did you mean 'features'?"),
            ("epoch=3", "did you mean 'epochs'?"),
            ("dataset.rot=/x", "did you mean 'dataset.root'?"),
            ("method=byol", "there is no option 'method'"),
        ],
    )
    def test_a_mistyped_option_is_answered(self, argument, says):
        with pytest.raises(ValueError, match=re.escape(says)):
            configure("checkpoint=x", "dataset=cifar10", argument)


class TestCheckpoint:
    def test_a_file_gives_what_its_run_gives(self, finished, tmp_path):
        of_run = evaluate(f"run={finished}", "features=cached", "epochs=3")
        path = finished / "checkpoints" / "last.ckpt"
        of_file = evaluate(f"checkpoint={path}", *DATA, "features=cached", "epochs=3")
        assert of_file["top1"] == of_run["top1"]
        assert of_file["backbone"]["kwargs"] == {"in_channels": 3, "width": 32}
        assert (tmp_path / finished.name / "checkpoints" / "last.ckpt_linear").is_dir()
        out = evaluate(f"checkpoint={path}", *DATA, f"out={tmp_path / 'out'}", "epochs=1")
        assert json.loads((tmp_path / "out" / "linear.json").read_text()) == {"protocol": [out]}
        assert out["checkpoint"] == str(path)

    @pytest.mark.parametrize("stem", [[], ["backbone.name=resnet18"], ["backbone.stem=small"]])
    def test_an_assumed_stem_is_recorded_and_said(self, stem, tmp_path, caplog):
        path, data = tmp_path / "a.pt", [*DATA, "features=cached", "epochs=1"]
        torch.save(weight_files.build(weight_files.Spec("resnet18", "small")).state_dict(), path)
        caplog.set_level("INFO")
        record = evaluate(f"checkpoint={path}", *data, *stem)
        assert record["backbone"]["stem"] == "small"
        warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        if stem == ["backbone.stem=small"]:
            assert record["assumed"] is None
            assert not warnings
            return
        assert record["assumed"] == "conv1 with padding 2, no max-pooling"
        assert len(warnings) == 1
        assert record["assumed"] in warnings[0]
        assert f"assumed of the stem: {record['assumed']}" in caplog.messages

    def test_grey_images_are_repeated_for_a_backbone_of_three_channels(self, tmp_path):
        spec = weight_files.Spec("resnet18", "small")
        torch.save(weight_files.build(spec).state_dict(), tmp_path / "a.pt")
        record = evaluate(
            f"checkpoint={tmp_path / 'a.pt'}",
            "backbone.name=resnet18",
            *DATA,
            "dataset.channels=1",
            "features=cached",
            "epochs=1",
        )
        assert record["backbone"] == {"name": "resnet18", "stem": "small", "kwargs": {}}


class TestRefusals:
    @pytest.mark.parametrize(
        ("argv", "says"),
        [
            ([], "give run=RUN_FOLDER, or checkpoint=FILE"),
            (["checkpoint=a.pt"], "does not record its data set"),
            (["checkpoint=nowhere.pt", "dataset=digits"], "there is no checkpoint nowhere.pt"),
            (["run={run}", "features=cache"], "did you mean 'cached'?"),
            (["run={run}", "epochs=0"], "epochs must be a whole number of at least 1, got 0"),
            (["run={run}", "lr=fast"], "lr must be a number from 0 to 100000, got 'fast'"),
            (["run={run}", "lr=1e30"], "lr must be a number from 0 to 100000, got 1e+30"),
            (["run={run}", "milestones=3"], "milestones must be a list of shares of the epochs"),
            (["run={run}", "augmentation.crop_scale=3"], "crop_scale must be two numbers"),
            (["run={run}", "protocol=adam"], "protocol must be one of sgd, lars, got 'adam'"),
            (["checkpoint=a.pt", "dataset.num_train=3"], "does not record its data set"),
            (["run={run}", "features=cached", "weight_decay=1", "lr=100000"], "lower lr=100000"),
            (["run={run}", "seed=-1"], "seed must be a whole number"),
            (["run={run}", "backbone.name=resnet50"], "backbone.name=resnet50 would be ignored"),
            (["run={run}", "checkpoint=other.ckpt"], "there is no checkpoint other.ckpt"),
            (["run={run}", "dataset.source.channels=2"], "{run}: the backbone takes 3 channels"),
            (
                ["run={run}", "features=cached", "augmentation.flip=0.5"],
                "augmentation.flip=0.5 would be ignored",
            ),
        ],
    )
    def test_one_sentence(self, argv, says, finished, capsys):
        cfg = configure(*(argument.format(run=finished) for argument in argv))
        with pytest.raises(SystemExit), cli.sentences():
            linear.evaluate(cfg)
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert error.startswith("error: ")
        assert says.replace("{run}", str(finished)) in error
        assert not list(finished.glob("linear.*"))

    def test_another_device(self):
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        with pytest.raises(ValueError, match="shows no GPU"):
            features.choose_device("cuda")
        with pytest.raises(ValueError, match="device must be one of auto, cpu, cuda, gpu, got"):
            features.choose_device("tpu")


def test_the_command_as_typed(typed, finished):
    arguments = [f"run={finished.name}", "features=cached", "epochs=2"]
    done = typed("rdm_solo.linear", *arguments, cwd=finished.parent)
    assert done.returncode == 0, done.stderr
    (record,) = json.loads((finished / "linear.json").read_text())["cached"]
    assert f"top-1 {record['top1']:.2f} %" in done.stdout
    assert {path.name for path in finished.parent.iterdir()} == {finished.name}
    assert not (finished / "linear.log").exists()


def test_each_run_of_a_multirun_is_evaluated_on_its_own_data_set(finished, monkeypatch, capsys):
    other = finished.with_name("1_simsiam_target_pow_p=-0.5")
    shutil.copytree(finished, other)
    for folder, size in ((finished, 64), (other, 48)):
        saved = folder / ".hydra" / "config.yaml"
        saved.parent.mkdir(exist_ok=True)
        options = [*SMALL, "filter=target_pow", f"dataset.num_train={size}"]
        saved.write_text(OmegaConf.to_yaml(small_runs.configure(*options)))
    monkeypatch.chdir(finished.parent)
    runs = f"run={finished.name},{other.name}"
    argv = ["linear", "-m", runs, "seed=0,1", "features=cached", "epochs=1"]
    monkeypatch.setattr(sys, "argv", argv)
    linear.main()
    for folder, size in ((finished, 64), (other, 48)):
        records = json.loads((folder / "linear.json").read_text())["cached"]
        assert [record["images"]["train"] for record in records] == [size, size]
        assert [record["seed"] for record in records] == [0, 1]
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["linear"]["cached"]["seeds"]["n"] == 2
    assert "% over 2 seeds" in capsys.readouterr().out
