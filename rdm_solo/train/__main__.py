"""Run ``rdm-solo train``: train one model, or every run of a sweep."""

import signal

interrupt = signal.getsignal(signal.SIGINT)
if __name__ == "__main__" and interrupt is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for Ctrl-C during the imports

import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rdm_solo.cli import arguments, terminal
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.packages import TRAINING, check_installed
from rdm_solo.runs import saved_config
from rdm_solo.runs.files import make_results_folder
from rdm_solo.train import checks, objective, processes, resume, sweep

log = logging.getLogger("rdm_solo")


def main() -> None:
    """Run the command."""
    processes.exit_with_parent()
    with terminal.errors_without_traceback():
        check_installed("this command", *TRAINING)
        argv = resume.expand(sys.argv[1:])
        if not arguments.uses_hydra_flag(argv):
            _start_run(argv)
            return
        with arguments.hydra_errors_as_user_errors("config", argv):
            if "-m" in argv or "--multirun" in argv:
                sweep.check_all(argv)
                argv = objective.with_direction(sweep.with_folder(argv))
                arguments.run_hydra(sweep.run_command, "config", argv)
            else:  # --help, --cfg and so on
                arguments.run_hydra(_train, "config", argv)


def _start_run(argv: Sequence[str]) -> None:
    """Check the config, then start one run as a Hydra app in the folder ``hydra.run.dir``.

    ``compose`` and ``run_hydra`` both read ``conf/config.yaml`` with the options in ``argv``, and
    ``run_hydra`` calls :func:`_train` with the result. The config is composed twice, because Hydra
    makes the folder before it calls the job, and a refused command must leave no folder behind.
    """
    has_folder = any(option.startswith("hydra.run.dir=") for option in argv)
    if processes.started_by_torchrun() and not has_folder:
        raise UserError(
            "under torchrun, pass hydra.run.dir=FOLDER: otherwise each process chooses its own."
        )
    cfg = arguments.compose("config", argv, with_hydra=True)
    checks.check(cfg)
    if not cfg.hydra.run.dir:  # as with $UNSET in a script
        raise UserError("hydra.run.dir is empty: pass a folder, or leave it out.")
    folder = Path(cfg.hydra.run.dir)  # its name may contain the time
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        make_results_folder(folder, "another hydra.run.dir")
        run_dir = f"hydra.run.dir={arguments.in_quotes(folder)}"
        arguments.run_hydra(_train, "config", [*argv, run_dir])
    finally:
        with contextlib.suppress(OSError):  # a run has written to them
            for path in new_folders:
                path.rmdir()


def _train(cfg: Any) -> None:
    """Train one run; Hydra calls this."""
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir if hydra.job.chdir else hydra.run.dir)
    with terminal.errors_without_traceback():
        if processes.SWEEP_FOLDER in os.environ:
            terminal.only_warnings()
        if processes.is_rank_zero():
            log.info(f"Starting {saved_config.title(cfg)} ...")
        from rdm_solo.ground.devices import check_accelerator  # with torch: seconds

        check_accelerator(cfg.trainer.accelerator)
        from rdm_solo.train.run import run  # with Lightning and solo-learn: more seconds
        from rdm_solo.train.stopping import Stopped

        try:
            run(cfg, folder, overrides=list(hydra.overrides.task))
        except Stopped as stop:
            raise SystemExit(stop.status) from None


if __name__ == "__main__":
    signal.signal(signal.SIGINT, interrupt)
    main()
