"""Start each run of a sweep in its own process, under any launcher."""

import datetime
import logging
import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rdm_solo import runs
from rdm_solo.cli.arguments import compose, in_quotes, quote
from rdm_solo.cli.resolvers import register_resolvers, time_or_job
from rdm_solo.runs import ownership
from rdm_solo.runs.files import CONFIG
from rdm_solo.train import checks
from rdm_solo.train.processes import PARENT, SWEEP_FOLDER, exit_with_parent

log = logging.getLogger("rdm_solo")

# Hydra's own options that a sweep passes on to its runs.
LOGGING = ("hydra.verbose=", "hydra/job_logging=", "hydra.job_logging.")

# A launcher's workers import this module for run_command, then compose the config.
register_resolvers()


def with_folder(argv: Sequence[str]) -> list[str]:
    """Add ``hydra.sweep.dir`` to a sweep's arguments if they lack it.

    Workers compose the config later, perhaps in a SLURM job, and would choose a different folder.
    """
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # else Ray 2.60 copies the folder
    if any(option.startswith("hydra.sweep.dir=") for option in argv):
        return list(argv)
    now = f"{datetime.datetime.now():%Y-%m-%d_%H-%M-%S-%f}"
    return [*argv, f"hydra.sweep.dir=runs/{time_or_job(now, argv)}_sweep"]


def runs_of(arguments: Sequence[str]) -> list[list[str]]:
    """Return the options of each run of a sweep."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(arguments))
    return BasicSweeper.split_arguments(parsed, None)[0]


def check_all(argv: Sequence[str]) -> None:
    """Check the config of every run before the first one starts.

    Sweeps with flags such as ``--config-dir``, or with a sweeper that chooses values later, are not
    checked in advance.
    """
    options = [argument for argument in quote(argv) if not argument.startswith("-")]
    has_flags = len(argv) - len(options) > 1  # besides -m
    sweeper = compose("config", argv, with_hydra=True).hydra.sweeper
    if has_flags or not sweeper._target_.endswith(".BasicSweeper"):
        return
    preset = sweeper.params or {}
    swept = [f"{name}={values}" for name, values in preset.items()]
    for overrides in runs_of([*swept, *options]):
        checks.check(compose("config", overrides, with_hydra=True))


def run_command(cfg: DictConfig) -> float:
    """Train one run of a sweep in a new process and return its ``optimized_metric``.

    Launchers call this. A failed run returns NaN, so that the sweep continues.
    """
    from hydra.core.hydra_config import HydraConfig

    # joblib's workers are children of the sweep and would outlive it if it were killed.
    if os.environ.get(PARENT) == str(os.getppid()):
        exit_with_parent()
    return start(HydraConfig.get(), cfg.optimized_metric)


def start(hydra: Any, metric: str, variables: Mapping[str, str] = {}) -> float:
    """Start a sweep's job in a new process, wait for it and return its metric."""
    folder = Path(hydra.runtime.output_dir)
    environment = {
        **os.environ,
        **variables,
        PARENT: str(os.getpid()),
        SWEEP_FOLDER: Path(hydra.sweep.dir).name,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "rdm_solo.train", *_arguments(hydra, folder)],
        cwd=hydra.runtime.cwd,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=_ignore_slurm_signals if "SLURM_JOB_ID" in environment else None,
    )
    reason = ""
    try:
        for line in process.stderr or ():
            sys.stderr.write(line)
            if line.startswith("error: "):
                reason = line.removeprefix("error: ").strip()
    except KeyboardInterrupt:
        announce_resume(hydra.sweep.dir)
        raise
    finally:
        status = process.wait()
    if status == 0:
        return runs.load(folder).last(metric)
    if not (folder / CONFIG).is_file():  # otherwise the run itself has recorded why it failed
        folder.mkdir(parents=True, exist_ok=True)
        ownership.record_failure(folder, reason or _cause(status))
    return math.nan


def _ignore_slurm_signals() -> None:
    """Ignore SLURM's signals before a time limit: submitit handles them in the parent process."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _cause(status: int) -> str:
    """Describe the status of a process that failed; a negative one is the signal that ended it.

    >>> _cause(-15), _cause(3)
    ('ended by SIGTERM', 'exit status 3')
    """
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"exit status {status}"


def announce_resume(folder: str) -> None:
    """Log the command that resumes a sweep."""
    log.info(f"to resume the sweep: rdm-solo train {shlex.quote(f'resume={folder}')}")


def _arguments(hydra: Any, folder: Path) -> list[str]:
    """Return the command-line options of one run of a sweep."""
    arguments = []
    for source in hydra.runtime.config_sources:
        if source.provider == "command-line":
            arguments.append(f"--config-dir={source.path}")
    arguments += [option for option in hydra.overrides.task if not option.startswith("launcher=")]
    arguments += [option for option in hydra.overrides.hydra if option.startswith(LOGGING)]
    return [*arguments, f"hydra.run.dir={in_quotes(folder)}"]
