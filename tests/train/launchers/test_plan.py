"""What a sweep writes down for each of its runs, and how a run starts from that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from omegaconf import OmegaConf
from support.small_runs import SMALL

from rdm_solo.runs import failures
from rdm_solo.train.launchers import start
from rdm_solo.train.launchers.plan import Job

OPTIONS = [*SMALL, "filter=target_pow", "++trainer.limit_train_batches=1"]
SWEEP = ["-m", *OPTIONS, "launcher=local", "hydra.sweep.dir=s", "hydra.sweep.subdir=${p}"]


@pytest.fixture
def planned(typed, tmp_path, monkeypatch):
    """The jobs of a sweep that is typed with these options, and what the terminal shows."""

    def made(*options: str) -> tuple[list[Job], str]:
        jobs: list[Job] = []

        def elsewhere(handed_over, folder, launcher):
            jobs.extend(handed_over)
            return {}

        with monkeypatch.context() as patch:
            patch.setattr(start, "elsewhere", elsewhere)
            out = typed("rdm_solo.train", *SWEEP, *options, cwd=tmp_path)
        assert out.returncode == 0, out.stderr
        return jobs, out.stdout

    return made


@pytest.fixture
def begun(typed, tmp_path, monkeypatch) -> Callable:
    """Starts the run of a job in this process, as its launcher would in another."""

    def run(job: Job):
        with monkeypatch.context() as patch:
            for name, value in job.variables(tmp_path / "s").items():
                patch.setenv(name, value)
            return typed("rdm_solo.train", *job.options, cwd=tmp_path)

    return run


def test_variables_that_differ_between_the_runs(planned, tmp_path):
    jobs, _ = planned("p=-0.5,-1", "++hydra.job.env_set.NOTE=of_${p}")
    told = [job.variables(tmp_path / "s")["NOTE"] for job in jobs]
    assert told == ["of_-0.5", "of_-1"]


def test_each_run_logs_how_its_own_recipe_was_shortened(planned, begun):
    (one, two), shown = planned("p=-1", "max_epochs=1,2", "hydra.sweep.subdir=${max_epochs}")
    sentences = [*one.notes, *two.notes]
    assert len(sentences) == 2
    for number, sentence in enumerate(sentences, 1):
        assert sentence.startswith(f"max_epochs={number} in place of the recipe's ")
        assert shown.count(sentence) == 1
    assert begun(one).returncode == 0
    log = (one.folder / "train.log").read_text()
    assert [sentence in log for sentence in sentences] == [True, False]


def test_a_reason_that_an_earlier_start_has_left_is_not_this_ones(planned, begun):
    """The run had finished, and its process was ended as it left; Ray starts it again."""
    (job,), _ = planned("p=-1", "max_epochs=1", "scheduler.warmup_epochs=0")
    assert begun(job).returncode == 0
    failures.note(job.folder, "the run was ended by SIGSEGV")
    out = begun(replace(job, again="Ray"))
    assert f"its run in {job.folder} has finished" in out.stdout
    assert out.returncode == 0


def test_a_run_that_fails_again_leaves_the_new_reason(planned, begun):
    (job,), _ = planned("p=soft")
    job.folder.mkdir()
    failures.note(job.folder, "the run was ended by SIGKILL")
    assert begun(job).returncode == 1
    assert "p must be a number" in failures.of(job.folder)


def test_a_plan_of_an_earlier_version_lacks_a_key(planned, begun):
    (job,), _ = planned("p=-1", "max_epochs=1", "scheduler.warmup_epochs=0")
    path = job.planned / ".hydra" / "config.yaml"
    config = OmegaConf.load(path)
    del config["overwrite"]
    OmegaConf.save(config, path)
    out = begun(job)
    assert out.returncode == 0, out.stderr
    assert (job.folder / "summary.json").is_file()
