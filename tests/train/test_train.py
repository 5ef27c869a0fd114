"""Runs: what they leave, that they repeat and resume, several processes, half precision."""

from __future__ import annotations

import csv
import json
import logging
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT, command
from omegaconf import OmegaConf
from support.small_runs import DRAWN, SMALL, configure, rows, run

from rdm_solo import train
from rdm_solo.data.images import DataError
from rdm_solo.lightning import pl
from rdm_solo.runs import read_metrics, spectra_files
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.train import derived_values, entry


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, run(folder, *DRAWN, "filter=target_pow")


class TestFolder:
    def test_metrics_hold_every_column_for_every_epoch(self, finished):
        folder, _ = finished
        table = rows(folder)
        assert [*read_metrics(folder)] == [*COLUMNS]
        assert table[0].keys() == COLUMNS.keys() - {"erank/logits"}  # no softmax
        assert [row["epoch"] for row in table] == [1, 2]
        assert all(math.isfinite(value) for row in table for value in row.values())
        for row in table:
            gap = row["erank/target"] - row["erank/online"]
            assert row["erank/gap"] == pytest.approx(gap, rel=1e-4)
            assert row["erank/gap"] > 0

    def test_spectra_give_the_same_eranks_as_the_table(self, finished):
        folder, _ = finished
        spectra = spectra_files.read(folder)[0]
        assert list(spectra["epoch"]) == [1, 2]
        assert list(spectra["rows"]) == [128, 128]
        for epoch, row in enumerate(rows(folder)):
            for branch in ("online", "target", "projection"):
                lam = spectra[f"lam_{branch}"][epoch]
                assert lam.shape == (16,)
                q = lam / lam.sum()
                erank = np.exp(-(q[q > 0] * np.log(q[q > 0])).sum())
                assert erank == pytest.approx(row[f"erank/{branch}"], rel=1e-5)
            curve = np.sqrt(spectra["lam_online"][epoch] / spectra["lam_target"][epoch])
            np.testing.assert_allclose(spectra["filter_curve"][epoch], curve)

    def test_the_checkpoint_loads_with_weights_only(self, finished):
        folder, _ = finished
        saved = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
        assert saved["epoch"] == 1
        assert any(key.startswith("backbone.") for key in saved["state_dict"])

    def test_the_summary_says_what_made_it(self, finished):
        folder, returned = finished
        summary = json.loads((folder / "summary.json").read_text())
        assert summary == json.loads(json.dumps(returned))
        assert summary["derived"]["lr"] == pytest.approx(0.5 * 16 / 256)
        assert summary["derived"]["base_lr"] == 0.5
        assert summary["derived"]["global_batch"] == 16
        assert summary["last"]["erank/online"] == rows(folder)[-1]["erank/online"]
        assert {"torch", "solo-learn", "python"} <= set(summary["versions"])
        assert summary["config"]["p"] == -0.5
        assert summary["seed"] == 0
        assert summary["seconds"] > 0

    def test_the_picture_is_drawn(self, finished):
        folder, _ = finished
        picture = (folder / "figures" / "erank.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert len(picture) > 5000

    def test_nothing_else_is_written(self, finished):
        folder, _ = finished
        files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
        assert files == {
            "format.json",
            "owner.json",
            "metrics.csv",
            "spectra/epoch_0001.npz",
            "spectra/epoch_0002.npz",
            "summary.json",
            "figures/erank.png",
            "checkpoints/last.ckpt",
            "checkpoints/previous.ckpt",
        }


class TestRepetition:
    def test_the_same_seed_gives_the_same_metrics_and_another_does_not(self, finished, tmp_path):
        folder, _ = finished
        run(tmp_path / "again", *SMALL, "filter=target_pow")
        assert rows(tmp_path / "again") == rows(folder)
        run(tmp_path / "other", *SMALL, "filter=target_pow", "seed=1")
        assert rows(tmp_path / "other") != rows(folder)


@pytest.mark.parametrize("optimizer", ["sgd", "lars", "adam", "adamw"])
def test_every_optimiser_runs_with_warm_up_and_cosine(optimizer, tmp_path):
    rate = "0.001" if optimizer.startswith("adam") else "0.5"
    run(tmp_path, *SMALL, f"optimizer.name={optimizer}", f"optimizer.lr={rate}")
    assert len(rows(tmp_path)) == 2


def test_a_schedule_moves_p_with_the_epochs(tmp_path):
    cfg = configure(*SMALL, "filter=target_pow", "p={schedule: linear, start: 0, end: -1}")
    parts = train.build(cfg, tmp_path)
    seen = []

    class Watch(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            seen.append(pl_module.filters[0].p)

    parts.trainer.callbacks.append(Watch())
    parts.trainer.fit(parts.model, datamodule=parts.data)
    assert seen == [0, -1]


def test_diagnostics_and_knn_can_be_thinned_out_or_off(tmp_path):
    run(
        tmp_path / "a",
        *SMALL,
        "max_epochs=3",
        "diagnostics.every_n_epochs=2",
        "knn.every_n_epochs=0",
    )
    with open(tmp_path / "a" / "metrics.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [bool(row["erank/online"]) for row in table] == [True, False, True]
    assert not any(row["val/knn_acc1"] for row in table)
    run(tmp_path / "b", *SMALL, "diagnostics.max_rows=40")
    assert list(spectra_files.read(tmp_path / "b")[0]["rows"]) == [32, 32]
    run(tmp_path / "c", *SMALL, "diagnostics.every_n_epochs=0")
    assert not (tmp_path / "c" / "spectra").exists()


def test_multi_crop_trains_byol_and_is_refused_for_simsiam(tmp_path):
    pipelines = (
        "dataset.views.pipelines=[{_target_: rdm_solo.data.Pipeline, size: 8},"
        "{_target_: rdm_solo.data.Pipeline, size: 4, num_crops: 2, crop_scale: [0.1, 0.4]}]"
    )
    run(tmp_path, *SMALL, "method=byol", "optimizer.name=sgd", "filter=target_pow", pipelines)
    assert len(rows(tmp_path)) == 2
    with pytest.raises(ValueError, match="two large crops and no small ones"):
        run(tmp_path / "simsiam", *SMALL, "method=simsiam", pipelines)


ACCUMULATE = "trainer.accumulate_grad_batches=2"


class TestRefusals:
    @pytest.mark.parametrize(
        ("overrides", "says"),
        [
            (["batch_size=1"], "batch_size must be a whole number of at least 2, got 1"),
            (["batch_size=x"], "batch_size must be a whole number"),
            (["batch_size=65"], "batch_size=65 on 1 process(es) is more than the 64 training"),
            (["dataset.num_train=0"], "num_train"),
            (["max_epochs=0"], "max_epochs must be a whole number of at least 1, got 0"),
            (["p=-0.5"], "p=-0.5 would be ignored: filter=learnable has no exponent"),
            (["filter=target_pow", "p=soft"], "p must be a number from -10 to 10 or a schedule"),
            (["filter=target_pow", "p=.nan"], "p must be a number from -10 to 10 or a schedule"),
            (["scheduler.warmup_epochs=5"], "scheduler.warmup_epochs=5 is longer than"),
            (["optimizer.name=sdg"], "optimizer.name must be one of"),
            (["resume=nowhere"], "resume=nowhere holds no checkpoints/last.ckpt"),
            (["+trainer.max_epoch=3"], "max_epoch"),
            (["+trainer.max_epochs=3"], "trainer.max_epochs is set by the run itself"),
            (["trainer.precision=64-true"], "trainer.precision must be one of"),
            (["trainer.accelerator=mps"], "got 'mps': Apple's GPUs have no float64, in which"),
            (["trainer.accelerator=xpu"], "got 'xpu': Lightning has no accelerator of that name"),
            (["trainer.accelerator=tpu"], "trainer.accelerator must be auto, cpu, gpu or cuda"),
            (["filter=target_pow", "p=1e30"], "p must be a number from -10 to 10"),
            (["seed=99999999999999"], "seed must be a whole number from 0 to 4294967295"),
            (["trainer.accumulate_grad_batches=0"], "accumulate_grad_batches must be a whole"),
            (["threads=0"], "threads must be a whole number of at least 1, or null"),
            (["knn.k=65"], "knn.k=65 neighbours are more than the 64 training images"),
            (["knn.k=0"], "knn.k must be a whole number of at least 1, got 0"),
            (["diagnostics.max_rows=0"], "diagnostics.max_rows must be a whole number"),
            (["optimizer.lr=-1"], "optimizer.lr must be a number of at least 0, got -1"),
            (["backbone.stem=smal"], "backbone.stem must be one of small, imagenet, got 'smal'"),
            (["backbone.compile=inductr"], "did you mean 'inductor'"),
            (["backbone.name=resnet19"], "did you mean 'resnet18'"),
            (["backbone.name=resnet26"], "timm has one: backbone.name=timm/resnet26"),
            (["backbone.name=timm/resnet19"], "timm has no such model"),
            (["++trainer.logger=false"], "trainer.logger is set by the run itself"),
            (["++trainer.benchmark=x"], "Trainer refuses trainer=...: set_benchmark_cudnn expects"),
            (["++trainer.check_val_every_n_epoch=0"], "check_val_every_n_epoch must be a whole"),
            (["++trainer.log_every_n_steps=x"], "trainer.log_every_n_steps must be a whole number"),
            (["trainer.gradient_clip_val=-1"], "at least 0, or null for no limit, got -1"),
            (["trainer.sync_batchnorm=x"], "true or false, or null to let the run decide, got 'x'"),
            (
                ["trainer.strategy=x"],
                "Trainer refuses trainer=...: You selected an invalid strategy",
            ),
            (["trainer.devices=[0,a]"], "trainer.devices must be a whole number of at least 1, or"),
            (["trainer.devices=-1"], "Trainer refuses trainer=...: "),  # on a CPU
            (["trainer.devices=-5"], "trainer.devices must be a whole number of at least 1, or"),
            (["trainer.devices=1.5"], "trainer.devices must be a whole number of at least 1, or"),
            (["trainer.devices=true"], "trainer.devices must be a whole number of at least 1, or"),
            (["backbone.compile=3"], "backbone.compile must be true, false, or one of"),
            (
                ["++backbone.kwargs.zero_init_residual=x"],
                "zero_init_residual must be true or false",
            ),
            (["optimizer.momentum=5"], "optimizer.momentum must be a number from 0 to 1, got 5"),
            (["++optimizer.kwargs.dampening=x"], "is refused by optimizer.name=sgd: unsupported"),
            (["dataset.seed=x"], "dataset.seed must be a whole number of at least 0, got 'x'."),
            (["callbacks.watch.variance=x"], "callbacks.watch.variance must be a number from 0 to"),
            (["+callbacks.mine=3"], "callbacks.mine must name a class derived from"),
            (["logger=wandb", "logger.wandb.offline=x"], "logger.wandb.offline must be true or"),
            (
                ["logger=wandb", "logger.wandb.name=3"],
                "logger.wandb.name must be text, or null for",
            ),
            (["logger=wandb", "logger.wandb.tags=x"], "logger.wandb.tags must be a list of words"),
        ],
    )
    def test_one_sentence_before_anything_is_written(self, overrides, says, tmp_path):
        with pytest.raises(ValueError, match=re.escape(says)) as refused:
            run(tmp_path, *SMALL, *overrides)
        assert len(str(refused.value).splitlines()) == 1
        assert not list(tmp_path.iterdir())

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to use")
    @pytest.mark.parametrize(
        ("overrides", "says"),
        [
            (["method=swav", "filter=online_log"], "method=swav has no place for one, since its"),
            (["method=simsiam", "filter=none"], "filter=none is not for method=simsiam"),
            (["method=vanilla", "p=-1"], "p=-1 would be ignored"),
            (
                ["method=byol", "method.momentum.base_tau=1.5"],
                "base_tau must be a number from 0 to 1",
            ),
            (["method=dino", "method.kwargs.clip_grad=1", ACCUMULATE], "would clip gradients"),
            (["method=byol", "method.momentum.final_tau=0.5"], "is below method.momentum.base_tau"),
            (["method=byol", "method.momentum.classifier=x"], "classifier must be true or false"),
            (["method=dino", "method.centring=x"], "method.centring must be true or false"),
            (["method=dino", "method.center_momentum=2"], "center_momentum must be a number from"),
            (["method=vanilla", "method.last_bn=x"], "method.last_bn must be true or false"),
            (
                ["method=swav", "method.kwargs.queue_size=7"],
                "queue_size=7 is less than the 16 rows",
            ),
            (
                ["method=symsimsiam", "method.center=mean"],
                "method.center must be one of ema",
            ),
        ],
    )
    def test_what_a_method_cannot_take(self, overrides, says, tmp_path):
        options = [option for option in SMALL if "pred_hidden" not in option]
        with pytest.raises(ValueError, match=re.escape(says)):
            run(tmp_path, *options, *overrides)

    def test_a_gpu_that_is_absent(self, tmp_path):
        with pytest.raises(ValueError, match="shows no GPU"):
            run(tmp_path, *SMALL, "trainer.accelerator=gpu")

    def test_channels_that_the_images_do_not_have(self, tmp_path):
        with pytest.raises(ValueError, match=r"dataset\.channels=3 would be ignored"):
            run(tmp_path, "dataset=digits", "dataset.channels=3")

    def test_missing_cifar_before_a_model_is_built(self, tmp_path):
        with pytest.raises(DataError, match=r"dataset\.root.*dataset\.download=true"):
            run(tmp_path, "dataset=cifar10", f"dataset.root={tmp_path / 'none'}")


class TestWarnings:
    @pytest.mark.parametrize(
        ("overrides", "says"),
        [
            (["filter=online_log1p", "method.kwargs.proj_output_dim=48"], "less than twice the 48"),
            (["filter=online_log1p"], "weak under strong augmentation"),
            (["filter=online_log"], "negative below sigma = 1"),
            (["filter=linear", "scheduler.warmup_epochs=0"], "(here optimizer.lr=0.5 and 0 of"),
            (["filter=linear", "optimizer.lr=0.8"], "(here optimizer.lr=0.8"),
        ],
    )
    def test_risky_settings_get_a_sentence(self, overrides, says, tmp_path, caplog):
        with caplog.at_level(logging.WARNING, "rdm_solo"):
            train.build(configure(*SMALL, *overrides), tmp_path)
        assert any(says in record.message for record in caplog.records)

    def test_the_default_gets_none(self, tmp_path, caplog):
        with caplog.at_level(logging.WARNING, "rdm_solo"):
            train.build(configure("filter=target_pow"), tmp_path)
        assert not caplog.records


def test_several_processes_are_counted_in_the_global_batch():
    trainer = OmegaConf.create({"devices": 4, "num_nodes": 2, "accelerator": "cpu"})
    assert derived_values.world_size(trainer) == 8


@pytest.mark.parametrize(("devices", "processes"), [("auto", 3), (-1, 3), ([0, 2], 2), (2, 2)])
def test_each_way_of_naming_gpus_is_counted(devices, processes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    trainer = OmegaConf.create({"devices": devices, "num_nodes": 1, "accelerator": "gpu"})
    assert derived_values.world_size(trainer) == processes


@pytest.mark.process
class TestCommand:
    def test_help_answers_without_torch(self, tmp_path):
        out = command("rdm_solo.train", "--help", cwd=tmp_path)
        assert out.returncode == 0
        for word in ("target_pow", "byol", "cifar100", "batch_size", "++trainer.NAME=VALUE"):
            assert word in out.stdout
        assert not list(tmp_path.iterdir())

    def test_cfg_job_shows_what_a_run_uses(self, tmp_path):
        out = command("rdm_solo.train", "--cfg", "job", "filter=online_pow", cwd=tmp_path)
        cfg = OmegaConf.create(out.stdout)
        assert (cfg.p, cfg.filter.branch, cfg.max_epochs) == (1.0, "online", 30)

    def test_what_is_mistyped_leaves_no_traceback(self, tmp_path):
        out = command("rdm_solo.train", "method=simsam", cwd=tmp_path)
        assert (out.returncode, out.stdout) == (2, "")
        assert out.stderr.startswith("error: ")
        assert len(out.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("method=simsam", "did you mean 'simsiam'"),
        ("filter=target", "did you mean 'target_pow'"),
        ("dataset=cifar", "did you mean 'cifar10"),
        ("bach_size=3", "did you mean 'batch_size'"),
        ("optimizer.lrr=3", "did you mean 'optimizer.lr'"),
        ("trainer.fast_dev_run=true", "++trainer.fast_dev_run"),
        ("+nonsense=1", "no option 'nonsense'"),
        ("p=[", "cannot read the argument"),
        ("filter.name=target_pow", "write filter=... instead"),
        ("hydra.run.dir=blocked/run", "cannot be written"),
        ("callbacks=defualt", "did you mean 'default'"),
    ],
)
def test_what_is_mistyped_is_answered_in_one_sentence(
    argument, says, tmp_path, monkeypatch, capsys
):
    (tmp_path / "blocked").write_text("a file where a folder should be")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train", argument])
    with pytest.raises(SystemExit) as left:
        entry.main()
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.strip().splitlines()) == 1
    assert says in error
    assert [path.name for path in tmp_path.iterdir()] == ["blocked"]


def test_runs_leave_the_checkout_clean():
    paths = ["runs/a/metrics.csv", "data/a", "uv.lock", "dist/a.whl"]
    out = subprocess.run(
        ["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert out.stdout.split() == paths


class TestResume:
    def test_a_prolonged_run_follows_the_new_schedule(self, finished, tmp_path):
        folder, _ = finished
        cfg = configure(*SMALL, "filter=target_pow", "max_epochs=4", f"resume={folder}")
        parts = train.build(cfg, tmp_path)
        rates = []

        class Watch(pl.Callback):
            def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
                rates.append(trainer.optimizers[0].param_groups[0]["lr"])

        parts.trainer.callbacks.append(Watch())
        checkpoint = parts.checkpoint
        parts.trainer.fit(parts.model, datamodule=parts.data, ckpt_path=checkpoint)
        lr, steps = parts.recorded["derived"]["lr"], range(8, 16)
        want = [lr * (1 + math.cos(math.pi * (step - 4) / 12)) / 2 for step in steps]
        assert rates == pytest.approx(want)
        assert [row["epoch"] for row in rows(tmp_path)] == [1, 2, 3, 4]

    def test_a_finished_run_and_another_experiment_are_refused(self, finished, tmp_path):
        folder, _ = finished
        with pytest.raises(ValueError, match="has finished 2 epochs"):
            train.build(configure(*SMALL, "filter=target_pow", f"resume={folder}"), tmp_path)
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / ".hydra").mkdir()
        (tmp_path / "checkpoints" / "last.ckpt").write_bytes(
            (folder / "checkpoints" / "last.ckpt").read_bytes()
        )
        OmegaConf.save(configure(*SMALL, "filter=target_pow"), tmp_path / ".hydra" / "config.yaml")
        options = [*SMALL, "max_epochs=4", f"resume={tmp_path}"]
        new = tmp_path / "new"
        train.build(configure(*options, "filter=target_pow"), new)
        with pytest.raises(ValueError, match=r"another 'filter\.name'"):
            train.build(configure(*options, "filter=identity"), new)
        with pytest.raises(ValueError, match="another 'p'"):
            train.build(configure(*options, "filter=target_pow", "p=-1"), new)


def test_either_backbone_goes_with_either_kind_of_image(tmp_path):
    for options in (
        ["backbone.name=resnet18"],
        ["dataset=synthetic", "backbone.name=small_resnet"],
    ):
        parts = train.build(configure(*options), tmp_path)
        assert parts.data.options["expand_channels"] == (3 if "resnet18" in options[0] else None)
