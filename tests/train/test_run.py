"""A run: which files it leaves, that it repeats, and its options."""

import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from support.small_runs import SMALL, WATCHED, all_rows, configure, files, read_summary, rows, run

from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl
from rdm_solo.runs import read_metrics
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.train import reporting, training_data
from rdm_solo.train.claims import Start
from rdm_solo.train.processes import world_size


def test_metrics_hold_every_column_for_every_epoch(finished):
    assert list(read_metrics(finished)) == list(COLUMNS)
    table = rows(finished)
    assert [row["epoch"] for row in table] == [1, 2, 3]
    # Without a softmax and a callback; the pixels are classified before the first epoch.
    absent = {"erank/logits", "train/loss_share", "rate/slope", "val/knn_pixels"}
    for row in table:
        assert row.keys() == COLUMNS.keys() - absent - WATCHED
        assert np.isfinite(list(row.values())).all()
        gap = row["erank/target"] - row["erank/online"]
        assert row["erank/gap"] == pytest.approx(gap, rel=1e-4)
        assert row["erank/gap"] > 0


@pytest.mark.parametrize(
    ("images", "batch", "message"),
    [
        (400, 256, "144 of 400"),
        (400, 128, None),
        (400, 512, "batch_size=400"),
        (96, 64, "32 of 96"),
    ],
)
def test_images_that_are_left_over_are_reported_if_they_are_many(images, batch, message, caplog):
    cfg = configure(*SMALL, f"dataset.num_train={images}", f"batch_size={batch}")
    dataset, _ = training_data.make_data(cfg)
    with caplog.at_level(logging.INFO):
        training_data.limit_batch(cfg, dataset)
    assert len(caplog.records) == bool(message)
    if message:
        assert message in caplog.text


class Validated(pl.Callback):
    """Classify the images of this process once more, and keep what the run logged."""

    def __init__(self) -> None:
        self.numbers = Counter()

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, *args) -> None:
        x, labels = batch
        logits = pl_module.classifier(pl_module.backbone(x))
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        is_correct = logits.argmax(1) == labels
        self.numbers.update(images=len(x), correct=int(is_correct.sum()), loss=float(loss))

    def on_train_end(self, trainer, pl_module) -> None:
        for name in ("val/acc1", "val/classifier_loss"):
            self.numbers[name] = float(trainer.callback_metrics[name])


def _validate(rank: int, world: int, folder: str) -> dict[str, float]:
    """Return what a process validated, and the accuracy and loss that the run logged."""
    validated = Validated()
    options = ["method=byol", "trainer.strategy=ddp", f"trainer.devices={world}"]
    options += ["dataset.num_val=11", "batch_size=8", "max_epochs=1", "scheduler.warmup_epochs=0"]
    # Something has to ask for the loss of the classifier, which only loggers show.
    run(Path(folder), *SMALL, *options, "logger=tensorboard", callbacks=[validated])
    return dict(validated.numbers)


def test_an_uneven_validation_set_counts_each_image_once(worlds, tmp_path):
    first, second = worlds(2).run(_validate, str(tmp_path))
    assert [first["images"], second["images"]] == [5, 6]
    accuracy = 100 * (first["correct"] + second["correct"]) / 11
    loss = (first["loss"] + second["loss"]) / 11
    for process in (first, second):
        assert process["val/acc1"] == pytest.approx(accuracy, rel=1e-5)
        assert process["val/classifier_loss"] == pytest.approx(loss, rel=1e-5)


def test_the_summary_records_config_versions_and_last_values(finished):
    summary = read_summary(finished)
    assert summary["finished"]
    assert summary["derived"]["lr"] == pytest.approx(0.5 * 16 / 256)
    assert summary["last"]["erank/online"] == rows(finished)[-1]["erank/online"]
    assert {"torch", "solo-learn", "python"} <= summary["versions"].keys()
    assert summary["config"]["p"] == -0.5
    assert summary["seed"] == 0


def test_nothing_else_is_written(finished):
    assert files(finished) == {
        ".hydra/config.yaml",
        ".hydra/overrides.yaml",
        "owner.json",
        "train.log",
        "metrics.csv",
        "spectra/epoch_0001.npz",
        "spectra/epoch_0002.npz",
        "spectra/epoch_0003.npz",
        "summary.json",
        "figures/erank.png",
        "checkpoints/last.ckpt",
        "checkpoints/previous.ckpt",
    }


def test_a_fast_dev_run_leaves_nothing_to_resume(tmp_path):
    run(tmp_path, "+trainer.fast_dev_run=true")
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_schedule_moves_p_and_another_seed_gives_other_metrics(finished, tmp_path):
    exponents = []
    watch = pl.callbacks.LambdaCallback(
        on_train_epoch_end=lambda trainer, module: exponents.append(module.filters[0].p)
    )
    options = ["p={schedule: linear, start: 0, end: -1}", "seed=1"]
    run(tmp_path, *SMALL, "filter=target_pow", *options, callbacks=[watch])
    assert exponents == [0, -1]
    # The untrained networks differ in nothing but the seed.
    untrained, expected = all_rows(tmp_path)[0], all_rows(finished)[0]
    assert untrained["erank/features"] != expected["erank/features"]


def test_multi_crop_trains_byol_and_is_refused_for_simsiam(tmp_path):
    pipelines = (
        "dataset.views.pipelines=[{_target_: rdm_solo.data.Pipeline, size: 8},"
        "{_target_: rdm_solo.data.Pipeline, size: 4, num_crops: 2, crop_scale: [0.1, 0.4]}]"
    )
    run(tmp_path, *SMALL, "method=byol", "optimizer.name=sgd", "filter=target_pow", pipelines)
    assert len(rows(tmp_path)) == 2
    with pytest.raises(UserError, match="2 large crops and 2 small ones"):
        run(tmp_path / "simsiam", *SMALL, "method=simsiam", pipelines)


@pytest.mark.parametrize(
    ("overrides", "warning"),
    [
        (["filter=online_log1p", "method.kwargs.proj_output_dim=48"], "less than twice the 48"),
        (["filter=online_log", "method.kwargs.proj_output_dim=8"], "negative below sigma = 1"),
        (["filter=linear", "optimizer.lr=0.8"], "Here optimizer.lr=0.8"),
        (["filter=target_pow", "method.kwargs.proj_output_dim=8"], ""),
    ],
)
def test_only_risky_settings_get_a_warning(overrides, warning, tmp_path, caplog):
    cfg = configure(*SMALL, *overrides)
    dataset, views = training_data.make_data(cfg)
    _, derived = training_data.derive(cfg, dataset, views)
    with caplog.at_level(logging.WARNING, "rdm_solo"):
        reporting.announce(cfg, tmp_path, derived, views, Start())
    assert warning in caplog.text
    assert ("warning" in caplog.text) is bool(warning)


@pytest.mark.parametrize(("devices", "processes"), [("auto", 3), (-1, 3), ([0, 2], 2), (2, 2)])
def test_each_way_of_naming_gpus_is_counted(devices, processes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    trainer = OmegaConf.create({"devices": devices, "num_nodes": 2, "accelerator": "gpu"})
    assert world_size(trainer) == 2 * processes
