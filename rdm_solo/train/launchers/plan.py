"""The runs of a sweep, composed and written down before the first of them begins."""

import logging
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from rdm_solo.cli.unknown_names import dotted
from rdm_solo.messages import UserError
from rdm_solo.runs.files import CONFIG, PLANNED
from rdm_solo.train import environment, run_folder, warm_ups

log = logging.getLogger("rdm_solo")


@dataclass(frozen=True)
class Job:
    """One run of a sweep, to be started."""

    folder: Path  # of the run
    config: DictConfig  # of the run
    options: Sequence[str] = ()  # that tell it apart, as they are typed
    hydra: DictConfig | None = field(default=None, repr=False)  # its whole config, Hydra's part too
    planned: Path | None = None  # the folder that its config is read from; None: the run's own
    again: str | None = None  # what starts the run again, where it may have begun
    notes: Sequence[str] = ()  # sentences on how the config was changed, for its log

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    def variables(self, sweep_folder: Path) -> dict[str, str]:
        """What the environment of the job's process says, beside ``options`` on its line."""
        variables = {environment.SWEEP: str(sweep_folder.absolute())}
        if self.planned is not None:
            variables[environment.CONFIG] = str(self.planned / CONFIG)
            variables[environment.FOLDER] = str(self.folder)
        if self.again is not None:
            variables[environment.STARTED_AGAIN] = self.again
        if self.notes:
            variables[environment.NOTES] = "\n".join(self.notes)
        if self.hydra is not None:
            typed: Any = OmegaConf.to_container(self.hydra.hydra.job.env_set, resolve=True)
            variables |= {name: str(value) for name, value in typed.items()}
        return variables


def compose(
    loader: Any, config: DictConfig, job_overrides: Sequence[Sequence[str]], first: int
) -> list[Job]:
    """A job for each list of overrides, numbered from ``first``, as Hydra's own launchers do it."""
    from hydra.core.hydra_config import HydraConfig

    known, jobs = HydraConfig.instance().cfg, []
    try:
        for number, overrides in enumerate(job_overrides, first):
            whole = loader.load_sweep_config(config, list(overrides))
            with open_dict(whole):
                whole.hydra.job.id = whole.hydra.job.num = number
            HydraConfig.instance().set_config(whole)  # which the folder's name asks
            folder = _absolute(Path(whole.hydra.sweep.dir, str(whole.hydra.sweep.subdir)))
            with open_dict(whole.hydra.runtime), read_write(whole.hydra.runtime):
                whole.hydra.runtime.output_dir = str(folder)
            notes = warm_ups.fit(whole)
            _resolve_hydras(whole)
            own = whole.copy()
            with read_write(own), open_dict(own):
                del own["hydra"], own["launcher"]
            jobs.append(Job(folder, own, list(overrides), whole, notes=notes))
    finally:
        HydraConfig.instance().cfg = known
    if config.launcher.name != "basic":  # whose runs say it in this terminal
        for sentence in dict.fromkeys(note for job in jobs for note in job.notes):
            log.info(sentence)
    return jobs


def _resolve_hydras(config: DictConfig) -> None:
    """Replace what asks Hydra by its answer: the job's process has no Hydra to ask."""
    plain: Any = OmegaConf.to_container(config)
    del plain["hydra"]
    for key, text in dotted(plain):
        if isinstance(text, str) and re.search(r"\$\{(hydra|now):", text):
            OmegaConf.update(config, key, OmegaConf.select(config, key))


def _absolute(path: Path) -> Path:
    """The path without ``..``, links left as they are."""
    return Path(os.path.normpath(path.absolute()))


def check_together(jobs: Sequence[Job], config: DictConfig) -> None:
    """Refuse a sweep over launchers, and one that gives several runs one folder, or a run a folder
    outside its own."""
    if any(job.hydra is not None and job.hydra.launcher != config.launcher for job in jobs):
        raise UserError(
            "a sweep has one launcher, by which all of its runs are started: give launcher and its "
            "options one value each."
        )
    counted = Counter(job.folder for job in jobs)
    if several := [folder for folder, number in counted.items() if number > 1]:
        raise UserError(
            f"{counted[several[0]]} runs of the sweep would have the folder {several[0]}: let "
            "hydra.sweep.subdir name what differs between them, such as '${hydra.job.num}'."
        )
    top = _absolute(Path(config.hydra.sweep.dir))
    for job in jobs:
        if top not in job.folder.parents and job.folder != top:
            raise UserError(
                f"{job.folder} is not inside the sweep's folder {top}, where its table, its report "
                "and resume= look for it: give hydra.sweep.subdir the name of a folder inside it."
            )


def write(job: Job, sweep_folder: Path) -> Job:
    """Write the job's config into the sweep's folder, from where its process reads it.

    A run's folder belongs to the run, and may hold an earlier one.
    """
    planned = place(job.folder, sweep_folder)
    run_folder.write_config(planned, config=job.config)
    if job.hydra is not None:
        hydra = OmegaConf.masked_copy(job.hydra, "hydra")
        run_folder.write_config(planned, hydra=hydra, overrides=hydra.hydra.overrides.task)
    return replace(job, planned=planned)


def place(folder: Path, sweep_folder: Path) -> Path:
    """The folder in which the config of the run in ``folder`` is kept."""
    top = _absolute(sweep_folder)
    return top / PLANNED / _absolute(folder).relative_to(top)
