"""Start each run of a sweep in its own process, under any launcher, and print a table."""

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
from typing import TYPE_CHECKING, Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from rdm_solo.cli.arguments import compose, quote
from rdm_solo.cli.resolvers import register_resolvers, time_or_job
from rdm_solo.train import checks
from rdm_solo.train.processes import PARENT, SWEEP_FOLDER, exit_with_parent

if TYPE_CHECKING:  # Hydra imports this module even for --help
    import rdm_solo.runs.folder

log = logging.getLogger("rdm_solo")

HEADINGS = {
    "val/knn_acc1": "kNN",
    "val/acc1": "acc1",
    "erank/online": "online",
    "erank/target": "target",
    "erank/gap": "gap",
    "feature/spread": "spread",
}

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
    """Refuse a sweep in which the config of a run is not valid, before its first run."""
    flags = [argument for argument in argv if argument.startswith("-")]
    arguments = [argument for argument in argv if argument not in flags]
    if flags in (["-m"], ["--multirun"]) and not any("hydra/sweeper" in a for a in arguments):
        for options in runs_of(quote(arguments)):
            checks.check(compose("config", options, with_hydra=True))


def run_command(cfg: DictConfig) -> float:
    """Train one run of a sweep in a new process and return its ``optimized_metric``.

    Hydra's launchers call this. A failed run returns NaN, so that the sweep continues.
    """
    from hydra.core.hydra_config import HydraConfig

    # joblib's workers are children of the sweep and would outlive it if it were killed.
    if os.environ.get(PARENT) == str(os.getppid()):
        exit_with_parent()
    return start(HydraConfig.get(), cfg.optimized_metric)


def start(hydra: Any, metric: str, variables: Mapping[str, str] | None = None) -> float:
    """Start a sweep's job in a new process, wait for it and return its metric."""
    from rdm_solo.runs import files, ownership
    from rdm_solo.runs.files import CONFIG, SUMMARY

    folder = Path(hydra.runtime.output_dir)
    environment = {**os.environ, **(variables or {}), PARENT: str(os.getpid())}
    environment[SWEEP_FOLDER] = Path(hydra.sweep.dir).name
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
            reason = line.removeprefix("error: ") if line.startswith("error: ") else reason
    except KeyboardInterrupt:
        log.info(f"to resume the sweep: rdm-solo train {shlex.quote(f'resume={hydra.sweep.dir}')}")
        raise
    finally:
        status = process.wait()
    if status:
        if not (folder / CONFIG).is_file():  # failed before it wrote its config
            folder.mkdir(parents=True, exist_ok=True)
            ownership.record_failure(folder, reason.strip() or f"exit status {status}")
        return math.nan
    summary = files.read_object(folder, SUMMARY)
    last = summary.get("last", {}).get(metric)
    measured = summary.get("last_measured", {}).get(metric, {}).get("value")
    return float(last if last is not None else measured if measured is not None else math.nan)


def _arguments(hydra: Any, folder: Path) -> list[str]:
    """Return the command-line options of one run of a sweep."""
    options: Any = OmegaConf.to_object(hydra.overrides.task)
    sources = hydra.runtime.config_sources
    flags = [f"--config-dir={s.path}" for s in sources if s.provider == "command-line"]
    overrides = [option for option in options if not option.startswith("launcher=")]
    overrides += [option for option in hydra.overrides.hydra if option.startswith(LOGGING)]
    return [*flags, *overrides, f"hydra.run.dir='{folder}'"]


def _ignore_slurm_signals() -> None:
    """Ignore SLURM's signals before a time limit: submitit handles them in the parent process."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


class SweepTable(Callback):
    """Print a table of the runs when a sweep ends; exit with status 1 if a run failed."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        if print_table(Path(config.hydra.sweep.dir)):
            raise SystemExit(1)


def print_table(folder: Path) -> bool:
    """Print the table of the runs in a sweep's folder; return whether any run failed."""
    from rdm_solo import runs
    from rdm_solo.ground.errors import UserError
    from rdm_solo.runs import ownership

    try:
        members, errors = runs.scan([folder])
    except UserError:  # no run has started
        members, errors = [], {}
    begun = [run for run in members if run.epochs or run.diverged]
    reasons: dict[str, list[str]] = {}
    for path in sorted(folder.iterdir()):
        if reason := ownership.failure(path) or errors.get(path):
            reasons.setdefault(reason, []).append(path.name)
    print(f"\n{table(begun)}" if begun else "no run has finished an epoch")
    for reason, names in reasons.items():
        print(f"failed: {', '.join(names)}: {reason}")
    print(f"figures and tables on one page: rdm-solo report {shlex.quote(str(folder))}")
    return bool(reasons)


def table(runs: Sequence["rdm_solo.runs.folder.Run"]) -> str:
    """Format one row per setting: mean and standard deviation over seeds of the last values."""
    from rdm_solo.runs import groups

    columns = [name for name in HEADINGS if any(math.isfinite(run.last(name)) for run in runs)]
    if "val/knn_acc1" in columns and "val/acc1" in columns:  # one accuracy is enough
        columns.remove("val/acc1")

    def cells(group: Any) -> list[str]:
        counted = groups.counted_runs(group)
        seconds = [run.summary["seconds"] for run in counted if "seconds" in run.summary]
        values = [groups.format_latest(counted, name, 2) for name in columns]
        return [*values, groups.mean_std(seconds, 0), _warning_counts(group.runs)]

    headings = [*(HEADINGS[name] for name in columns), "seconds", ""]
    return groups.text_table(groups.by_setting(runs), headings, cells)


def _warning_counts(runs: Sequence["rdm_solo.runs.folder.Run"]) -> str:
    """Return the kinds of warning that one setting's runs raised, with counts."""
    kinds = [f"diverged in epoch {run.diverged}" for run in runs if run.diverged]
    kinds += [warning["kind"] for run in runs for warning in run.summary.get("warnings", [])]
    counts = [
        f"{kind} ({kinds.count(kind)} of {len(runs)})" if len(runs) > 1 else kind
        for kind in dict.fromkeys(kinds)
    ]
    return f"! {', '.join(counts)}" if counts else ""
