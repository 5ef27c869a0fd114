"""Runs read back from their folders, whole and broken ones."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from support import written_runs

from rdm_solo import runs
from rdm_solo.cli.config_files import config_folder
from rdm_solo.ground.errors import UserError
from rdm_solo.runs import saved_config, trust
from rdm_solo.runs.settings import differences
from rdm_solo.train import compose


def write(folder: Path, epochs: int = 3, **changed) -> Path:
    """Write the folder of a run that finished these epochs."""
    config = {**written_runs.config(-0.5, 3), **changed}
    columns = {"epoch": list(range(1, epochs + 1))}
    spectra = {"lam_target": np.ones((epochs, 4))}
    written_runs.write_folder(folder, config, columns, spectra)
    (folder / "summary.json").write_text("{}")
    return folder


def write_table(folder: Path, *lines: str) -> None:
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")


LINEAR_P = {"schedule": "linear", "start": -0.1, "end": -0.5}
STEPS = {"schedule": "steps", 1: -0.5, 11: 0}


@pytest.mark.parametrize(
    ("filter", "p", "label"),
    [
        ({"name": "learnable"}, None, ""),
        ({"name": "online_log1p"}, None, ", online filter log(1 + σ)"),
        ({"name": "x", "branch": "online", "function": "own.soft"}, 2, ", x, p = 2"),
        ({"name": "online_pow", "branch": "target", "function": "pow"}, -1, ", target filter σ^-1"),
        ({"name": "target_pow"}, LINEAR_P, ", target filter σ^(-0.1…-0.5, linear)"),
        ({"name": "target_pow"}, STEPS, ", target filter σ^(-0.5, 0 from epoch 11)"),
    ],
)
def test_labels(filter, p, label, tmp_path):
    folder = write(tmp_path / "run", filter=filter, p=p)
    assert runs.load(folder).label == f"SimSiam{label}"


def test_a_run_that_broke_off_is_loaded_as_far_as_it_went(tmp_path):
    folder = write(tmp_path / "run", epochs=2)
    (folder / "summary.json").unlink()
    run = runs.load(folder)
    assert run.epochs == 2
    assert run.missing[0] == "2 of 3 epochs"
    assert "killed" in run.missing[1]
    (folder / "spectra" / "epoch_0001.npz").write_bytes(b"PK\x03\x04 half")
    run = runs.load(folder)
    assert run.spectra["epoch"].tolist() == [2]
    assert "spectra/epoch_0001.npz" in run.missing[-1]
    (folder / "summary.json").write_text('{"last": {"ep')
    (folder / "linear.json").write_text('{"protocol": [{"seed": 0, "to')
    (folder / "metrics.csv").write_bytes(b"\xff\xfe\x00 no table")
    sentences = runs.load(folder).missing
    for name, sentence in zip(("summary.json", "linear.json", "metrics.csv"), sentences):
        assert sentence.startswith(f"{name} cannot be read (")


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_rows_from_a_loss_of_nan_on_are_left_out(number, tmp_path):
    folder = write(tmp_path / "run", max_epochs=4, epochs=4)
    rows = ["1,-0.5,3", f"2,{number},2", "3,nan,2", "4,,2"]
    write_table(folder, "epoch,train/loss,erank/online", *rows)
    run = runs.load(folder)
    assert run.diverged == 2
    assert run.epochs == 1
    assert run.spectra["epoch"].tolist() == [1]
    assert run.last("train/loss") == -0.5
    assert len(run.missing) == 2


def test_a_loss_that_was_not_measured_is_no_divergence(tmp_path):
    folder = write(tmp_path / "run", epochs=2)
    write_table(folder, "epoch,train/loss,val/acc1", "1,,3", "2,-1,nan")
    run = runs.load(folder)
    assert run.diverged is None
    assert run.epochs == 2
    # A NaN that was written is no value, and the value before it does not stand for it.
    epoch, value = run.latest("val/acc1")
    assert epoch == 2
    assert math.isnan(value)


@pytest.mark.parametrize(
    ("epochs", "epoch", "diverged"),
    [
        (0, 1, 1),
        (2, 3, 3),
        (2, 2, None),
    ],
)
def test_the_summary_says_when_a_run_diverged_until_it_is_resumed(
    epochs, epoch, diverged, tmp_path
):
    folder = write(tmp_path / "run", epochs=epochs)
    (folder / "summary.json").write_text(json.dumps({"diverged": {"epoch": epoch}}))
    run = runs.load(folder)
    assert run.diverged == diverged
    assert run.epochs == epochs


def test_a_sweep_is_its_runs_in_their_order(tmp_path):
    for job in range(11):
        write(tmp_path / "sweep" / f"{job}_simsiam_p={-job}", p=-job)
    single = write(tmp_path / "single", p=1)
    members, _ = runs.scan([tmp_path / "sweep", single, single])
    exponents = [run.p for run in members]
    assert exponents == [*range(0, -11, -1), 1]


@pytest.mark.parametrize("config", ["a: [", "db: {name: mysql}", "- 1", "", "method: [1]"])
def test_a_config_of_something_else_is_no_run_and_the_others_are_read(config, tmp_path):
    good = write(tmp_path / "good")
    other = tmp_path / "other"
    (other / ".hydra").mkdir(parents=True)
    (other / ".hydra" / "config.yaml").write_text(config)
    readable, broken = runs.scan([tmp_path])
    assert [run.folder for run in readable] == [good]
    assert list(broken) == [other]


def test_a_run_without_diagnostics_has_no_spectrum(tmp_path):
    folder = write(tmp_path / "off")
    shutil.rmtree(folder / "spectra")
    with pytest.raises(UserError, match="diagnostics"):
        runs.load(folder).spectrum()


@pytest.mark.parametrize(
    "text", ["${oc.env:SECRET}", "${${method.name}:SECRET}", "\\${oc.env:SECRET}"]
)
def test_a_folder_of_a_stranger_calls_no_resolver(text, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "told")
    write(tmp_path / "run", dataset={"name": text}, method={"name": "oc.env"})
    with pytest.raises(UserError, match="it calls a resolver"):
        runs.load(tmp_path / "run")


def test_a_saved_config_holds_values_where_resolvers_were(tmp_path, monkeypatch):
    monkeypatch.setenv("RDM_DATA", "here")
    cfg = compose(["dataset=cifar10", "max_epochs=100"])
    saved_config.write(tmp_path, cfg, ["dataset=cifar10", "max_epochs=100", "overwrite=true"])
    saved = saved_config.unresolved_config(tmp_path)
    assert saved.dataset.root == "here"
    assert saved.scheduler.warmup_epochs == 10
    saved.dataset.root = "there"
    assert saved.dataset.source.root == "there"  # a reference
    assert differences(saved_config.run_config(tmp_path), cfg) == []
    assert saved_config.overrides(tmp_path) == ["dataset=cifar10", "max_epochs=100"]


def test_what_a_folder_cannot_ask_for_must_be_passed(tmp_path):
    own = compose(["filter=target_pow"])
    saved_config.write(tmp_path, own, [])
    parts = ["filter", "backbone", "dataset", "callbacks"]
    saved_config.trusted_config(own, tmp_path, parts)
    for key, value in (
        ("dataset.source._target_", "os.system"),
        ("dataset.views.pipelines.0._partial_", True),
        ("callbacks.knn._target_", "rdm_solo.runs.files.write_atomically"),
        ("filter.function", "os.system"),
        ("backbone.kwargs.pretrained", True),
        ("backbone.name", "timm/hf-hub:somebody/model"),
    ):
        cfg = own.copy()
        OmegaConf.update(cfg, key, value, force_add=True)
        with pytest.raises(UserError, match=rf"pass {key}=.* on the command line"):
            saved_config.trusted_config(cfg, tmp_path, parts)
        saved_config.trusted_config(cfg, tmp_path, parts, passed=[key])


def test_values_that_only_a_run_can_resolve_are_not_resolved():
    config = OmegaConf.create({"callbacks": {"mine": {"folder": "${hydra:runtime.output_dir}"}}})
    trust.check(config, ["callbacks"])


def test_nothing_is_refused_that_this_package_ships():
    for path in (config_folder() / "dataset").glob("*.yaml"):
        trust.check(compose([f"dataset={path.stem}"]), ["dataset", "callbacks", "backbone"])
