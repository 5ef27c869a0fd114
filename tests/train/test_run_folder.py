"""The same command in the same folder resumes. A folder is safe from other commands."""

import itertools
import shutil
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from omegaconf import OmegaConf
from support.small_runs import FINISHED, SMALL, rows, run, run_until

from rdm_solo.cli import arguments
from rdm_solo.ground.errors import UserError
from rdm_solo.runs.ownership import FolderTaken
from rdm_solo.train import reporting

# The run of the fixture ``finished``, without its figure.
OPTIONS = [*FINISHED, "~callbacks.ranks"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """Start a run of three epochs that is killed in its second."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    run_until(2, folder, *OPTIONS)
    assert len(rows(folder)) == 1
    return folder


@pytest.fixture
def cut(killed, tmp_path) -> Path:
    """Return a copy of the killed run."""
    return shutil.copytree(killed, tmp_path / "run")


def table(folder: Path) -> bytes:
    return (folder / "metrics.csv").read_bytes()


def times(folder: Path) -> dict[Path, int]:
    """Return when each file of a run was last written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("[!.]*")}


def test_the_same_command_resumes_and_then_has_nothing_to_do(cut, finished, train):
    options = [*OPTIONS, "hydra.run.dir=run"]
    out = train(*options)
    assert out.returncode == 0, out.stderr
    assert "resuming after epoch 1" in out.stdout
    assert table(cut) == table(finished)
    assert not (cut / "failed.txt").exists()

    before = times(cut)
    out = train(*options)
    assert out.returncode == 0, out.stderr
    assert "already finished its 3 epochs" in out.stdout
    assert "max_epochs=N" not in out.stdout  # which this command would refuse
    assert times(cut) == before

    out = train("resume=run")
    assert out.returncode == 0, out.stderr
    assert "to train longer, pass max_epochs=N" in out.stdout
    assert times(cut) == before


def test_resume_takes_the_options_from_the_folder_and_more_epochs_keep_the_warm_up(cut, train):
    """A folder may have an apostrophe in its name."""
    folder = cut.rename(cut.with_name("it's"))
    out = train("resume=it's", "max_epochs=4", "diagnostics.every_n_epochs=3")
    assert out.returncode == 0, out.stderr
    measured = ["erank/online" in row for row in rows(folder)]
    assert measured == [True, False, False, True]
    saved = OmegaConf.load(folder / ".hydra" / "config.yaml")
    assert saved.max_epochs == 4
    assert saved.scheduler.warmup_epochs == 1


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("p=-1", "differs in .*p"),
        ("method=byol", "differs in .*method"),
        # Another number of processes needs the same filtered batch.
        ("batch_size=8", r"16 rows.* 8:"),
    ],
)
def test_another_config_is_refused_and_changes_nothing(option, message, cut):
    before = times(cut)
    with pytest.raises(UserError, match=message):
        run(cut, *OPTIONS, option)
    assert times(cut) == before


def test_overwrite_keeps_the_earlier_run_and_the_same_command_resumes(cut, killed, monkeypatch):
    # The clock advances by 100 seconds at each checkpoint and at the end of a start.
    monkeypatch.setattr(reporting, "perf_counter", itertools.count(step=100).__next__)
    options = [*OPTIONS, "p=-1", "overwrite=true"]
    run_until(3, cut, *options)
    summary = run(cut, *options)
    assert summary["seconds"] == 200 + 200
    assert len(rows(cut)) == 3
    (old,) = cut.parent.glob("run.old-*")
    assert table(old) == table(killed)
    assert OmegaConf.load(cut / ".hydra" / "config.yaml").p == -1


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_over(cut, finished):
    """The table of such a run may have a row already."""
    shutil.rmtree(cut / "checkpoints")
    run(cut, *OPTIONS)
    assert table(cut) == table(finished)


def test_starts_that_add_no_epoch_end_with_an_error(cut):
    run_until(2, cut, *OPTIONS)
    run_until(2, cut, *OPTIONS)
    with pytest.raises(UserError, match="last 2 starts"):
        run(cut, *OPTIONS)
    run(cut, *OPTIONS)  # another try is allowed
    assert len(rows(cut)) == 3


def test_a_folder_that_another_process_writes_to_is_refused(cut):
    lock = FileLock(cut / ".lock")
    with lock, pytest.raises(FolderTaken, match=r"process \d+"):
        run(cut, *OPTIONS)


def test_nothing_is_written_through_a_link_that_leads_out(cut, tmp_path):
    outside = tmp_path / "outside"
    log = cut / "train.log"
    log.unlink(missing_ok=True)
    log.symlink_to(outside)
    with pytest.raises(UserError, match="a link"):
        run(cut, *OPTIONS)
    assert not outside.exists()


@pytest.mark.parametrize(
    "option", ["callbacks.knn._target_=os.system", "p=${oc.env:HOME}", "--config-dir=elsewhere"]
)
def test_a_folder_cannot_name_what_is_run(option, cut, train):
    path = cut / ".hydra" / "overrides.yaml"
    options = OmegaConf.load(path)
    OmegaConf.save([*options, option], path)
    out = train("resume=run")
    assert out.returncode == 2
    assert out.stderr.startswith("error: ")
    assert len(rows(cut)) == 1


def test_the_newest_and_the_best_checkpoints_are_kept(tmp_path):
    options = [*OPTIONS, "checkpoint.keep=2", "checkpoint.best=true", "max_epochs=4"]
    run_until(3, tmp_path, *options)
    summary = run(tmp_path, *options)
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {
        "last.ckpt",
        "previous.ckpt",
        "best.ckpt",
        "epoch_0003.ckpt",
        "epoch_0004.ckpt",
    }
    best = max(rows(tmp_path), key=lambda row: row["val/knn_acc1"])
    assert summary["best"]["epoch"] == best["epoch"]
    assert summary["best"]["accuracy"] == pytest.approx(best["val/knn_acc1"])
    saved = torch.load(tmp_path / "checkpoints" / "best.ckpt", weights_only=True)
    assert saved["epoch"] + 1 == best["epoch"]


def test_default_names_never_collide():
    first = arguments.compose("config", ["filter=target_pow"], with_hydra=True)
    second = arguments.compose("config", ["filter=target_pow"], with_hydra=True)
    assert first.hydra.run.dir != second.hydra.run.dir
    assert first.hydra.run.dir.endswith("_simsiam_target_pow")


def test_slurm_tasks_that_lightning_refuses_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    with pytest.raises(UserError, match="--ntasks-per-node=4"):
        run(tmp_path / "run", *SMALL)
