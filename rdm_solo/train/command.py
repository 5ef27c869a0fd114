"""The command python -m rdm_solo.train: a run, or the runs of a sweep."""

import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf, open_dict

from rdm_solo import cli
from rdm_solo.messages import UserError
from rdm_solo.train import processes, resume, sweep

log = logging.getLogger("rdm_solo")


def main() -> None:
    """Run the command."""
    processes.end_with_parent()
    with cli.errors_as_sentences():
        sys.argv[1:] = sweep.with_folder(resume.expand(sys.argv[1:]))
    cli.command(_start, "config", sweep_job=sweep.run_command, hydra_too=True)


def _start(cfg: Any) -> None:
    """Train one run in the folder that Hydra's config names."""
    overrides, folder = OmegaConf.to_object(cfg.hydra.overrides.task), Path(cfg.hydra.run.dir)
    is_given = any(option.startswith("hydra.run.dir=") for option in cfg.hydra.overrides.hydra)
    with open_dict(cfg):
        del cfg.hydra
    if processes.started_by_torchrun() and not is_given:
        raise UserError(
            "give hydra.run.dir=FOLDER under torchrun: its processes would each choose a name."
        )
    from rdm_solo.train import folders

    is_named_after_time = not is_given and folder.name[:1].isdigit()
    with folders.new_folder(folder) if is_named_after_time else nullcontext(folder) as folder:
        if processes.is_first():
            words = [cfg.method.name, cfg.filter.name, "" if cfg.p is None else f"p={cfg.p}"]
            run = ", ".join(str(w) for w in [*words, cfg.dataset.name] if w not in ("", "none"))
            log.info(f"{run}: {cfg.max_epochs} epochs, seed {cfg.seed}, in {folder}")
        # Lightning starts the other processes of a run by this process's arguments.
        sys.argv[1:] = [*sys.argv[1:], f"hydra.run.dir='{folder.absolute()}'"]
        from rdm_solo.train.run import run as train
        from rdm_solo.train.stopping import Stopped

        try:
            train(cfg, folder, overrides=overrides)
        except Stopped as stop:
            raise SystemExit(stop.status) from None
