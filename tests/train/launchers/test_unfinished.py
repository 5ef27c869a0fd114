"""``resume=SWEEP_FOLDER``: which runs go on, which begin, and which are left as they are."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import pytest
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf
from support.small_runs import SMALL, configure, rows, run

from rdm_solo.runs import failures
from rdm_solo.train import entry, run_folder
from rdm_solo.train.launchers import plan, start, unfinished
from rdm_solo.train.launchers.plan import Job

OPTIONS = [*SMALL, "scheduler.warmup_epochs=0", "filter=target_pow"]


def planned(sweep: Path, name: str, *options: str) -> Path:
    """A run that has not begun."""
    config = configure(*OPTIONS, *options)
    plan.write(Job(sweep / name, config), sweep)
    return sweep / name


@pytest.fixture
def left(monkeypatch, capsys, caplog):
    """What ``resume=`` would start: the status, the jobs by name, and what it says."""

    def found(sweep: Path, *options: str):
        jobs: dict[str, Job] = {}

        def elsewhere(chosen, folder, launcher):
            jobs.update({job.name: job for job in chosen})
            return {}

        monkeypatch.setattr(start, "elsewhere", elsewhere)
        caplog.clear()
        with caplog.at_level("INFO", "rdm_solo"), pytest.raises(SystemExit) as end:
            unfinished.run(sweep, [f"resume={sweep}", *options])
        return end.value.code, jobs, caplog.text + "".join(capsys.readouterr())

    return found


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """Run 0 has finished, 1 was stopped after an epoch, 2 diverged, 10 and 9 have not begun."""
    folder = tmp_path_factory.mktemp("sweep")
    for name, epochs in (("0_a", 2), ("1_a", 1), ("2_a", 1)):
        run(folder / name, *OPTIONS, f"max_epochs={epochs}")
        (folder / name / ".hydra").mkdir()
        config = configure(*OPTIONS, "max_epochs=2")
        OmegaConf.save(config, folder / name / ".hydra" / "config.yaml")
    diverged = {"epoch": 2, "step": 1, "what": "the loss"}
    for name, more in (("1_a", {"stopped": "SIGTERM"}), ("2_a", {"diverged": diverged})):
        summary = folder / name / "summary.json"
        summary.write_text(json.dumps(json.loads(summary.read_text()) | more))
    failures.note(folder / "2_a", "training diverged in epoch 2")
    for name in ("10_a", "9_a"):
        planned(folder, name, f"seed={name.partition('_')[0]}")
    return folder


def test_what_has_not_begun_begins_and_what_was_stopped_goes_on(sweep, left):
    status, jobs, said = left(sweep)
    assert status == 1  # as the sweep's own, since a run has diverged
    assert list(jobs) == ["1_a", "9_a", "10_a"]
    assert jobs["1_a"].options == [f"resume={sweep / '1_a'}"]
    assert jobs["1_a"].planned is None
    for name in ("9_a", "10_a"):
        assert jobs[name].planned == sweep / ".jobs" / name
        assert jobs[name].config.seed == int(name.partition("_")[0])
    assert "finished: 0_a" in said
    assert "diverged, so left as they are: 2_a" in said
    assert said.count("failed: ") == 1


def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_anew(
    sweep, left, tmp_path, monkeypatch
):
    """What has finished meanwhile, or had to stop, is never replaced."""
    copy = tmp_path / "s"
    shutil.copytree(sweep, copy)
    for name in ("0_a", "1_a"):
        shutil.rmtree(copy / name / "checkpoints")
    _, jobs, _ = left(copy, "max_epochs=3")
    for name in ("0_a", "1_a"):
        job = jobs[name]
        assert job.planned == copy / ".jobs" / name
        assert job.config.overwrite is False
        for variable, value in job.variables(copy).items():
            monkeypatch.setenv(variable, value)
        if name == "0_a":
            with pytest.raises(run_folder.Finished):
                run_folder.check(job.config, job.folder, True)
        else:
            assert run_folder.check(job.config, job.folder, True) is True


def test_a_run_that_ended_before_its_last_epoch_is_finished(sweep, left, tmp_path):
    copy = tmp_path / "s"
    shutil.copytree(sweep, copy)
    summary = copy / "1_a" / "summary.json"
    stopped = {"stopped": "watch.stop: complete collapse in epoch 1"}
    summary.write_text(json.dumps(json.loads(summary.read_text()) | stopped))
    assert list(left(copy)[1]) == ["9_a", "10_a"]
    assert "1_a" in left(copy, "max_epochs=3")[1]


def test_more_epochs_for_all_of_them(sweep, left):
    _, jobs, said = left(sweep, "max_epochs=3")
    assert list(jobs) == ["0_a", "1_a", "9_a", "10_a"]
    assert {job.config.max_epochs for job in jobs.values()} == {3}
    assert jobs["0_a"].options == [f"resume={sweep / '0_a'}", "max_epochs=3"]
    assert "finished:" not in said


def test_an_option_that_must_stay_is_refused_in_one_sentence(sweep, left):
    before = {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()}
    for option, says in (
        ("optimizer.lr=1", "must stay the run's own"),
        ("launcher=loc", "launcher must be one of basic, local, ray, slurm; got 'loc'"),
        ("launcher.job=2", "there is no option 'launcher.job'"),
        ("nothing=2", "there is no option 'nothing'"),
    ):
        status, jobs, said = left(sweep, option)
        assert (status, jobs) == (2, {})
        assert said.count(says) == 1
    assert {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()} == before


def test_a_sweep_of_an_earlier_version_has_no_plan(sweep, left, tmp_path):
    (tmp_path / "multirun.yaml").touch()
    (tmp_path / "0_a").symlink_to(sweep / "1_a")
    status, jobs, said = left(tmp_path)
    assert (status, jobs) == (2, {})
    assert "leads out of the folder" in said
    copy = tmp_path / "s"
    run(copy / "0_a", *OPTIONS, "max_epochs=1")
    (copy / "0_a" / ".hydra").mkdir()
    OmegaConf.save(configure(*OPTIONS, "max_epochs=3"), copy / "0_a" / ".hydra" / "config.yaml")
    (copy / "multirun.yaml").touch()
    assert list(left(copy, "max_epochs=3")[1]) == ["0_a"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("dataset.source._target_", "os.system"), ("callbacks", {"mine": {"_target_": "os.getcwd"}})],
)
def test_a_strangers_plan_names_no_code(tmp_path, left, key, value):
    """The other runs go on, and nothing is changed in what is refused."""
    fine, bad = planned(tmp_path, "0_a"), planned(tmp_path, "1_a")
    path = tmp_path / ".jobs" / bad.name / ".hydra" / "config.yaml"
    config = OmegaConf.load(path)
    OmegaConf.update(config, key, value, force_add=True)
    OmegaConf.save(config, path)
    before = path.read_bytes()
    status, jobs, said = left(tmp_path)
    assert (status, list(jobs)) == (1, [fine.name])
    assert "failed: 1_a: " in said
    assert "is not taken from a folder" in said
    assert path.read_bytes() == before


def test_a_link_in_a_strangers_plan_is_not_followed(tmp_path, left):
    outside = planned(tmp_path / "outside", "0_a")
    sweep = tmp_path / "sweep"
    (sweep / ".jobs").mkdir(parents=True)
    planned(sweep, "1_a")
    (sweep / ".jobs" / "0_a").symlink_to(tmp_path / "outside" / ".jobs" / "0_a")
    (sweep / "2_a").symlink_to(outside.parent)
    for name in ("3_a", "4_a"):
        planned(sweep, name)
    secret = tmp_path / "outside" / "secret.yaml"
    secret.write_text("secret: 1")
    (sweep / ".jobs" / "3_a" / ".hydra" / "hydra.yaml").symlink_to(secret)
    shutil.rmtree(sweep / ".jobs" / "4_a" / ".hydra")
    (sweep / ".jobs" / "4_a" / ".hydra").symlink_to(tmp_path / "outside")
    (sweep / "4_a" / ".hydra").mkdir(parents=True)
    OmegaConf.save(configure(*OPTIONS), sweep / "4_a" / ".hydra" / "config.yaml")
    before = {path: path.read_bytes() for path in (tmp_path / "outside").rglob("*.yaml")}
    _, jobs, _ = left(sweep)
    assert list(jobs) == ["1_a"]
    assert {p: p.read_bytes() for p in (tmp_path / "outside").rglob("*.yaml")} == before


def test_a_plan_asks_hydra_nothing_and_a_log_is_one_runs(typed, tmp_path):
    sweep = ["-m", *OPTIONS, "p=-1,-0.5", "max_epochs=1", "seed=${hydra:job.num}"]
    sweep += ["hydra.sweep.dir=s", "hydra.sweep.subdir=a/../${p}"]
    out = typed("rdm_solo.train", *sweep, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    for number, p in enumerate(("-1", "-0.5")):
        path = tmp_path / "s" / ".jobs" / p / ".hydra" / "config.yaml"
        assert OmegaConf.to_container(OmegaConf.load(path), resolve=False)["seed"] == number
    assert "run 2 of 2" in out.stdout
    assert "run 2 of 2" not in (tmp_path / "s" / "-1" / "train.log").read_text()


def test_a_sweep_starts_where_hydra_does_not_find_the_launchers(typed, tmp_path, monkeypatch):
    """As in an installation that links to the source, whose modules Hydra cannot list."""
    known = Plugins.instance().class_name_to_class
    monkeypatch.delitem(known, "hydra_plugins.rdm_solo_launchers.ByName", raising=False)
    out = typed("rdm_solo.train", "-m", *OPTIONS, "p=-1,soft", "max_epochs=1", cwd=tmp_path)
    assert out.returncode == 1
    assert "failed: 1_simsiam_target_pow_p=soft: p must be a number" in out.stdout


def test_two_runs_of_a_sweep_in_one_folder_are_refused(typed, tmp_path):
    sweep = ["-m", *OPTIONS, "p=-1,-0.5", "hydra.sweep.dir=s", "hydra.sweep.subdir=same"]
    out = typed("rdm_solo.train", *sweep, cwd=tmp_path)
    assert out.returncode == 2
    assert f"2 runs of the sweep would have the folder {tmp_path / 's' / 'same'}" in out.stderr
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["multirun.yaml"]


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("hydra.sweep.subdir=../${p}/run", "/-1/run is not inside the sweep's folder"),
        ("launcher=basic,local", "a sweep has one launcher"),
        ("launcher.jobs=1,2", "a sweep has one launcher"),
        ("trainer.devices=1,[0]", "launcher=local assigns GPUs itself"),
    ],
)
def test_a_sweep_is_refused_before_a_run_is_planned(typed, tmp_path, option, says):
    sweep = ["-m", *OPTIONS, "p=-1,-0.5", "hydra.sweep.dir=s", option]
    sweep += [] if option.startswith("launcher=") else ["launcher=local"]
    out = typed("rdm_solo.train", *sweep, cwd=tmp_path)
    assert out.returncode == 2, out
    assert says in out.stderr
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["multirun.yaml"]


def test_what_goes_wrong_while_runs_go_on_is_no_answer_to_what_was_typed(
    typed, tmp_path, monkeypatch
):
    def broken(*arguments):
        raise OSError(errno.EIO, "the disk is gone", "there")

    monkeypatch.setattr(start, "elsewhere", broken)
    sweep = ["-m", *OPTIONS, "launcher=local", "p=-1,-0.5", "hydra.sweep.dir=s"]
    with pytest.raises(OSError, match="the disk is gone"):
        typed("rdm_solo.train", *sweep, cwd=tmp_path)


def test_a_run_whose_folder_cannot_be_written_has_failed(tmp_path):
    """A file has its name."""
    (tmp_path / "run").write_text("")
    reason = entry._run(configure(*OPTIONS), tmp_path / "run", one_of_many=True)
    assert reason.startswith("failed: run: ")
    assert str(tmp_path / "run") in reason


def test_with_basic_such_a_run_does_not_stop_the_others(typed, tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "-1").write_text("")
    sweep = ["-m", *OPTIONS, "p=-1,-0.5", "hydra.sweep.dir=s", "hydra.sweep.subdir=${p}"]
    out = typed("rdm_solo.train", *sweep, "max_epochs=1", cwd=tmp_path)
    assert out.returncode == 1, out.stderr
    failed = f"failed: -1: {tmp_path / 's' / '-1'} cannot be written (File exists)"
    assert failed in out.stdout
    assert (tmp_path / "s" / "-0.5" / "summary.json").is_file()


def test_a_sweeps_folder_may_be_typed_with_dots(sweep, left):
    (sweep / "there").mkdir(exist_ok=True)
    _, jobs, _ = left(sweep / "there" / "..")
    assert list(jobs) == ["1_a", "9_a", "10_a"]


def test_a_planned_run_is_no_run_of_a_report(tmp_path):
    from rdm_solo import runs

    planned(tmp_path, "0_a")
    run(tmp_path / "1_a", *OPTIONS, "max_epochs=1")
    assert [path.name for path in (found.folder for found in runs.survey([tmp_path])[0])] == ["1_a"]
    assert len(rows(tmp_path / "1_a")) == 1
