"""Runs read back from their folders, whole and broken ones."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from rdm_solo import runs
from rdm_solo.runs import failures, saved_config, spectra_files

CONFIG = {
    "method": {"name": "simsiam"},
    "filter": {"name": "target_pow"},
    "dataset": {"name": "digits"},
    "p": -0.5,
    "seed": 3,
    "max_epochs": 3,
}


def write(folder: Path, epochs: int = 3, spectra: bool = True, summary: bool = True, **changed):
    """A run's folder, as far as it is to go."""
    config = {**CONFIG, **changed}
    (folder / ".hydra").mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(config), folder / ".hydra" / "config.yaml")
    (folder / "format.json").write_text('{"format": 2}')
    if epochs:
        rows = [f"{epoch},{epoch + 1.5},{'' if epoch > 1 else 9}" for epoch in range(1, epochs + 1)]
        (folder / "metrics.csv").write_text(
            "\n".join(["epoch,erank/online,val/acc1", *rows]) + "\n"
        )
    if spectra:
        for epoch in range(1, epochs + 1):
            spectra_files.write(folder, epoch, {"lam_online": np.ones(4)})
    if summary:
        (folder / "summary.json").write_text(json.dumps({"format": 2, "seed": 3, "config": config}))


def test_a_whole_run(tmp_path):
    write(tmp_path / "run")
    run = runs.load(tmp_path / "run")
    assert (run.method, run.filter, run.p, run.seed, run.dataset) == (
        *("simsiam", "target_pow", -0.5, 3),
        "digits",
    )
    assert run.epochs == 3
    assert run.missing == ()
    assert run.label == "SimSiam, h(σ) = σ^-0.5"
    assert run.last("erank/online") == 4.5
    assert (run.last("val/acc1"), run.last_measured("val/acc1"), run.last_epoch) == (9, 1, 3)
    assert (math.isnan(run.last("val/knn_acc1")), run.last_measured("val/knn_acc1")) == (True, 0)
    assert run.spectra["lam_online"].shape == (3, 4)


@pytest.mark.parametrize(
    ("changed", "label"),
    [
        ({"filter": {"name": "learnable"}, "p": None}, "SimSiam"),
        ({"method": {"name": "dino"}, "filter": {"name": "none"}, "p": None}, "DINO"),
        ({"filter": {"name": "online_log1p"}, "p": None}, "SimSiam, g(σ) = log(1 + σ)"),
        (
            {"filter": {"name": "online_pow", "branch": "online", "function": "own.soft"}, "p": 2},
            "SimSiam, online_own.soft, p = 2",
        ),
        (
            {"filter": {"name": "online_pow", "branch": "target", "function": "pow"}, "p": -1},
            "SimSiam, h(σ) = σ^-1",
        ),
        (
            {"p": {"schedule": "linear", "start": -0.1, "end": -0.5}},
            "SimSiam, h(σ) = σ^(-0.1…-0.5, linear)",
        ),
    ],
)
def test_labels(changed, label, tmp_path):
    write(tmp_path / "run", **changed)
    assert runs.load(tmp_path / "run").label == label


def test_a_run_that_broke_off_is_loaded_as_far_as_it_went(tmp_path):
    write(tmp_path / "run", epochs=2, summary=False)
    found = runs.load(tmp_path / "run")
    assert found.epochs == 2
    assert "2 of 3 epochs" in found.missing
    assert any("summary.json" in what for what in found.missing)
    (tmp_path / "run" / "spectra" / "epoch_0001.npz").write_bytes(b"PK\x03\x04 half")
    found = runs.load(tmp_path / "run")
    assert found.spectra["epoch"].tolist() == [2]
    assert "spectra/epoch_0001.npz cannot be read and is left out" in found.missing


