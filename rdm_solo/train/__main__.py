"""The command python -m rdm_solo.train: a run, or the runs of a sweep."""

import logging
import sys
from pathlib import Path
from typing import Any

from rdm_solo import cli
from rdm_solo.messages import UserError
from rdm_solo.train import processes

log = logging.getLogger("rdm_solo")


def main() -> None:
    """Run the command."""
    processes.end_with_parent()
    with cli.errors_as_sentences():
        job = _start
        if any(option.startswith("resume=") for option in sys.argv):
            from rdm_solo.train import resume

            sys.argv[1:] = resume.expand(sys.argv[1:])
        if not {"-m", "--multirun"}.isdisjoint(sys.argv):
            from rdm_solo.train import sweep

            sys.argv[1:] = sweep.with_folder(sys.argv[1:])
            job = sweep.run_command
        cli.command(job, "config", hydra_too=True)


def _start(cfg: Any) -> None:
    """Train one run in the folder that Hydra's config names."""
    from omegaconf import open_dict

    overrides, folder = list(cfg.hydra.overrides.task), Path(cfg.hydra.run.dir)
    is_given = any(option.startswith("hydra.run.dir=") for option in cfg.hydra.overrides.hydra)
    if processes.started_by_torchrun() and not is_given:
        raise UserError(
            "give hydra.run.dir=FOLDER under torchrun: its processes would each choose a name."
        )
    with open_dict(cfg):
        del cfg.hydra
    if processes.is_first():
        p = "" if cfg.p is None else f", p={cfg.p}"
        setting = f"{cfg.method.name}, {cfg.filter.name}{p}, {cfg.dataset.name}"
        log.info(f"{setting}: {cfg.max_epochs} epochs, seed {cfg.seed}, in {folder}")
    # Lightning starts the other processes of a run by this process's arguments.
    sys.argv[1:] = [*sys.argv[1:], f"hydra.run.dir='{folder.absolute()}'"]
    from rdm_solo.train.run import run
    from rdm_solo.train.stopping import Stopped

    try:
        run(cfg, folder, overrides=overrides)
    except Stopped as stop:
        raise SystemExit(stop.status) from None


if __name__ == "__main__":
    main()
