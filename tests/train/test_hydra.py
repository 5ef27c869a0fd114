"""A run is a Hydra program: what Hydra users pass to any program works."""

import logging
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from support.small_runs import SMALL

from rdm_solo import runs

RUN = [*SMALL, "max_epochs=1", "trainer.enable_progress_bar=false", "hydra.run.dir=run"]


class Recorder(Callback):
    """Record what Hydra calls, and the folder that it names."""

    calls: list[str] = []

    def on_job_start(self, config, **kwargs) -> None:
        self.calls.append(f"start in {Path(HydraConfig.get().runtime.output_dir).name}")

    def on_job_end(self, config, job_return, **kwargs) -> None:
        self.calls.append(f"end: {job_return.status.name}")


def test_the_output_folder_can_be_named_in_an_option(typed, tmp_path):
    out = typed("rdm_solo.train", *RUN, "+note=${hydra:runtime.output_dir}/x", cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    assert runs.load(tmp_path / "run").config.note == str(tmp_path / "run" / "x")


def test_callbacks_of_hydra_run(typed, tmp_path):
    Recorder.calls.clear()
    target = f"+hydra.callbacks.recorder._target_={__name__}.Recorder"
    assert typed("rdm_solo.train", *RUN, target, cwd=tmp_path).returncode == 0
    assert Recorder.calls == ["start in run", "end: COMPLETED"]


@pytest.mark.parametrize("option", ["hydra.verbose=true", "hydra.verbose=[rdm_solo]"])
def test_verbose_shows_debug_lines(option, typed, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "rdm_solo.train.checks.check",
        lambda cfg: logging.getLogger("rdm_solo").debug("checked"),
    )
    assert "checked" not in typed("rdm_solo.train", *RUN, cwd=tmp_path).stdout
    again = typed("rdm_solo.train", *RUN, option, cwd=tmp_path)
    assert "checked" in again.stdout


def test_the_logging_of_a_job_can_be_chosen(typed, tmp_path):
    out = typed("rdm_solo.train", *RUN, "hydra/job_logging=default", cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    (line, *_) = out.stdout.splitlines()
    assert "[rdm_solo][INFO] - Starting simsiam" in line
    assert "Starting simsiam" in (tmp_path / "run" / "rdm_solo.log").read_text()


def test_a_refused_run_leaves_no_folder(typed, tmp_path):
    out = typed("rdm_solo.train", *SMALL, "knn.k=9999", "hydra.run.dir=a/b/run", cwd=tmp_path)
    assert out.returncode == 2
    assert not list(tmp_path.iterdir())
    (tmp_path / "a").mkdir()
    typed("rdm_solo.train", *SMALL, "knn.k=9999", "hydra.run.dir=a/b/run", cwd=tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]