def test_a_run_that_failed_says_why(tmp_path):
    write(tmp_path / "run", epochs=2, summary=False)
    failures.note(tmp_path / "run", "training has diverged.")
    assert runs.load(tmp_path / "run").missing == (
        "2 of 3 epochs",
        "it failed: training has diverged",
    )


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_rows_of_nan_of_an_earlier_version_are_a_divergence(number, tmp_path):
    write(tmp_path / "run", max_epochs=4, epochs=4)
    lines = ["epoch,train/loss,erank/online", "1,-0.5,3", f"2,{number},2", "3,nan,2", "4,,2"]
    (tmp_path / "run" / "metrics.csv").write_text("\n".join([*lines, ""]))
    found = runs.load(tmp_path / "run")
    assert (found.diverged, found.epochs, found.spectra["epoch"].tolist()) == (2, 1, [1])
    assert found.last("train/loss") == -0.5
    assert found.missing == (
        "it diverged in epoch 2 (values from there on are left out)",
        "1 of 4 epochs",
    )
    # Before format 2, epochs were counted from 0.
    for name in ("format.json", "summary.json"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / "metrics.csv").write_text("epoch,train/loss\n0,nan\n1,nan\n")
    found = runs.load(tmp_path / "run")
    assert (found.diverged, found.epochs) == (1, 0)


def test_a_loss_that_was_not_measured_is_no_divergence(tmp_path):
    write(tmp_path / "run", epochs=2)
    (tmp_path / "run" / "metrics.csv").write_text("epoch,train/loss,val/acc1\n1,,3\n2,-1,nan\n")
    found = runs.load(tmp_path / "run")
    assert (found.diverged, found.epochs) == (None, 2)
    # A NaN that was written is no value, and the value before it does not stand for it.
    assert math.isnan(found.last("val/acc1"))
    assert found.last_measured("val/acc1") == 2


def test_the_summary_says_when_a_run_diverged_until_it_has_gone_on(tmp_path):
    write(tmp_path / "run", epochs=2)
    path = tmp_path / "run" / "summary.json"
    told = json.loads(path.read_text())
    for said, diverged in [(3, 3), (2, None), ("3", None), (0, None), (True, None), (2.5, None)]:
        path.write_text(json.dumps({**told, "diverged": {"epoch": said}}))
        assert runs.load(tmp_path / "run").diverged == diverged, said
    path.write_text(json.dumps({**told, "diverged": {"epoch": 1}}))
    (tmp_path / "run" / "metrics.csv").unlink()
    found = runs.load(tmp_path / "run")
    assert (found.diverged, found.epochs) == (1, 0)
    assert found.missing == ("it diverged in epoch 1 (values from there on are left out)",)


def test_a_run_without_an_epoch_or_without_diagnostics(tmp_path):
    write(tmp_path / "none", epochs=0, spectra=False, summary=False)
    assert runs.load(tmp_path / "none").missing == ("no metrics.csv: no epoch has ended",)
    write(tmp_path / "off", spectra=False)
    assert runs.load(tmp_path / "off").missing == ("no spectra (diagnostics were off?)",)


def test_a_summary_alone_makes_a_run(tmp_path):
    write(tmp_path / "run")
    (tmp_path / "run" / ".hydra" / "config.yaml").unlink()
    assert runs.load(tmp_path / "run").p == -0.5


