"""One run owns its folder: names that never collide, a lock, nothing written over or changed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from support.image_files import spoil, write_tree
from support.slurm import set_job
from support.small_runs import DRAWN, CutInEpoch, configure, rows, run

from rdm_solo import runs, train
from rdm_solo.runs import earlier_run, files, ownership
from rdm_solo.train import entry, run_folder

TINY = [*DRAWN, "max_epochs=1", "scheduler.warmup_epochs=0", "knn.every_n_epochs=0"]


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every name below the folder, with the time of its last change and its bytes."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder that holds data, a finished run called ``run``, and notes of the user's own."""
    folder = tmp_path_factory.mktemp("place")
    write_tree(folder / "data", train=2)
    (folder / "run" / "figures").mkdir(parents=True)
    (folder / "run" / "figures" / "notes.txt").write_text("mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sys.argv", ["train", *TINY, "hydra.run.dir=run"])
        entry.main()
    return folder


class TestRefused:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["hydra.run.dir=run", *TINY], "run holds a run: give another hydra.run.dir"),
            (
                ["hydra.run.dir=run", *TINY, "overwrite=true", "knn.k=99", "knn.every_n_epochs=1"],
                "knn.k=99 neighbours",
            ),
            (["hydra.run.dir=run", "resume=run", *TINY], "resume=run alone goes on"),
            (["resume=run", "overwrite=true"], "overwrite"),
            (["resume=run"], "has finished 1 epochs"),
            (["hydra.run.dir=new", "resume=none", *TINY, "max_epochs=2"], "resume=none holds no"),
            (["hydra.run.dir=run", "dataset=folder", "dataset.root=none"], "holds a run"),
            (["dataset=folder", "dataset.root=none"], "dataset.root"),
            (["hydra.run.dir=data/train/new", *TINY, "batch_size=65"], "batch_size=65"),
            (["logger=tensorboard", "hydra.run.dir=new", *TINY, "p=1"], "p=1 would be ignored"),
        ],
        ids=lambda value: value if isinstance(value, str) else value[0],
    )
    def test_a_refused_command_changes_nothing(self, arguments, says, place, typed):
        before = tree(place)
        out = typed("rdm_solo.train", *arguments, cwd=place)
        assert out.returncode == 2, out.stdout
        assert says in out.stderr
        assert tree(place) == before

    def test_a_sweep_leaves_the_runs_that_are_there(self, place, typed, tmp_path):
        """The others of the sweep are trained; its status is not 0."""
        sweep = ["-m", "seed=0,1", "hydra.sweep.dir=sweep", "hydra.sweep.subdir=${seed}"]
        (tmp_path / "sweep").mkdir()
        shutil.copytree(place / "run", tmp_path / "sweep" / "0")
        before = tree(tmp_path / "sweep" / "0")
        out = typed("rdm_solo.train", *sweep, *TINY, cwd=tmp_path)
        assert out.returncode == 1
        assert "refused: " in out.stdout
        assert "sweep/0 holds a run" in out.stderr
        assert tree(tmp_path / "sweep" / "0") == before
        assert len(rows(tmp_path / "sweep" / "1")) == 1


@pytest.mark.parametrize("table", ["epoch,train/loss\n1,none\n", "train/loss\n0.5\n"])
def test_a_table_that_cannot_be_read_is_named_before_anything_changes(
    table, place, typed, tmp_path
):
    shutil.copytree(place / "run", tmp_path / "run")
    (tmp_path / "run" / "metrics.csv").write_text(table)
    before = tree(tmp_path)
    out = typed("rdm_solo.train", "resume=run", "max_epochs=2", cwd=tmp_path)
    assert out.returncode == 2
    assert "run/metrics.csv: " in out.stderr
    assert tree(tmp_path) == before


def test_a_refused_change_of_devices_is_not_taken_for_the_runs_own(place, typed, tmp_path):
    """The rows that a filter saw at once stay known, whatever was tried in between."""
    shutil.copytree(place / "run", tmp_path / "run")
    (tmp_path / "run" / "loggers.json").write_text("{")
    go_on = ["rdm_solo.train", "resume=run", "max_epochs=2"]
    more = ["trainer.devices=2", "batch_size=8", "logger=tensorboard"]
    out = typed(*go_on, *more, cwd=tmp_path)
    assert out.returncode == 2
    assert "loggers.json cannot be read" in out.stderr
    out = typed(*go_on, cwd=tmp_path)
    assert (out.returncode, out.stderr) == (0, "")
    assert len(rows(tmp_path / "run")) == 2


