"""Goes on with a sweep: ``resume=SWEEP_FOLDER`` runs what is missing or was stopped."""

import logging
import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rdm_solo import cli
from rdm_solo.messages import UserError, check_whole, first_line
from rdm_solo.runs import checkpoints, earlier_run, metrics_file, reading
from rdm_solo.runs.files import CONFIG, HYDRA, METRICS, OVERRIDES, PLANNED
from rdm_solo.runs.folder import diverged_in, in_order
from rdm_solo.train import resuming, sweep
from rdm_solo.train.launchers import plan, start
from rdm_solo.train.launchers.plan import Job

log = logging.getLogger("rdm_solo")


def run(folder: Path, argv: list[str]) -> None:
    """Run what the sweep in that folder has left, by each run's own config.

    What was typed beside ``resume=`` holds for each of these runs; it may be what may differ where
    one run goes on. A folder may come from a stranger: the same rules hold for its configs.
    """
    cli.log_to_terminal()
    cli.say_anything()
    given = dict(argument.partition("=")[::2] for argument in argv)
    del given["resume"]
    with cli.sentences():
        start.check_alone()
        launcher = _launcher(given)
        jobs, refused = _unfinished(folder, given)
        for job in jobs:
            start.check(launcher, job.config.trainer)
    if not jobs and not refused:
        log.info(f"nothing is left to do in {folder}")
    reasons = start.elsewhere(jobs, folder, launcher)
    if reasons is None:  # the jobs are submitted
        failed = False
    else:
        refused |= {path.name: reason for path, reason in reasons.items()}
        failed = sweep.tell(folder)
    for name, reason in refused.items():
        print(f"failed: {name}: {reason}")
    raise SystemExit(1 if failed or refused else 0)


def _launcher(given: dict[str, str]) -> DictConfig:
    """The launcher's options, which are taken out of those that were typed."""
    names = [name for name in given if name.lstrip("+").partition(".")[0] == "launcher"]
    typed = cli.compose("config", [f"{name}={given.pop(name)}" for name in names])
    options: DictConfig = typed.launcher
    return options


def _unfinished(sweep_folder: Path, given: dict[str, str]) -> tuple[list[Job], dict[str, str]]:
    """The runs of a sweep that have not begun, or not ended, and why others cannot go on, by name.

    The log names those that have ended.
    """
    jobs: list[Job] = []
    broken: dict[str, str] = {}
    over: dict[str, list[str]] = {"finished": [], "diverged, so left as they are": []}
    for folder in _runs(sweep_folder):
        try:
            job = _job(sweep_folder, folder, given)
            epochs = check_whole("max_epochs", job.config.max_epochs, 1)
            more = "max_epochs" in given and _epochs(folder) < epochs
        except (ValueError, TypeError, OmegaConfBaseException) as error:  # perhaps a stranger's
            broken[folder.name] = first_line(error)
            continue
        if diverged_in(folder) is not None:
            over["diverged, so left as they are"].append(folder.name)
        elif earlier_run.has_ended(folder) and not more:
            over["finished"].append(folder.name)
        else:
            jobs.append(job if job.planned is None else plan.write(job, sweep_folder))
    for why, names in over.items():
        if names:
            log.info(f"{why}: {', '.join(names)}")
    if broken and not jobs and not any(over.values()):
        raise UserError(next(iter(broken.values())))
    return jobs, broken


def _job(sweep_folder: Path, folder: Path, given: dict[str, str]) -> Job:
    """The run in that folder, by its own config; ValueError where it cannot go on.

    One without a checkpoint begins anew, unless it has ended meanwhile: the run itself looks.
    """
    reading.inside(sweep_folder, folder.relative_to(sweep_folder))
    options = [f"{name}={value}" for name, value in given.items()]
    if checkpoints.present(folder):
        config = resuming.changed_config(folder, dict(given))
        return Job(folder.absolute(), config, [f"resume={folder}", *options])
    planned = plan.place(folder.absolute(), sweep_folder)
    for name in (CONFIG, HYDRA, OVERRIDES):  # which are written, or copied into the run's folder
        reading.inside(sweep_folder, os.path.relpath(planned / name, sweep_folder.absolute()))
    source = planned if (planned / CONFIG).is_file() else folder
    config = resuming.changed_config(source, dict(given))
    OmegaConf.update(config, "overwrite", False, force_add=True)
    return Job(folder.absolute(), config, options, planned=planned, again=f"resume={sweep_folder}")


def _runs(sweep_folder: Path) -> list[Path]:
    """The folders of all runs that were planned or have begun."""
    planned = sweep_folder / PLANNED
    found = {path.parent.parent.relative_to(planned) for path in planned.rglob(CONFIG)}
    begun = sweep_folder.glob(f"*/{CONFIG}")
    found |= {path.parent.parent.relative_to(sweep_folder) for path in begun}
    return in_order(sweep_folder / name for name in found)


def _epochs(folder: Path) -> int:
    """How many epochs the run has had."""
    if not (folder / METRICS).is_file():
        return 0
    return len(metrics_file.read(folder).columns.get("epoch", ()))