def test_a_sweep_is_its_runs_in_their_order(tmp_path):
    for job in range(11):
        write(tmp_path / "sweep" / f"{job}_simsiam_p={-job}", p=-job)
    write(tmp_path / "single", p=1)
    (tmp_path / "sweep" / "multirun.yaml").write_text("")
    found = runs.find([tmp_path / "sweep", tmp_path / "single", tmp_path / "single"])
    assert [run.p for run in found] == [*(-float(job) for job in range(11)), 1.0]


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        runs.find([tmp_path])
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        runs.find([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="is not a run folder"):
        runs.load(tmp_path)


def test_what_cannot_be_read_is_named_and_the_rest_is_there(tmp_path):
    write(tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text('{"last": {"ep')
    found = runs.load(tmp_path / "run")
    (said,) = found.missing
    assert said.startswith("summary.json cannot be read (Unterminated string")
    assert found.epochs == 3
    (tmp_path / "run" / "metrics.csv").write_bytes(b"\xff\xfe\x00 no table")
    assert any(
        "metrics.csv cannot be read (" in what for what in runs.load(tmp_path / "run").missing
    )


@pytest.mark.parametrize("half", ["4,4.5,7.", "4,4", "4,", "4,4.5,70.25", "4,4\n"])
def test_a_row_that_was_cut_off_is_left_out(half, tmp_path):
    write(tmp_path / "run", max_epochs=4)
    with open(tmp_path / "run" / "metrics.csv", "a") as file:
        file.write(half)
    found = runs.load(tmp_path / "run")
    assert found.metrics["epoch"].tolist() == [1, 2, 3]
    assert found.last("erank/online") == 4.5
    assert "the last row of metrics.csv is cut off and left out" in found.missing
    assert "3 of 4 epochs" in found.missing


def test_a_table_that_is_not_there_is_told_from_one_without_rows(tmp_path):
    table = tmp_path / "run" / "metrics.csv"
    write(tmp_path / "run")
    table.unlink()
    assert runs.load(tmp_path / "run").missing == (
        "no metrics.csv, although summary.json is there (was it removed, or not copied?)",
    )
    for text in ("", "epoch,erank/online\n", "epoch,erank/online\n1,2"):
        table.write_text(text)
        missing = runs.load(tmp_path / "run").missing
        assert missing[-1] == "metrics.csv has no whole row: no epoch has ended", text
    table.write_text("erank/online\n2.5\n")
    assert runs.load(tmp_path / "run").missing == ("metrics.csv has no column epoch",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"last": {"ep', "summary.json cannot be read (Unterminated string"),
        ("{}", "summary.json cannot be read (it holds no config"),
        ("[1]", "summary.json cannot be read (it is not a JSON object"),
        ('{"config": 3}', "summary.json cannot be read (its config holds no options"),
    ],
)
def test_a_summary_alone_that_tells_nothing_is_named(text, said, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text(text)
    with pytest.raises(ValueError, match="run") as refused:
        runs.load(tmp_path / "run")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": None}, "seed must be a whole number from 0 to 9007199254740992, got None"),
        ({"seed": "a"}, "seed must be a whole number from 0 to 9007199254740992, got 'a'"),
        ({"max_epochs": None}, "max_epochs must be a whole number"),
    ],
)
def test_numbers_that_are_none_are_named_with_their_file(changed, said, tmp_path):
    write(tmp_path / "good")
    write(tmp_path / "other", **changed)
    found, broken = runs.survey([tmp_path])
    assert [run.folder.name for run in found] == ["good"]
    (sentence,) = broken.values()
    assert f"other/.hydra/config.yaml: {said}" in sentence.replace("\\", "/")


@pytest.mark.parametrize(
    "config", ["a: [", "db: {name: mysql}", "- 1", "", "method: {name: byol}", "method: [1]"]
)
def test_a_config_of_something_else_is_no_run_and_the_others_are_read(config, tmp_path):
    write(tmp_path / "good")
    (tmp_path / "other" / ".hydra").mkdir(parents=True)
    (tmp_path / "other" / ".hydra" / "config.yaml").write_text(config)
    with pytest.raises(ValueError, match="other"):
        runs.find([tmp_path])
    found, broken = runs.survey([tmp_path])
    assert [run.folder.name for run in found] == ["good"]
    assert list(broken) == [tmp_path / "other"]
    assert "other" in broken[tmp_path / "other"]


def test_a_folder_of_a_stranger_reads_no_environment_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "told")
    asks = "${oc.env:SECRET}", "${${method.name}:SECRET}", "\\${oc.env:SECRET}"
    for number, text in enumerate(asks):
        write(tmp_path / str(number), dataset={"name": text}, method={"name": "oc.env"})
        run = runs.load(tmp_path / str(number))
        assert "SECRET" in run.dataset
        assert "told" not in str(OmegaConf.to_container(run.config, resolve=True))


def test_data_are_looked_for_where_this_machine_keeps_them(tmp_path, monkeypatch):
    """The shipped configs of real data name RDM_DATA, so every such run's config has it."""
    monkeypatch.setenv("RDM_DATA", "here")
    root = "${oc.env:RDM_DATA,data}/x"
    source = {"_target_": "rdm_solo.data.imagenet", "root": "${dataset.root}"}
    dataset = {"name": "imagenet", "root": root, "download": True, "source": source}
    write(tmp_path / "run", dataset=dataset)
    run = runs.load(tmp_path / "run")
    assert "here" not in str(OmegaConf.to_container(run.config, resolve=True)), "nobody asked yet"
    built = saved_config.to_build(run.config, run.folder, ["dataset"], [])
    assert (built.dataset.root, built.dataset.download) == ("here/x", False)
