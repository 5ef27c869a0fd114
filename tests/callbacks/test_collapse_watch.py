"""Runs that are watched for collapse."""

from support.small_runs import SMALL, all_rows, checkpoint, read_summary, rows, run, run_until

from rdm_solo.collapse.rules import DESTROYED, WRONG_WAY, MeasuredEpoch

WRONG = [*SMALL, "filter=target_pow", "p=0.5", "max_epochs=4"]


def test_a_stopped_run_writes_its_files_and_says_why(tmp_path):
    options = ["optimizer.lr=1e4", "watch.stop=true"]
    options += ["watch.accuracy=0.7", "scheduler.warmup_epochs=0"]
    summary = run(tmp_path, *SMALL, *options, "max_epochs=4")
    assert len(rows(tmp_path)) == 1
    assert summary == read_summary(tmp_path)
    assert summary["stopped"] == "watch.stop: destroyed encoder in epoch 1"
    (warning,) = summary["warnings"]
    assert warning["kind"] == DESTROYED
    assert warning["epoch"] == 1
    assert "optimizer.lr=10000" in warning["text"]
    assert checkpoint(tmp_path)["epoch"] == 0


def test_a_resumed_run_counts_the_epochs_before_and_warns_once(tmp_path, caplog):
    """Three epochs in a row, of which the run was cut after two. A note stops no run."""
    options = [*WRONG, "watch.gap_epochs=3", "watch.stop=true"]
    run_until(3, tmp_path, *options)
    run_until(4, tmp_path, *options)
    summary = run(tmp_path, *options)
    assert summary["stopped"] is None
    epochs = {}
    for warning in summary["warnings"]:
        epochs[warning["kind"]] = warning["epoch"]
    assert epochs[WRONG_WAY] == 3
    assert caplog.text.count("note: negative gap") == 1


def test_the_rules_read_what_the_table_says(tmp_path):
    """Also without spectra in every epoch, and of a sample of rows."""
    rarely = ["diagnostics.every_n_epochs=2", "diagnostics.max_dim=8", "diagnostics.sample=4"]
    run(tmp_path, *WRONG, *rarely, "max_epochs=3")
    callbacks = checkpoint(tmp_path)["callbacks"]
    measured = [MeasuredEpoch(**values) for values in callbacks["CollapseWatch"]["measured"]]
    assert [epoch.dimensions for epoch in measured] == [16, 16, 0, 16]
    for row, epoch in zip(all_rows(tmp_path), measured, strict=True):
        number = int(row["epoch"])
        expected = MeasuredEpoch.read(row, number, epoch.dimensions, classes=10)
        assert repr(epoch) == repr(expected)  # NaN equals NaN