def test_a_run_of_an_earlier_version_whose_config_lacks_a_key_goes_on(place, typed, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    path = tmp_path / "run" / ".hydra" / "config.yaml"
    config = OmegaConf.load(path)
    del config["overwrite"]
    OmegaConf.save(config, path)
    out = typed("rdm_solo.train", "resume=run", "max_epochs=2", cwd=tmp_path)
    assert (out.returncode, out.stderr) == (0, "")
    assert len(rows(tmp_path / "run")) == 2
    assert OmegaConf.load(path).overwrite is False


def test_overwriting_removes_the_earlier_runs_files_alone(place, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(place / "run", folder)
    for name in ("linear.json", "report/report.html", "spectra/epoch_0009.npz", "failed.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("of the earlier run")
    (folder / "report" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds a run"):
        run(folder, *TINY, "seed=1")
    run(folder, *TINY, "seed=1", "overwrite=true")
    run(tmp_path / "fresh", *TINY, "seed=1")
    names = {path for path in tree(folder) if (folder / path).is_file()}
    mine = {"figures/notes.txt", "report/mine.txt"}
    assert (
        names == {p for p in tree(tmp_path / "fresh") if (tmp_path / "fresh" / p).is_file()} | mine
    )
    assert rows(folder) == rows(tmp_path / "fresh")


def wholly(folder: Path) -> dict[str, bytes]:
    return {name: content for name, (_, content) in tree(folder).items()}


class TestOverwriting:
    """Until the new run has ended an epoch, the earlier one is not lost."""

    def test_what_refuses_late_leaves_the_earlier_run(self, place, typed, tmp_path):
        """An image that cannot be read: by then loggers, config and log are open."""
        shutil.copytree(place / "run", tmp_path / "run")
        write_tree(tmp_path / "data", train=12)
        for path in (tmp_path / "data" / "train").rglob("*.png"):
            spoil(path, "truncated")
        before = wholly(tmp_path)
        images = [o for o in TINY if not o.startswith("dataset")]
        images += ["dataset=folder", "dataset.root=data", "dataset.image_size=8", "batch_size=2"]
        more = ["logger=tensorboard", "hydra.run.dir=run", "overwrite=true"]
        out = typed("rdm_solo.train", *images, *more, cwd=tmp_path)
        assert out.returncode == 2
        assert "cannot be decoded" in out.stderr
        assert wholly(tmp_path) == before
        sweep = ["hydra.sweep.dir=.", "hydra.sweep.subdir=run", "overwrite=true"]
        out = typed("rdm_solo.train", "-m", *images, *sweep, cwd=tmp_path)
        assert out.returncode == 1
        assert "cannot be decoded" in out.stderr
        assert wholly(tmp_path / "run") == wholly(place / "run")

    def test_a_logger_that_cannot_be_opened_leaves_the_earlier_run(self, place, typed, tmp_path):
        shutil.copytree(place / "run", tmp_path / "run")
        (tmp_path / "run" / "tensorboard").write_text("of the user's own")
        before = wholly(tmp_path)
        more = ["logger=tensorboard", "hydra.run.dir=run", "overwrite=true"]
        out = typed("rdm_solo.train", *TINY, *more, cwd=tmp_path)
        assert (out.returncode, out.stderr) == (
            2,
            f"error: {tmp_path / 'run'} cannot be written: File exists\n",
        )
        assert wholly(tmp_path) == before

    @pytest.mark.parametrize(
        "step", [pytest.param("gathering", marks=pytest.mark.long), "gathered", "begun", "put back"]
    )
    def test_the_next_command_puts_back_what_a_kill_left(
        self, step, place, typed, tmp_path, monkeypatch
    ):
        folder = tmp_path / "run"
        shutil.copytree(place / "run", folder)
        before = wholly(tmp_path)
        set_aside = earlier_run.SetAside(folder, (folder / "owner.json").read_bytes())
        with contextlib.suppress(KeyboardInterrupt), monkeypatch.context() as patch:
            if step == "gathering":
                patch.setattr(files, "add_name", interrupted)
            elif step == "gathered":
                patch.setattr(earlier_run, "put_back", interrupted)  # a kill allows no answer
                patch.setattr(earlier_run, "remove", interrupted)
            set_aside.__enter__()
        if step == "begun":
            for name in (".hydra/config.yaml", "train.log", "failed.txt"):
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text("of the new run")
            (folder / "owner.json").write_text("{}")
        elif step == "put back":
            with contextlib.suppress(KeyboardInterrupt), monkeypatch.context() as patch:
                patch.setattr(shutil, "rmtree", interrupted)
                earlier_run.put_back(folder)
        again = ["resume=run"] if step == "gathered" else [*TINY, "hydra.run.dir=run"]
        out = typed("rdm_solo.train", *again, cwd=tmp_path)
        assert out.returncode == 2
        assert "holds a run" in out.stderr or "has finished 1 epochs" in out.stderr
        assert wholly(tmp_path) == before

    def test_a_strangers_link_is_not_followed(self, place, tmp_path):
        shutil.copytree(place / "run", tmp_path / "run")
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "metrics.csv").write_text("mine")
        (tmp_path / "run" / ".earlier_run").symlink_to(tmp_path / "outside")
        before = wholly(tmp_path)
        assert not earlier_run.put_back(tmp_path / "run")
        assert wholly(tmp_path) == before

    def test_a_strangers_folder_of_that_name_loses_nothing(self, place, typed, tmp_path):
        """An empty one, and one whose owner.json would be waited for."""
        shutil.copytree(place / "run", tmp_path / "run")
        before, aside = wholly(tmp_path), tmp_path / "run" / ".earlier_run"
        aside.mkdir()
        out = typed("rdm_solo.train", *TINY, "hydra.run.dir=run", cwd=tmp_path)
        assert (out.returncode, "holds a run" in out.stderr) == (2, True)
        assert wholly(tmp_path) == before
        aside.mkdir()
        (aside / "metrics.csv").write_text("epoch\n1\n")
        os.mkfifo(aside / "owner.json")
        out = typed("rdm_solo.train", "resume=run", "max_epochs=2", cwd=tmp_path)
        assert (out.returncode, "owner.json cannot be read" in out.stderr) == (2, True)
        shutil.rmtree(aside)
        assert wholly(tmp_path) == before

    def test_nothing_is_put_back_through_a_link(self, place, typed, tmp_path):
        shutil.copytree(place / "run", tmp_path / "run")
        shutil.copytree(place / "run", tmp_path / "run" / ".earlier_run")
        (tmp_path / "outside").mkdir()
        (tmp_path / "run" / ".earlier_run" / "wandb").symlink_to("/etc")
        shutil.rmtree(tmp_path / "run" / "figures")
        (tmp_path / "run" / "figures").symlink_to(tmp_path / "outside")
        before = wholly(tmp_path)
        out = typed("rdm_solo.train", "resume=run", "max_epochs=2", cwd=tmp_path)
        assert (out.returncode, "figures cannot be read (it is a link" in out.stderr) == (2, True)
        assert wholly(tmp_path) == before
        (tmp_path / "run" / "figures").unlink()
        assert earlier_run.put_back(tmp_path / "run")
        assert (tmp_path / "run" / "wandb").is_symlink()

    def test_a_run_is_found_once_while_another_takes_its_place(self, place, tmp_path):
        shutil.copytree(place / "run", tmp_path / "run")
        for name in (".earlier_run", ".earlier_run.part"):
            shutil.copytree(place / "run", tmp_path / "run" / name)
        (tmp_path / "runs").mkdir()
        shutil.move(tmp_path / "run", tmp_path / "runs" / "run")
        assert [run.folder for run in runs.find([tmp_path])] == [tmp_path / "runs" / "run"]


@pytest.mark.parametrize(
    "fault",
    [
        lambda saved: saved.pop("pytorch-lightning_version"),
        lambda saved: saved.pop("loops"),
        lambda saved: saved["state_dict"].popitem(),
        lambda saved: saved.update(optimizer_states=[{"state": {}, "param_groups": []}]),
        lambda saved: saved.update(callbacks={"Checkpoints": 5}),
    ],
)
def test_a_checkpoint_that_lacks_a_part_is_refused_in_a_sentence(fault, place, typed, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    saved = torch.load(path, weights_only=True)
    fault(saved)
    torch.save(saved, path)
    content, table = path.read_bytes(), (tmp_path / "run" / "metrics.csv").read_bytes()
    out = typed("rdm_solo.train", "resume=run", "max_epochs=2", cwd=tmp_path)
    (line,) = (line for line in out.stderr.splitlines() if not line.startswith("warning: "))
    assert (out.returncode, line.startswith(f"error: {path} cannot be read (")) == (2, True), out
    assert (path.read_bytes(), (tmp_path / "run" / "metrics.csv").read_bytes()) == (content, table)


def test_an_owner_that_would_be_waited_for_is_refused(place, typed, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    (tmp_path / "run" / "owner.json").unlink()
    os.mkfifo(tmp_path / "run" / "owner.json")
    for given, says in (
        (["resume=run", "max_epochs=2"], "owner.json cannot be read (it is not a regular file)"),
        ([*TINY, "hydra.run.dir=run", "overwrite=true"], "owner.json is not a regular file"),
    ):
        out = typed("rdm_solo.train", *given, cwd=tmp_path)
        assert (out.returncode, says in out.stderr) == (2, True), out
        assert (tmp_path / "run" / "metrics.csv").exists()


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_run_that_was_killed_before_its_summary_gets_one(typed, place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    (tmp_path / "run" / "summary.json").unlink()
    table = (tmp_path / "run" / "metrics.csv").read_bytes()
    out = typed("rdm_solo.train", "resume=run", cwd=tmp_path)
    assert (out.returncode, out.stderr) == (0, "")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["last"] == summary["last"]
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == table


def test_an_epoch_less_folder_is_nobodys(tmp_path):
    """A run that ended before its first epoch leaves nothing that could be lost."""
    with pytest.raises(RuntimeError, match="killed"):
        train.run(configure(*TINY), tmp_path, [CutInEpoch(1)])
    run(tmp_path, *TINY)
    assert len(rows(tmp_path)) == 1


def hold(folder: Path, said) -> None:
    with ownership.owned(folder):
        said.send("held")
        said.recv()


def make(wanted: Path, start, said) -> None:
    start.wait()
    with earlier_run.new_folder(wanted) as folder:
        (folder / "mine").touch()
        said.put(str(folder))


@pytest.mark.process
class TestOwner:
    def test_a_lock_ends_with_its_process_and_not_before(self, tmp_path):
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        owner = context.Process(target=hold, args=(tmp_path / "run", theirs))
        owner.start()
        assert ours.recv() == "held"
        before = tree(tmp_path)
        for own in (ownership.check_free, lambda folder: ownership.owned(folder).__enter__()):
            with pytest.raises(ownership.FolderTaken) as refused:
                own(tmp_path / "run")
            assert f"another run is writing to {tmp_path / 'run'} (process {owner.pid}, on " in str(
                refused.value
            )
        assert tree(tmp_path) == before
        with pytest.raises(ownership.FolderTaken):
            run(tmp_path / "run", *TINY)
        owner.kill()
        owner.join()
        ownership.check_free(tmp_path / "run")
        with ownership.owned(tmp_path / "run"):
            child = context.Process(target=time.sleep, args=(60,))  # outlives its parent's lock
            child.start()
        ownership.check_free(tmp_path / "run")
        child.kill()
        child.join()

    def test_no_two_runs_of_one_second_get_one_folder(self, tmp_path):
        context = multiprocessing.get_context("fork")
        start, said = context.Event(), context.Queue()
        wanted = tmp_path / "runs" / "now"
        many = [context.Process(target=make, args=(wanted, start, said)) for _ in range(20)]
        for process in many:
            process.start()
        start.set()
        found = sorted(said.get() for _ in many)
        for process in many:
            process.join()
        assert found == sorted([str(wanted), *(f"{wanted}_{n}" for n in range(2, 21))])

    def test_a_parent_that_is_a_link_to_nowhere_is_named(self, tmp_path):
        """Such as runs -> /scratch/runs where that disk is not mounted."""
        (tmp_path / "runs").symlink_to(tmp_path / "scratch" / "runs")
        with (
            pytest.raises(ValueError, match=r"runs cannot be made \(File exists\)"),
            earlier_run.new_folder(tmp_path / "runs" / "now"),
        ):
            pass

    def test_an_unwritten_folder_is_removed_with_its_new_parents(self, tmp_path):
        with earlier_run.new_folder(tmp_path / "a" / "b") as folder:
            assert folder.is_dir()
        with ownership.owned(tmp_path / "c" / "d"):
            pass
        assert not list(tmp_path.iterdir())

    def test_a_file_system_without_locks_is_named(self, tmp_path, monkeypatch, caplog):
        def none(number, how):
            raise OSError(errno.ENOLCK, "no locks available")

        monkeypatch.setattr(fcntl, "flock", none)
        with ownership.owned(tmp_path / "run"):
            (tmp_path / "run" / "file").touch()
        assert "has no locks; see to it that no other run writes there" in caplog.text


class TestRequeued:
    """The environment of a job that SLURM starts again; the drill beside has a real one."""

    def test_it_goes_on_from_its_checkpoint_where_the_folder_was_typed(self, tmp_path, monkeypatch):
        options = [*TINY, "max_epochs=3", "knn.every_n_epochs=1"]
        run(tmp_path / "whole", *options)
        folder = self.broken_off(options, 3, tmp_path / "cut", monkeypatch)
        with pytest.raises(ValueError, match="holds a run"):  # by another job
            run(folder, *options)
        set_job(monkeypatch, 8, restarts=1)
        with pytest.raises(ValueError, match="holds a run"):
            run(folder, *options)
        set_job(monkeypatch, 7, restarts=1)
        with pytest.raises(ValueError, match="holds a run"):  # another run of the same job
            run(folder, *options, "seed=1")
        (folder / "hpc_ckpt_1.ckpt").write_text("of an earlier version")
        run(folder, *options)
        assert (folder / "metrics.csv").read_bytes() == (
            tmp_path / "whole" / "metrics.csv"
        ).read_bytes()
        before = tree(folder)
        with pytest.raises(run_folder.Finished):
            run(folder, *options)
        assert tree(folder) == before

    def test_it_begins_anew_where_there_is_no_checkpoint(self, tmp_path, monkeypatch):
        options = [*TINY, "max_epochs=2"]
        run(tmp_path / "whole", *options)
        folder = self.broken_off(options, 2, tmp_path / "cut", monkeypatch)
        (folder / "checkpoints" / "last.ckpt").unlink()
        set_job(monkeypatch, 7, restarts=1)
        run(folder, *options)
        assert rows(folder) == rows(tmp_path / "whole")

    def test_one_that_diverged_is_not_taken_for_finished(self, tmp_path, monkeypatch):
        """Status 0 would tell the job's next command that all is well."""
        options = [*TINY, "optimizer.lr=1e30"]
        cfg = configure(*options)
        (tmp_path / ".hydra").mkdir()
        OmegaConf.save(cfg, tmp_path / ".hydra" / "config.yaml")
        for restarts in (0, 1):
            set_job(monkeypatch, 7, restarts=restarts)
            with pytest.raises(FloatingPointError, match="diverged in epoch 1"):
                train.run(cfg, tmp_path)

    def broken_off(self, options, epoch, folder, monkeypatch) -> Path:
        cfg = configure(*options)
        (folder / ".hydra").mkdir(parents=True)
        OmegaConf.save(cfg, folder / ".hydra" / "config.yaml")
        set_job(monkeypatch, 7)
        with pytest.raises(RuntimeError, match="killed"):
            train.run(cfg, folder, [CutInEpoch(epoch)])
        return folder

    def test_a_second_command_of_the_job_is_no_requeue_of_the_first(
        self, typed, tmp_path, monkeypatch
    ):
        """The same command twice in one batch script, whose job SLURM then starts again."""

        def names() -> list[str]:
            return sorted(path.parent.name[-12:] for path in tmp_path.glob("runs/*/owner.json"))

        set_job(monkeypatch, 7)
        for number in (1, 2):
            out = typed("rdm_solo.train", *TINY, cwd=tmp_path)
            assert (out.returncode, out.stderr) == (0, "")
            assert "has finished" not in out.stdout
            assert len(names()) == number
        (second,) = tmp_path.glob("runs/*_2")
        (second / "summary.json").unlink()  # as if the second was killed before its end
        (second / "checkpoints" / "last.ckpt").unlink()
        set_job(monkeypatch, 7, restarts=1)
        says = ["has finished", "begins anew", "learnable_3"]
        for words in says:
            out = typed("rdm_solo.train", *TINY, cwd=tmp_path)
            assert (out.returncode, out.stderr) == (0, "")
            assert words in out.stdout
        assert (second / "summary.json").exists()
        assert len(names()) == 3

    def test_the_default_folder_and_a_sweeps_are_found_again(self, typed, tmp_path, monkeypatch):
        """The names hold the job, not the time; another command of the job has another name."""
        set_job(monkeypatch, 7)
        for arguments in (TINY, ["-m", *TINY, "seed=1,2"]):
            assert typed("rdm_solo.train", *arguments, cwd=tmp_path).returncode == 0
        before = tree(tmp_path)
        assert len(list(tmp_path.glob("runs/job_7_*_simsiam_learnable"))) == 1
        (sweep,) = tmp_path.glob("runs/job_7_*_sweep")
        assert len(list(sweep.glob("*/summary.json"))) == 2
        set_job(monkeypatch, 7, restarts=1)
        for arguments in (TINY, ["-m", *TINY, "seed=1,2"]):
            out = typed("rdm_solo.train", *arguments, cwd=tmp_path)
            assert out.returncode == 0, out.stderr
            assert "its run in" in out.stdout
            assert "has finished." in out.stdout
        after = tree(tmp_path)
        for found in (before, after):
            for name in [n for n in found if n.endswith("multirun.yaml") or ".slurm_start_" in n]:
                del found[name]
        assert {n: b for n, (_, b) in after.items()} == {n: b for n, (_, b) in before.items()}
