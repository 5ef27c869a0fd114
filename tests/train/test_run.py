"""A run: what it leaves, that it repeats, and its options."""

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from support.small_runs import DRAWN, SMALL, rows, run

from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl
from rdm_solo.runs import read_metrics, spectra_files
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.train import derived_values


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, run(folder, *DRAWN, "filter=target_pow")


def test_metrics_hold_every_column_for_every_epoch(finished):
    folder, _ = finished
    table = rows(folder)
    assert [*read_metrics(folder)] == [*COLUMNS]
    absent = {"erank/logits", "train/loss_share", "rate/slope"}  # no softmax, no such callback
    assert table[0].keys() == COLUMNS.keys() - absent
    assert [row["epoch"] for row in table] == [1, 2]
    for row in table:
        assert all(math.isfinite(value) for value in row.values())
        gap = row["erank/target"] - row["erank/online"]
        assert row["erank/gap"] == pytest.approx(gap, rel=1e-4)
        assert row["erank/gap"] > 0


class Validated(pl.Callback):
    """Classifies the images of this process once more: how many it gets right, and their loss."""

    def __init__(self) -> None:
        self.sums = torch.zeros(3)  # images, correct ones, sum of their losses

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, *args) -> None:
        x, labels = batch
        logits = pl_module.classifier(pl_module.backbone(x))
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        self.sums += torch.stack([torch.tensor(len(x)), (logits.argmax(1) == labels).sum(), loss])


def _validate(rank: int, world: int, folder: str, method: str) -> tuple[list[float], list[float]]:
    """Return what a process validated, and the accuracy and loss that the run logged."""
    validated, logged = Validated(), {}
    note = pl.callbacks.LambdaCallback(
        on_train_end=lambda trainer, module: logged.update(trainer.callback_metrics)
    )
    options = [f"method={method}", "trainer.strategy=ddp", f"trainer.devices={world}"]
    options += ["dataset.num_val=11", "batch_size=8", "max_epochs=1", "scheduler.warmup_epochs=0"]
    # Something has to ask for the loss of the classifier, which only loggers show.
    run(Path(folder), *SMALL, *options, "logger=tensorboard", callbacks=[validated, note])
    names = ("val/acc1", "val/classifier_loss")
    return validated.sums.tolist(), [float(logged[name]) for name in names]


@pytest.mark.parametrize("method", ["simsiam", "byol"])
def test_an_uneven_validation_set_counts_each_image_once(method, worlds, tmp_path):
    results = worlds(2).run(_validate, str(tmp_path), method)
    assert [sums[0] for sums, _ in results] == [5, 6]
    images, correct, loss = torch.tensor([sums for sums, _ in results]).sum(0).tolist()
    for _, logged in results:
        assert logged == pytest.approx([100 * correct / images, loss / images], rel=1e-5)


def test_spectra_give_the_same_eranks_as_the_table(finished):
    folder, _ = finished
    spectra = spectra_files.read(folder)[0]
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


def test_the_summary_says_what_made_it(finished):
    folder, returned = finished
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == json.loads(json.dumps(returned))
    assert summary["finished"]
    assert summary["derived"]["lr"] == pytest.approx(0.5 * 16 / 256)
    assert summary["derived"]["global_batch"] == 16
    assert summary["last"]["erank/online"] == rows(folder)[-1]["erank/online"]
    assert {"torch", "solo-learn", "python"} <= set(summary["versions"])
    assert (summary["config"]["p"], summary["seed"]) == (-0.5, 0)


def test_nothing_else_is_written(finished):
    folder, _ = finished
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert files - {".lock"} == {
        ".hydra/config.yaml",
        ".hydra/overrides.yaml",
        "owner.json",
        "train.log",
        "metrics.csv",
        "spectra/epoch_0001.npz",
        "spectra/epoch_0002.npz",
        "summary.json",
        "figures/erank.png",
        "checkpoints/last.ckpt",
        "checkpoints/previous.ckpt",
    }
    assert (folder / "figures" / "erank.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_seed_gives_the_same_metrics_and_another_does_not(finished, tmp_path):
    """Two runs in one process: the second does not depend on the first."""
    folder, _ = finished
    run(tmp_path / "again", *SMALL, "filter=target_pow")
    assert rows(tmp_path / "again") == rows(folder)
    run(tmp_path / "other", *SMALL, "filter=target_pow", "seed=1")
    assert rows(tmp_path / "other") != rows(folder)


def test_a_schedule_moves_p_with_the_epochs(tmp_path):
    exponents = []

    class Watch(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            exponents.append(pl_module.filters[0].p)

    p = "p={schedule: linear, start: 0, end: -1}"
    run(tmp_path, *SMALL, "filter=target_pow", p, callbacks=[Watch()])
    assert exponents == [0, -1]


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
    ("overrides", "says"),
    [
        (["filter=online_log1p", "method.kwargs.proj_output_dim=48"], "less than twice the 48"),
        (["filter=online_log"], "negative below sigma = 1"),
        (["filter=linear", "optimizer.lr=0.8"], "Here optimizer.lr=0.8"),
        (["filter=target_pow", "method.kwargs.proj_output_dim=8"], None),
    ],
)
def test_risky_settings_get_a_warning(overrides, says, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "rdm_solo"):
        run(tmp_path, *SMALL, *overrides, "max_epochs=1")
    messages = [record.message for record in caplog.records if "warning" in record.message]
    assert any(says in message for message in messages) if says else not messages


@pytest.mark.parametrize(("devices", "processes"), [("auto", 3), (-1, 3), ([0, 2], 2), (2, 2)])
def test_each_way_of_naming_gpus_is_counted(devices, processes, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    trainer = OmegaConf.create({"devices": devices, "num_nodes": 2, "accelerator": "gpu"})
    assert derived_values.world_size(trainer) == 2 * processes
