"""The same command in the same folder resumes; what else may happen to a run's folder."""

import logging
import shutil
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from omegaconf import OmegaConf
from support.small_runs import SMALL, CutInEpoch, rows, run

from rdm_solo.cli import arguments
from rdm_solo.ground.errors import UserError
from rdm_solo.runs.ownership import FolderTaken
from rdm_solo.train import claims

OPTIONS = [*SMALL, "filter=target_pow", "p=-0.5", "trainer.enable_progress_bar=false"]
RUN = [*OPTIONS, "max_epochs=3", "scheduler.warmup_epochs=1", "hydra.run.dir=run"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A finished run of three epochs."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder, *OPTIONS, "max_epochs=3")
    return folder


@pytest.fixture
def cut(tmp_path) -> Path:
    """A run of three epochs that was killed in its second."""
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError, match="killed"):
        run(folder, *OPTIONS, "max_epochs=3", callbacks=[CutInEpoch(2)])
    assert len(rows(folder)) == 1
    return folder


def test_the_same_command_resumes_and_then_has_nothing_to_do(cut, whole, typed):
    out = typed("rdm_solo.train", *RUN, cwd=cut.parent)
    assert (out.returncode, "resuming after epoch 1" in out.stdout) == (0, True), out
    assert (cut / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert not (cut / "failed.txt").exists()
    before = {path: path.stat().st_mtime_ns for path in cut.rglob("*") if path.name != ".lock"}
    out = typed("rdm_solo.train", *RUN, cwd=cut.parent)
    assert (out.returncode, "already finished" in out.stdout) == (0, True), out
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_resume_takes_the_options_from_the_folder(cut, whole, typed):
    out = typed("rdm_solo.train", "resume=run", "diagnostics.every_n_epochs=3", cwd=cut.parent)
    assert out.returncode == 0, out
    assert [row.get("train/loss") for row in rows(cut)] == [
        row["train/loss"] for row in rows(whole)
    ]
    assert "erank/online" not in rows(cut)[1]


def test_more_epochs_keep_the_warm_up(whole, tmp_path, typed):
    shutil.copytree(whole, tmp_path / "run")
    out = typed("rdm_solo.train", "resume=run", "max_epochs=4", cwd=tmp_path)
    assert out.returncode == 0, out
    assert [row["epoch"] for row in rows(tmp_path / "run")] == [1, 2, 3, 4]
    saved = OmegaConf.load(tmp_path / "run" / ".hydra" / "config.yaml")
    assert (saved.max_epochs, saved.scheduler.warmup_epochs) == (4, 1)


@pytest.mark.parametrize("option", ["p=-1", "seed=1", "max_epochs=4", "method=byol"])
def test_another_config_is_refused_and_changes_nothing(option, cut):
    before = {path: path.stat().st_mtime_ns for path in cut.rglob("*") if path.name != ".lock"}
    name = option.partition("=")[0].replace("method", "method.name")
    with pytest.raises(FolderTaken, match=f"differs in .*{name}"):
        run(cut, *OPTIONS, "max_epochs=3", option)
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_another_number_of_processes_needs_the_same_filtered_batch(cut):
    with pytest.raises(UserError, match="filters batches of 16 rows, but this command sets 8"):
        run(cut, *OPTIONS, "max_epochs=3", "batch_size=8")


def test_overwrite_keeps_the_earlier_run_under_another_name(cut, typed):
    table = (cut / "metrics.csv").read_bytes()
    out = typed("rdm_solo.train", *RUN, "p=-1", "overwrite=true", cwd=cut.parent)
    assert out.returncode == 0, out
    (old,) = cut.parent.glob("run.old-*")
    assert (old / "metrics.csv").read_bytes() == table
    assert OmegaConf.load(cut / ".hydra" / "config.yaml").p == -1


def test_a_requeued_command_with_overwrite_resumes(tmp_path):
    options = [*OPTIONS, "max_epochs=3", "overwrite=true"]
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path / "run", *options, callbacks=[CutInEpoch(3)])
    run(tmp_path / "run", *options)
    assert not list(tmp_path.glob("run.old-*"))
    assert len(rows(tmp_path / "run")) == 3


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over(cut, whole):
    """A row can be there already."""
    shutil.rmtree(cut / "checkpoints")
    run(cut, *OPTIONS, "max_epochs=3")
    assert (cut / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()


def test_starts_that_add_no_epoch_end_with_an_error(tmp_path):
    def start(epoch: int) -> None:
        run(tmp_path / "run", *OPTIONS, "max_epochs=3", callbacks=[CutInEpoch(epoch)])

    for epoch in (2, 2, 2):  # the first adds an epoch
        with pytest.raises(RuntimeError, match="killed"):
            start(epoch)
    with pytest.raises(UserError, match=r"the last 2 starts .* finished no epoch"):
        start(2)
    start(9)  # another try is allowed
    assert len(rows(tmp_path / "run")) == 3


def test_a_folder_that_another_process_writes_to_is_refused(cut):
    lock = FileLock(cut / ".lock")
    with lock, pytest.raises(FolderTaken, match=r"another run is writing to .*\(process \d+, host"):
        run(cut, *OPTIONS, "max_epochs=3")


@pytest.mark.parametrize("name", ["checkpoints", "figures", "train.log", "spectra"])
def test_nothing_is_written_through_a_link_that_leads_out(name, cut, tmp_path):
    """A folder may come from a stranger."""
    outside = tmp_path / "outside"
    target = cut / name
    if target.is_dir():
        shutil.rmtree(target)
        outside.mkdir()
    else:
        target.unlink(missing_ok=True)
        outside.write_text("mine")
    target.symlink_to(outside)
    with pytest.raises(UserError, match="a link that leads out"):
        run(cut, *OPTIONS, "max_epochs=3")
    assert not list(outside.iterdir()) if outside.is_dir() else outside.read_text() == "mine"


@pytest.mark.parametrize(
    "option",
    [
        "callbacks.knn._target_=os.system",
        "filter.function=os.system",
        "dataset.source._target_=os.system",
        "p=${oc.env:HOME}",
        "--config-dir=elsewhere",
        "backbone.name=timm/hf-hub:somebody/model",
    ],
)
def test_a_folder_cannot_name_what_is_run(option, cut, typed):
    path = cut / ".hydra" / "overrides.yaml"
    OmegaConf.save([*OmegaConf.load(path), option], path)
    out = typed("rdm_solo.train", "resume=run", cwd=cut.parent)
    assert (out.returncode, out.stderr[:7]) == (2, "error: ")
    assert len(rows(cut)) == 1


def test_kept_and_best_checkpoints(tmp_path):
    keep = ["checkpoint.keep=2", "checkpoint.best=true", "max_epochs=4"]
    with pytest.raises(RuntimeError, match="killed"):
        run(tmp_path, *OPTIONS, *keep, callbacks=[CutInEpoch(3)])
    summary = run(tmp_path, *OPTIONS, *keep)
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    kept = {"epoch_0003.ckpt", "epoch_0004.ckpt"}
    assert names == {"last.ckpt", "previous.ckpt", "best.ckpt", *kept}
    accuracies = [row["val/knn_acc1"] for row in rows(tmp_path)]
    best = accuracies.index(max(accuracies)) + 1
    assert summary["best"] == {"epoch": best, "accuracy": pytest.approx(max(accuracies))}
    saved = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    assert saved["epoch"] + 1 == best


def test_default_names_never_collide():
    first, second = (
        arguments.compose("config", ["filter=target_pow"], with_hydra=True).hydra.run.dir
        for _ in range(2)
    )
    assert first != second
    assert first.endswith("_simsiam_target_pow")


def test_a_full_disk_ends_the_log_with_one_warning(capfd, caplog):
    """/dev/full can be opened, and has no space left for any line."""
    with claims._log_file(Path("/dev/full")):
        for number in range(3):
            logging.getLogger("rdm_solo").warning("line %d", number)
    messages = [record.getMessage() for record in caplog.records]
    assert sorted(m for m in messages if "/dev/full" not in m) == ["line 0", "line 1", "line 2"]
    (warning,) = (message for message in messages if "/dev/full" in message)
    assert "No space left on device" in warning
    assert "Traceback" not in capfd.readouterr().err


def test_a_line_that_cannot_be_formatted_does_not_end_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)  # which would print a traceback
    path = tmp_path / "train.log"
    with claims._log_file(path):
        for value in ("many", 2):
            handler = logging.getLogger().handlers[-1]
            handler.handle(logging.LogRecord("x", 30, "", 0, "%d items", (value,), None))
    assert path.read_text() == "2 items\n"


def test_slurm_tasks_that_lightning_refuses_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    with pytest.raises(UserError, match="--ntasks-per-node=4"):
        run(tmp_path / "run", *SMALL)
