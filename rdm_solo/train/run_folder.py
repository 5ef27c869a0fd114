"""Which folder a run may write to, and what happens to a run that is there already."""

import logging
import os
import shlex
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from rdm_solo.cli import quote_paths, slurm, torchrun
from rdm_solo.messages import UserError
from rdm_solo.runs import earlier_run, ownership
from rdm_solo.runs.files import CHECKPOINT, CONFIG, OWNER, write_whole, writing
from rdm_solo.runs.saved_config import run_config
from rdm_solo.runs.settings import SETTING, differences
from rdm_solo.train import environment

log = logging.getLogger("rdm_solo")


class Finished(Exception):
    """A run that had ended was started again: there is nothing to do."""


def check(cfg: DictConfig, folder: Path, first: bool) -> bool:
    """Whether the folder's earlier run is to be removed; FolderTaken where it must not be.

    Of a run's processes the ``first`` alone refuses a folder.

    A run that was started again, as by SLURM, goes on: then ``cfg.resume`` is the folder
    afterwards. On the disk, nothing is changed.
    """
    overwrite = bool(cfg.get("overwrite"))  # which configs of earlier versions lack
    in_place = bool(cfg.resume) and Path(cfg.resume).resolve() == folder.resolve()
    if in_place and overwrite:
        raise UserError(
            f"overwrite=true would remove the run that resume={cfg.resume} goes on with; leave "
            "one of them out."
        )
    if in_place or not earlier_run.holds_run(folder):
        return overwrite
    again = _started_again(folder)
    # What a sweep starts again has its own config, in which more epochs may have been typed.
    if again and (environment.STARTED_AGAIN in os.environ or not _differences(cfg, folder)):
        return _begins_anew(cfg, folder, again if first else None)
    if overwrite or not first:
        return overwrite
    raise ownership.FolderTaken(
        f"{folder} holds a run: give another hydra.run.dir, go on with "
        f"{shlex.quote(f'resume={folder}')} alone, or start over with overwrite=true, which "
        "removes that run once the new one has ended an epoch."
    )


def end_what_was_cut_short(folder: Path) -> None:
    """Put the earlier run back where the one that was to take its place was killed too soon."""
    if earlier_run.unfinished(folder):
        with ownership.owned(folder) as before:
            came_back = False
            try:
                came_back = earlier_run.put_back(folder)
            finally:
                if not came_back:
                    (folder / OWNER).write_bytes(before)


def _started_again(folder: Path) -> str | None:
    """Who has started the folder's run again, as a sentence; None where it is another run."""
    if slurm.requeued() and ownership.last_owner(folder).get("slurm_job") == slurm.job():
        return f"SLURM has started job {slurm.job()} again"
    if torchrun.folder_before() == str(folder):
        return "torchrun has started this run again"
    who = os.environ.get(environment.STARTED_AGAIN)
    if who and os.environ.get(environment.FOLDER) == str(folder):
        return f"{who} has started this run again"
    return None


def _differences(cfg: DictConfig, folder: Path) -> list[str]:
    path = folder / CONFIG
    return differences(run_config(folder), cfg, (*SETTING, "seed")) if path.is_file() else [CONFIG]


def _begins_anew(cfg: DictConfig, folder: Path, again: str | None) -> bool:
    """What is done with a run that was started again: goes on, or False; begins anew, or True.

    ``again`` says who has started it; None in processes that have nothing to say.
    """
    if earlier_run.has_ended(folder):
        raise Finished(f"{again or 'it was started again'}; its run in {folder} has finished.")
    goes_on = any((folder / CHECKPOINT).parent.glob("*.ckpt"))
    if goes_on:
        cfg.resume = str(folder)
    if again:
        what = "goes on" if goes_on else "begins anew, since no epoch was saved,"
        log.info(f"{again}: its run {what} in {folder}")
    return not goes_on


def write_config(folder: Path, **saved: Any) -> None:
    """Write configs into the folder, each as a file of its name: config, hydra, overrides."""
    path = folder / CONFIG
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    for name, node in saved.items():
        write_whole(path.with_stem(name), OmegaConf.to_yaml(node))


class Folders(Callback):
    """Hydra's callback by which a refused command leaves nothing behind.

    Hydra makes the run's folder before it calls the job; here the job makes it, once the command
    is known to be good. A sweep's folder, unless it was typed, is made under a name that is free.
    """

    def __init__(self) -> None:
        self.wanted: str | None = None

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            self.wanted = str(config.hydra.run.dir)
        except OmegaConfBaseException:  # Hydra says so itself
            return
        _set(config, "hydra.run.dir", ".")

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        from hydra.core.hydra_config import HydraConfig

        if self.wanted is not None:
            known = HydraConfig.instance().cfg
            _set(known, "hydra.run.dir", self.wanted)
            _set(known, "hydra.runtime.output_dir", str(Path(self.wanted).absolute()))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        if typed(config, "sweep.dir"):
            return
        with earlier_run.new_folder(Path(config.hydra.sweep.dir)) as wanted:
            (wanted / "multirun.yaml").touch()  # Hydra writes it next
        _set(config, "hydra.sweep.dir", str(wanted))
        with read_write(config.hydra.overrides):  # from which Hydra composes each job
            config.hydra.overrides.hydra.extend(quote_paths([f"hydra.sweep.dir={wanted}"]))


def typed(config: DictConfig, key: str) -> bool:
    """Whether the user gave that key of Hydra's."""
    return any(
        line.lstrip("+").startswith(f"hydra.{key}=") for line in config.hydra.overrides.hydra
    )


def _set(config: DictConfig | None, key: str, value: str) -> None:
    if config is not None:
        with read_write(config), read_write(config.hydra):
            OmegaConf.update(config, key, value)
