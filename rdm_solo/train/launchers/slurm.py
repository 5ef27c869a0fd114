"""``launcher=slurm``: each run of a sweep is a job of SLURM.

submitit writes the batch scripts and submits them. In a job it starts the command that trains one
run, in its own place, so that signals reach the run's own handlers: before each time limit the
run's first process asks SLURM to requeue the job, and submitit does not. Whether a job has ended is
asked of squeue, which answers on clusters without accounting, too.
"""

import contextlib
import importlib.util
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.messages import UserError, check_number, check_switch, check_whole, shown
from rdm_solo.runs.files import SIGNALS
from rdm_solo.train import signals
from rdm_solo.train.launchers import gpus
from rdm_solo.train.launchers.following import Followed, follow
from rdm_solo.train.launchers.plan import Job

log = logging.getLogger("rdm_solo")

OUTPUTS = ".slurm"  # in the sweep's folder: batch scripts and what the runs print
NAMED = "SLURM job "  # before its number
WARNED_BEFORE = 90  # seconds before the time limit


def run(jobs: Sequence[Job], folder: Path, launcher: DictConfig) -> dict[Path, str] | None:
    """Submit the jobs and wait until they have ended.

    Returns, by folder, the reason of each failed run that left none in its folder; None with
    ``launcher.wait=false``, which only submits.
    """
    gpus.warn_where_none_are_asked_for(jobs)
    submitted: list[Followed] = []
    try:
        for shape, alike in _by_shape(jobs).items():
            submitted += _submit_undisturbed(shape, alike, folder, launcher)
            signals.check()
    except BaseException:  # the user has not been told the numbers of those that were submitted
        for job in submitted:
            subprocess.run(["scancel", job.id.removeprefix(NAMED)], timeout=60)
        raise
    numbers = [job.id.removeprefix(NAMED) for job in submitted]
    arrays = ",".join(dict.fromkeys(number.partition("_")[0] for number in numbers))
    log.info(f"{len(jobs)} runs are submitted as SLURM jobs {arrays}, in {folder}")
    log.info(f"    squeue --me --job {arrays}    shows them")
    log.info(f"    scancel {arrays}    ends them")
    log.info(f"    {folder / OUTPUTS}    has what they print")
    if not launcher.wait:
        log.info(f"a table and pictures of what there is: python -m rdm_solo.report {folder}")
        log.info("once none of these jobs is left, what is missing can be submitted again:")
        log.info(f"    python -m rdm_solo.train {shlex.quote(f'resume={folder}')} launcher=slurm")
        return None
    try:
        return follow(submitted, _states, _why_it_failed)
    except KeyboardInterrupt:
        log.info(f"the SLURM jobs go on without this command; scancel {arrays} ends them")
        raise


@dataclass(frozen=True)
class Shape:
    """What a job asks of SLURM: nodes, and tasks and GPUs on each of them."""

    nodes: int
    tasks: int
    gpus: int

    @classmethod
    def of(cls, trainer: DictConfig) -> "Shape":
        """The shape of a run; ValueError where the config does not say how many devices it takes.

        >>> trainer = OmegaConf.create({"accelerator": "gpu", "devices": 4, "num_nodes": 2})
        >>> Shape.of(trainer)
        Shape(nodes=2, tasks=4, gpus=4)
        """
        on_gpu = gpus.are_asked_for(trainer)
        devices = trainer.devices
        if devices == "auto" and trainer.accelerator == "cpu":
            devices = 1
        tasks = check_whole("with launcher=slurm, trainer.devices", devices, 1)
        return cls(check_whole("trainer.num_nodes", trainer.num_nodes, 1), tasks, tasks * on_gpu)


def check(launcher: DictConfig, trainer: DictConfig) -> None:
    """Refuse options that SLURM could not use, and a machine without SLURM."""
    Shape.of(trainer)
    check_number("launcher.minutes", launcher.minutes, 1)
    check_switch("launcher.wait", launcher.wait)
    check_switch("launcher.requeue", launcher.requeue)
    for name, least in (("cpus", 1), ("memory", 0)):
        if launcher[name] is not None:
            check_number(f"launcher.{name}", launcher[name], least, alternative="null")
    _setup(launcher)
    if launcher.options is not None and not OmegaConf.is_dict(launcher.options):
        raise UserError(
            "launcher.options must be options of sbatch with their values, such as "
            f"'launcher.options={{account: me, constraint: a100}}', got {shown(launcher.options)}."
        )
    if importlib.util.find_spec("submitit") is None:
        raise UserError(
            "launcher=slurm needs the package submitit, which is not installed: pip install "
            "submitit, or leave launcher=slurm out."
        )
    if shutil.which("sbatch") is None:
        raise UserError(
            "launcher=slurm needs SLURM's program sbatch, which this machine does not have: start "
            "the command on the cluster's login node, or take launcher=local."
        )


