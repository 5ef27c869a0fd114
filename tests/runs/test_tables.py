"""metrics.csv and the files of spectra: what is written is read back, damage is noticed."""

import math

import numpy as np
import pytest

from rdm_solo.runs import files, metrics_file, spectra_files

ROWS = [
    {"epoch": 0, "erank/online": 9.5},
    {"epoch": 1, "train/loss": -0.5, "erank/online": 3.25},
    {"epoch": 2, "train/loss": -0.75},
    {"epoch": 3, "train/loss": -0.875, "erank/online": 1 / 3},
]


def test_a_table_is_read_back_as_it_was_written(tmp_path):
    metrics_file.write(tmp_path, ROWS)
    table = metrics_file.read(tmp_path)
    assert table.untrained == {"erank/online": 9.5}
    assert table.diverged is None
    assert table.columns["epoch"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(table.columns["erank/online"], [3.25, math.nan, 1 / 3])
    assert table.measured["erank/online"].tolist() == [True, False, True]
    assert not table.measured["val/acc1"].any()
    assert table.columns["train/loss"].tolist() == [-0.5, -0.75, -0.875]


@pytest.mark.parametrize("done", [1, 3])
def test_a_resumed_run_keeps_the_rows_up_to_its_epoch(done, tmp_path):
    metrics_file.write(tmp_path, ROWS)
    summary = tmp_path / files.SUMMARY
    summary.touch()
    assert metrics_file.truncate(tmp_path, done) == ROWS[: done + 1]
    table = metrics_file.read(tmp_path)
    assert len(table.columns["epoch"]) == done
    assert table.untrained == {"erank/online": 9.5}
    assert not summary.exists()
    assert metrics_file.truncate(tmp_path, 0) == []  # a start from the beginning
    assert not (tmp_path / files.METRICS).exists()


@pytest.mark.parametrize("line", ["1,two", "1.5,2", "-1,2", "0,2", ",2", "nan,2"])
def test_a_damaged_line_is_an_error(line, tmp_path):
    (tmp_path / files.METRICS).write_text(f"epoch,train/loss\n1,2\n{line}\n")
    with pytest.raises(ValueError, match=r"epoch|float"):
        metrics_file.read(tmp_path)


def test_a_line_that_was_cut_off_has_no_further_values(tmp_path):
    (tmp_path / files.METRICS).write_text("epoch,train/loss\n1,2\n2\n")
    assert metrics_file.read(tmp_path).measured["train/loss"].tolist() == [True, False]


def test_spectra_before_a_change_of_the_diagnostics_are_left_out(tmp_path):
    for epoch, k in ((3, 4), (1, 2), (2, 4)):
        spectra_files.write(tmp_path, epoch, {"lam_online": np.full(k, epoch)})
    arrays, broken = spectra_files.read(tmp_path)
    assert broken == []
    assert arrays["epoch"].tolist() == [2, 3]
    assert arrays["lam_online"].tolist() == [[2] * 4, [3] * 4]


def test_spectra_after_the_resumed_epoch_are_removed(tmp_path):
    for epoch in (1, 2000, 10_000, 10_001):
        spectra_files.write(tmp_path, epoch, {"lam_online": np.ones(2)})
    spectra_files.truncate(tmp_path, 10_000)
    by_epoch, _ = spectra_files.read_epochs(tmp_path)
    assert sorted(by_epoch) == [1, 2000, 10_000]


class Bomb:
    """An object that fails the test if it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("the pickle was executed",)


@pytest.mark.parametrize("value", [Bomb(), "text"])
def test_only_numbers_are_read_from_spectra(value, tmp_path):
    spectra_files.write(tmp_path, 1, {"lam_online": np.ones(2)})
    spectra_files.write(tmp_path, 2, {"lam_online": np.array([value])})
    by_epoch, broken = spectra_files.read_epochs(tmp_path)
    assert list(by_epoch) == [1]
    assert broken == ["spectra/epoch_0002.npz"]
