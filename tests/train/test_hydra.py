"""Options and callbacks of Hydra itself work in a run as in any Hydra program."""

import logging
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from support.small_runs import SMALL

from rdm_solo import runs
from rdm_solo.ground.errors import UserError

RUN = [*SMALL, "max_epochs=1", "trainer.enable_progress_bar=false"]


class Recorder(Callback):
    """Record the start and the end of a job, with the folder that Hydra names."""

    calls: list[str] = []

    def on_job_start(self, config, **kwargs) -> None:
        self.calls.append(f"start in {Path(HydraConfig.get().runtime.output_dir).name}")

    def on_job_end(self, config, job_return, **kwargs) -> None:
        self.calls.append(f"end: {job_return.status.name}")


def test_a_run_has_the_output_folder_callbacks_and_logging_of_hydra(train, tmp_path):
    Recorder.calls.clear()
    options = ["+note=${hydra:runtime.output_dir}/x", "hydra/job_logging=default"]
    options.append(f"+hydra.callbacks.recorder._target_={__name__}.Recorder")
    out = train(*RUN, "hydra.run.dir=run", *options)
    assert out.returncode == 0, out.stderr
    assert runs.load(tmp_path / "run").config.note == str(tmp_path / "run" / "x")
    assert Recorder.calls == ["start in run", "end: COMPLETED"]
    assert "[rdm_solo][INFO] - Starting" in out.stdout
    assert "Starting simsiam" in (tmp_path / "run" / "rdm_solo.log").read_text()


def test_verbose_shows_debug_lines(train, monkeypatch):
    def stop(cfg, folder, overrides) -> None:
        logging.getLogger("rdm_solo").debug("a debug line")
        raise UserError("no training")

    monkeypatch.setattr("rdm_solo.train.run.run", stop)
    assert "a debug line" not in train(*RUN).stdout
    assert "a debug line" in train(*RUN, "hydra.verbose=[rdm_solo]").stdout
