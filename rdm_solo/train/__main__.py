"""Run ``rdm-solo train``: train one model, or every run of a sweep."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rdm_solo.cli import arguments, terminal
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.packages import TRAINING, check_installed
from rdm_solo.train import checks, processes

log = logging.getLogger("rdm_solo")


def main() -> None:
    """Run the command."""
    processes.exit_with_parent()
    with terminal.errors_without_traceback():
        check_installed("this command", *TRAINING)
        job: Callable[[Any], object] = _train
        if any(option.startswith("resume=") for option in sys.argv):
            from rdm_solo.train import resume

            sys.argv[1:] = resume.expand(sys.argv[1:])
        if not {"-m", "--multirun"}.isdisjoint(sys.argv):
            from rdm_solo.train import sweep

            sweep.check_all(sys.argv[1:])
            sys.argv[1:] = sweep.with_folder(sys.argv[1:])
            job = sweep.run_command
        arguments.command(job, "config", with_hydra=True)


def _train(cfg: Any) -> None:
    """Train one run in the folder ``hydra.run.dir``."""
    from omegaconf import open_dict

    overrides, folder = list(cfg.hydra.overrides.task), Path(cfg.hydra.run.dir)
    has_folder = any(option.startswith("hydra.run.dir=") for option in cfg.hydra.overrides.hydra)
    if processes.started_by_torchrun() and not has_folder:
        raise UserError(
            "under torchrun, pass hydra.run.dir=FOLDER: otherwise each process chooses its own."
        )
    with open_dict(cfg):
        del cfg.hydra
    if processes.is_rank_zero():
        p = "" if cfg.p is None else f", p={cfg.p}"
        log.info(f"Starting {cfg.method.name}, {cfg.filter.name}{p}, {cfg.dataset.name} ...")
    checks.check(cfg)
    # Lightning starts the run's other processes with this process's arguments.
    sys.argv[1:] = [*sys.argv[1:], f"hydra.run.dir='{folder.absolute()}'"]
    from rdm_solo.train.run import run
    from rdm_solo.train.stopping import Stopped

    try:
        run(cfg, folder, overrides=overrides)
    except Stopped as stop:
        raise SystemExit(stop.status) from None


if __name__ == "__main__":
    main()