def _setup(launcher: DictConfig) -> list[str]:
    """Lines of the batch script before the run: a list, or one line as it is."""
    typed = launcher.setup
    if typed is None or isinstance(typed, str):
        return [typed] if typed else []
    if OmegaConf.is_list(typed) and all(isinstance(line, str) for line in typed):
        return list(typed)
    raise UserError(
        "launcher.setup must be a line of the batch script or a list of them, such as "
        f'\'launcher.setup=["module load cuda", "conda activate rdm"]\', got {typed}.'
    )


def _by_shape(jobs: Sequence[Job]) -> dict[Shape, list[Job]]:
    found: dict[Shape, list[Job]] = {}
    for job in jobs:
        found.setdefault(Shape.of(job.config.trainer), []).append(job)
    return found


def _submit_undisturbed(
    shape: Shape, jobs: Sequence[Job], folder: Path, launcher: DictConfig
) -> list[Followed]:
    """Submit jobs of one shape, and answer a signal once their numbers are known.

    Ctrl-C in a terminal would reach sbatch, too. It inherits which signals are blocked in the
    thread that starts it; here they are not, so that a second one ends this command.
    """
    blocked = {"initializer": signal.pthread_sigmask, "initargs": (signal.SIG_BLOCK, SIGNALS)}
    with signals.waiting(), ThreadPoolExecutor(1, **blocked) as thread:
        return thread.submit(_submit, shape, jobs, folder, launcher).result()


def _submit(
    shape: Shape, jobs: Sequence[Job], folder: Path, launcher: DictConfig
) -> list[Followed]:
    """Submit jobs of one shape as an array."""
    # Which signal submitit asks SLURM for; it reads the variable when it is imported.
    os.environ["SUBMITIT_PREEMPT_SIGNAL"] = "USR1"
    import submitit

    typed: Any = OmegaConf.to_container(launcher.options, resolve=True) if launcher.options else {}
    more: dict[str, Any] = {"requeue" if launcher.requeue else "no-requeue": True, **typed}
    wanted = {
        "job_name": "rdm_solo",
        "partition": launcher.partition,
        "time": launcher.minutes,
        "nodes": shape.nodes,
        "ntasks_per_node": shape.tasks,
        "gpus_per_node": shape.gpus or None,
        "cpus_per_task": launcher.cpus,
        "mem": None if launcher.memory is None else f"{round(launcher.memory * 1024)}M",
        "setup": _setup(launcher),
        "signal_delay_s": WARNED_BEFORE,
        "array_parallelism": launcher.jobs or len(jobs),
        "stderr_to_stdout": True,
        "additional_parameters": more,
    }
    executor = submitit.SlurmExecutor(folder=(folder / OUTPUTS).absolute())
    executor.update_parameters(**{name: value for name, value in wanted.items() if value})
    try:
        with executor.batch():
            made = [executor.submit(os.execvp, "env", _command(job, folder)) for job in jobs]
    except (submitit.core.utils.FailedJobError, subprocess.CalledProcessError, OSError) as error:
        errors = [line for line in str(error).splitlines() if "error:" in line]
        raise UserError(f"SLURM refuses the jobs: {errors[-1] if errors else error}") from error
    return [
        Followed(job, f"{NAMED}{at.job_id}", Path(at.paths.stdout)) for job, at in zip(jobs, made)
    ]


def _command(job: Job, folder: Path) -> list[str]:
    """The program env, the variables that it sets, and the command that trains the run."""
    variables = [f"{name}={value}" for name, value in job.variables(folder).items()]
    return ["env", *variables, sys.executable, "-u", "-m", "rdm_solo.train", *job.options]


def _states() -> dict[str, str] | None:
    """State, and node or reason, of the user's jobs that wait or run; None where SLURM is silent.

    A job that was submitted is there from the first moment, also while it is requeued.
    """
    command = ["squeue", "--me", "--noheader", "--array", "--format=%i|%T %R"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode:
        return None
    lines = [line.strip().split("|", 1) for line in done.stdout.splitlines() if "|" in line]
    return {f"{NAMED}{number}": state for number, state in lines}


def _why_it_failed(job: Followed) -> str | None:
    """The reason of a run that has not finished, unless its folder has one."""
    if job.has_finished() or job.has_left_a_reason():
        return None
    if error := job.last_error():
        return error
    state = _last_state(job.id.removeprefix(NAMED))
    if not state and not job.output.exists():
        return f"{job.id} was cancelled before it began"
    return f"{job.id} has ended{f' as {state}' if state else ''}; see {job.output}"


def _last_state(number: str) -> str:
    """How a job ended, as far as the cluster still knows: it forgets after some minutes."""
    command = ["scontrol", "--oneliner", "show", "job", number]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        words = dict(word.partition("=")[::2] for word in done.stdout.split())
        return words.get("JobState", "")
    return ""
