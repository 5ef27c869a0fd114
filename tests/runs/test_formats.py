"""Folders of format 1 (epochs counted from 0, one spectra.npz) beside those of format 2."""

from __future__ import annotations

import json

import numpy as np
import pytest
from omegaconf import OmegaConf

from rdm_solo import runs
from rdm_solo.runs import metrics_file, spectra_files

CONFIG = {
    "method": {"name": "simsiam"},
    "filter": {"name": "none"},
    "dataset": {"name": "digits"},
    **{"p": None, "seed": 0, "max_epochs": 3},
}
NAN = float("nan")


@pytest.fixture
def old(tmp_path):
    """A run of three epochs as format 1 has it."""
    folder = tmp_path / "old"
    (folder / ".hydra").mkdir(parents=True)
    OmegaConf.save(OmegaConf.create(CONFIG), folder / ".hydra" / "config.yaml")
    (folder / "metrics.csv").write_bytes(
        b"epoch,train/loss,val/acc1\r\n0,-0.25,\r\n1,-0.5,\r\n2,-0.75,90.0\r\n"
    )
    lam = np.arange(12.0).reshape(3, 4)
    with open(folder / "spectra.npz", "wb") as file:
        np.savez(file, epoch=np.arange(3), lam_online=lam, rows=np.full(3, 64))
    warning = {"kind": "negative gap", "epoch": 1, "text": "negative gap in epoch 2"}
    summary = {"last": {"epoch": 2.0, "train/loss": -0.75}, "warnings": [warning], "seed": 0}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_an_old_folder_is_read_with_epochs_from_1_and_left_as_it_is(old):
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    run = runs.load(old)
    assert run.missing == ()
    assert run.metrics["epoch"].tolist() == [1, 2, 3]
    assert run.metrics["train/loss"].tolist() == [-0.25, -0.5, -0.75]
    assert run.spectra["epoch"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(run.spectra["lam_online"], np.arange(12.0).reshape(3, 4))
    assert run.summary["last"]["epoch"] == 3
    assert run.summary["warnings"][0]["epoch"] == 2
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before


def test_a_new_folder_is_not_shifted_whether_its_run_has_ended_or_not(tmp_path):
    metrics_file.begin(tmp_path, 0)
    metrics_file.write(tmp_path, [{"epoch": 1, "train/loss": -0.5}])
    spectra_files.write(tmp_path, 1, {"lam_online": np.ones(2)})
    assert runs.read_metrics(tmp_path)["epoch"].tolist() == [1]
    assert spectra_files.read(tmp_path)[0]["epoch"].tolist() == [1]
    (tmp_path / "summary.json").write_text((tmp_path / "format.json").read_text())
    (tmp_path / "format.json").unlink()  # not copied
    assert runs.read_metrics(tmp_path)["epoch"].tolist() == [1]


@pytest.mark.parametrize("name", ["format.json", "summary.json"])
def test_a_folder_of_a_later_version_is_refused(name, old):
    (old / name).write_text('{"format": 3}')
    with pytest.raises(ValueError, match="later version"):
        runs.load(old)


@pytest.mark.parametrize("elsewhere", [True, False])  # False: SLURM requeues a job in its folder
def test_an_old_run_goes_on(elsewhere, old, tmp_path):
    """Two of its epochs are over; the third is trained again by this version."""
    (old / "summary.json").unlink()
    folder, earlier = (tmp_path / "new", old) if elsewhere else (old, None)
    folder.mkdir(exist_ok=True)
    before = (old / "metrics.csv").read_bytes(), (old / "spectra.npz").read_bytes()
    rows = metrics_file.begin(folder, 2, earlier)
    spectra_files.begin(folder, 2, earlier)
    if elsewhere:
        assert ((old / "metrics.csv").read_bytes(), (old / "spectra.npz").read_bytes()) == before
        assert not (folder / "metrics.csv").exists(), "no epoch of its own has ended"
    else:
        assert runs.read_metrics(folder)["epoch"].tolist() == [1, 2]
        assert not (old / "spectra.npz").exists()
    assert spectra_files.read(folder)[0]["epoch"].tolist() == [1, 2]
    metrics_file.write(folder, [*rows, {"epoch": 3, "train/loss": -1.5}])
    spectra_files.write(folder, 3, {"lam_online": np.ones(4), "rows": np.array(32)})
    assert runs.read_metrics(folder)["epoch"].tolist() == [1, 2, 3]
    assert runs.read_metrics(folder)["train/loss"].tolist() == [-0.25, -0.5, -1.5]
    spectra, _ = spectra_files.read(folder)
    assert spectra["epoch"].tolist() == [1, 2, 3]
    want = [[0, 1, 2, 3], [4, 5, 6, 7], [1, 1, 1, 1]]
    np.testing.assert_array_equal(spectra["lam_online"], want)
    assert spectra["rows"].tolist() == [64, 64, 32]


def test_a_conversion_that_was_interrupted_loses_nothing(old, monkeypatch):
    real, written = spectra_files.write, []

    def write(folder, epoch, arrays):
        if len(written) == 1:
            raise OSError("power cut")
        written.append(epoch)
        real(folder, epoch, arrays)

    monkeypatch.setattr(spectra_files, "write", write)
    with pytest.raises(OSError, match="power cut"):
        spectra_files.begin(old, 3)
    monkeypatch.undo()
    spectra, broken = spectra_files.read(old)
    assert not broken
    np.testing.assert_array_equal(spectra["lam_online"], np.arange(12.0).reshape(3, 4))
    spectra_files.begin(old, 3)
    assert not (old / "spectra.npz").exists()
    assert spectra_files.read(old)[0]["epoch"].tolist() == [1, 2, 3]


def test_a_run_that_starts_anew_in_a_used_folder_begins_with_nothing(old):
    assert metrics_file.begin(old, 0) == []
    spectra_files.begin(old, 0)
    assert spectra_files.read(old) == ({}, [])
    assert not (old / "metrics.csv").exists()


def test_a_requeued_run_drops_the_epochs_behind_its_checkpoint(tmp_path):
    metrics_file.begin(tmp_path, 0)
    metrics_file.write(tmp_path, [{"epoch": epoch, "train/loss": 0.5} for epoch in (1, 2, 3)])
    for epoch in (1, 2, 3):
        spectra_files.write(tmp_path, epoch, {"lam_online": np.ones(2)})
    kept = (tmp_path / "spectra" / "epoch_0001.npz").stat()
    assert [row["epoch"] for row in metrics_file.begin(tmp_path, 2)] == [1, 2]
    spectra_files.begin(tmp_path, 2)
    assert runs.read_metrics(tmp_path)["epoch"].tolist() == [1, 2]
    assert spectra_files.read(tmp_path)[0]["epoch"].tolist() == [1, 2]
    assert (tmp_path / "spectra" / "epoch_0001.npz").stat().st_ino == kept.st_ino


def test_spectra_of_a_run_that_began_without_some_arrays_or_with_other_sizes(tmp_path):
    for epoch in (1, 2):
        spectra_files.write(tmp_path, epoch, {"lam_online": np.full(4, float(epoch))})
    arrays = {"lam_online": np.ones(2), "ideal_filter": np.ones(2), "sampled": np.array(True)}
    spectra_files.write(tmp_path, 3, arrays)
    spectra, _ = spectra_files.read(tmp_path)
    want = [[1, 1, 1, 1], [2, 2, 2, 2], [1, 1, NAN, NAN]]
    np.testing.assert_array_equal(spectra["lam_online"], want)
    np.testing.assert_array_equal(spectra["ideal_filter"], [[NAN, NAN], [NAN, NAN], [1, 1]])
    assert spectra["sampled"].tolist() == [False, False, True]


def test_a_broken_file_costs_its_own_epoch_alone_and_is_named(tmp_path):
    for epoch in (1, 2):
        spectra_files.write(tmp_path, epoch, {"lam_online": np.ones(2)})
    with open(tmp_path / "spectra" / "epoch_0003.npz", "wb") as file:
        np.savez(file, lam_online=np.ones(2))  # without its number
    (tmp_path / "spectra" / "epoch_0001.npz").write_bytes(b"PK half")
    spectra, broken = spectra_files.read(tmp_path)
    assert spectra["epoch"].tolist() == [2]
    assert broken == ["spectra/epoch_0001.npz", "spectra/epoch_0003.npz"]
