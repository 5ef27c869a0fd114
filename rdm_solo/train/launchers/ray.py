"""``launcher=ray``: each run of a sweep is a task of Ray.

A task starts the command that trains one run, in a process of its own. Hydra's own plugin for Ray
calls the job inside Ray's worker instead, where signals and the processes of DDP belong to Ray.
"""

import importlib.util
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rdm_solo.messages import UserError, check_number, check_whole
from rdm_solo.train import signals
from rdm_solo.train.environment import PARENT, STARTED_AGAIN, THREADS
from rdm_solo.train.launchers import devices, gpus
from rdm_solo.train.launchers.following import Followed, follow
from rdm_solo.train.launchers.plan import Job

log = logging.getLogger("rdm_solo")

OUTPUTS = ".ray"  # in the sweep's folder: what the runs print
# A file beside a run's log, by which the run is asked to end: Ray's workers ignore the signal by
# which Ray would cancel a task (ray 2.60).
STOP = ".stop"
TO_END = 60  # seconds that a run has to write its summary


def check(launcher: DictConfig, trainer: DictConfig) -> None:
    """Refuse what Ray could not use, and a machine without it."""
    check_number("launcher.cpus", launcher.cpus, above=0)
    check_whole("launcher.retries", launcher.retries, 0)
    _gpus(trainer)
    if trainer.num_nodes != 1:
        raise UserError(
            f"launcher=ray keeps a run on one machine, got trainer.num_nodes={trainer.num_nodes}; "
            "launcher=slurm has jobs of several nodes."
        )
    if importlib.util.find_spec("ray") is None:
        raise UserError(
            "launcher=ray needs the package ray, which is not installed: pip install ray, or leave "
            "launcher=ray out."
        )


def run(jobs: Sequence[Job], folder: Path, launcher: DictConfig) -> dict[Path, str]:
    """Run the jobs on the cluster.

    Returns, by folder, the reason of each failed run that left none in its folder.
    """
    import ray

    try:
        _connect(launcher.address)
        there = ray.cluster_resources()
        check_room(jobs, launcher, [node["Resources"] for node in ray.nodes() if node["Alive"]])
        log.info(f"{len(jobs)} runs on Ray, which has {_of(there)}, in {folder}")
        if there.get("GPU") or not _starts_here(launcher.address):
            gpus.warn_where_none_are_asked_for(jobs)
        (folder / OUTPUTS).mkdir(parents=True, exist_ok=True)
        return _Tasks(jobs, folder, launcher).until_all_have_ended()
    finally:
        ray.shutdown()


def _starts_here(address: str | None) -> bool:
    """Whether this command starts the cluster, on this machine and for this sweep alone."""
    return address in (None, "local")


def _connect(address: str | None) -> None:
    """Start a cluster, or join the one at that address; ValueError where that fails."""
    import ray

    try:
        _check_that_somebody_listens(address or "")
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray has errors of many kinds, of none in particular, too
        reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
        if _starts_here(address):
            raise UserError(f"launcher=ray: Ray cannot be started ({reason}).") from error
        raise UserError(
            f"launcher.address={address}: no Ray cluster can be joined ({reason}); start one "
            "with `ray start --head`, or leave launcher.address out."
        ) from error
    except SystemExit as left:  # Ray's handler of SIGTERM, while it starts (ray 2.60)
        if left.code != signal.SIGTERM:
            raise
        raise signals.Stopped(signal.SIGTERM) from left
    signals.take_back()  # from that handler


def _check_that_somebody_listens(address: str) -> None:
    """OSError where nobody does at ``host:port``: Ray (2.60) tries for more than five minutes."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "")  # which Ray then takes
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def check_room(
    jobs: Sequence[Job], launcher: DictConfig, machines: Sequence[Mapping[str, float]]
) -> None:
    """Refuse runs for which no machine is large enough; a running cluster may get one that is.

    ``machines`` has each one's resources, as Ray names them.
    """
    for number in sorted({_gpus(job.config.trainer) for job in jobs}):
        if any(
            machine.get("CPU", 0) >= launcher.cpus and machine.get("GPU", 0) >= number
            for machine in machines
        ):
            continue
        wanted = _in_words(launcher.cpus, number)
        if _starts_here(launcher.address):
            raise UserError(
                f"launcher=ray: a run asks for {wanted}, and this machine has "
                f"{' and '.join(map(_of, machines))}: lower launcher.cpus or trainer.devices, take "
                "trainer=cpu, or name a larger cluster by launcher.address."
            )
        log.warning(
            f"warning: no machine of the Ray cluster has {wanted}: runs that ask for it wait until "
            "one joins"
        )


class _Tasks:
    """The runs as Ray's tasks; at most ``launcher.jobs`` are handed over at once."""

    def __init__(self, jobs: Sequence[Job], folder: Path, launcher: DictConfig) -> None:
        import ray

        self.ray, self.launcher = ray, launcher
        self.train = ray.remote(_train)
        now = time.strftime("%Y-%m-%d_%H-%M-%S")  # another command writes other files
        outputs = (folder / OUTPUTS).absolute()
        self.waiting = [
            Followed(job, f"Ray task {number}", outputs / f"{now}_{number}.log")
            for number, job in enumerate(jobs)
        ]
        self.followed, self.folder = list(self.waiting), folder
        self.going_on: dict[str, Any] = {}
        self.ended: dict[str, str] = {}  # how, by id

    def until_all_have_ended(self) -> dict[Path, str]:
        try:
            return follow(self.followed, self.states, self.why_it_failed)
        except KeyboardInterrupt:
            for followed in self.followed:
                followed.output.with_suffix(STOP).touch()
                if followed.id in self.going_on and not followed.output.exists():
                    self.ray.cancel(self.going_on.pop(followed.id))  # it has not begun
            tasks = [*self.going_on.values()]
            if tasks:
                self.ray.wait(tasks, num_returns=len(tasks), timeout=TO_END)
            raise

    def states(self) -> dict[str, str]:
        """Those that wait or go on; hands over as many as there may be."""
        most = self.launcher.jobs or len(self.followed)
        while self.waiting and len(self.going_on) < most:
            self._hand_over(self.waiting.pop(0))
        done, _ = self.ray.wait(
            [*self.going_on.values()], num_returns=len(self.going_on), timeout=0
        )
        for name, task in [*self.going_on.items()]:
            if task in done:
                del self.going_on[name]
                try:
                    self.ended[name] = _how_it_ended(self.ray.get(task))
                except Exception as error:  # the machine is lost, or out of memory
                    self.ended[name] = f"has failed with {type(error).__name__}"
        left = [followed for followed in self.followed if followed.id not in self.ended]
        return {followed.id: self._state(followed) for followed in left}

    def _state(self, followed: Followed) -> str:
        if followed.id not in self.going_on:
            return f"waits, since launcher.jobs={self.launcher.jobs}"
        if followed.output.exists():
            return "runs"
        wanted = _in_words(self.launcher.cpus, _gpus(followed.job.config.trainer))
        return f"waits for {wanted}"

    def why_it_failed(self, followed: Followed) -> str | None:
        if followed.has_finished() or followed.has_left_a_reason():
            return None
        if error := followed.last_error():
            return error
        return f"{followed.id} {self.ended[followed.id]}; see {followed.output}"

    def _hand_over(self, followed: Followed) -> None:
        job, launcher = followed.job, self.launcher
        wanted = self.train.options(
            num_cpus=launcher.cpus,
            num_gpus=_gpus(job.config.trainer),
            max_retries=launcher.retries,
            name=job.name,
        )
        line = [sys.executable, "-u", "-m", "rdm_solo.train", *job.options]
        processes = devices.processes_of(job.config.trainer)
        variables = {
            # A worker of a running cluster has the environment of `ray start`, and a run has to
            # import what this command would.
            "PYTHONPATH": os.pathsep.join(sys.path),
            # Which Ray sets to all cores of the task, although its processes share them.
            THREADS: os.environ.get(THREADS) or str(max(1, int(launcher.cpus) // processes)),
            **job.variables(self.folder),
        }
        self.going_on[followed.id] = wanted.remote(line, variables, os.getcwd(), followed.output)


def _train(line: list[str], variables: Mapping[str, str], cwd: str, output: Path) -> int:
    """In one of Ray's workers: train one run; where the sweep is stopped, it writes its summary."""
    again = {STARTED_AGAIN: "Ray"} if output.exists() else {}
    with open(output, "ab") as file:
        process = subprocess.Popen(
            line,
            cwd=cwd,
            env={**os.environ, **variables, **again, PARENT: str(os.getpid())},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        while process.poll() is None:
            if output.with_suffix(STOP).exists():
                process.terminate()
                return process.wait()
            time.sleep(0.5)
    return process.returncode


def _how_it_ended(status: int) -> str:
    """What the exit status of a run that has failed says.

    >>> _how_it_ended(-9)
    'was ended by SIGKILL (perhaps the machine ran out of memory)'
    """
    if status < 0:
        return f"was ended by {signals.name(-status)}"
    return f"has ended with status {status}"


def _gpus(trainer: DictConfig) -> int:
    """GPUs that the run asks for; ValueError where the config does not say how many."""
    if not gpus.are_asked_for(trainer):
        return 0
    return check_whole("with launcher=ray, trainer.devices", trainer.devices, 1)


def _of(resources: Mapping[str, float]) -> str:
    """The cores and GPUs among the resources of a cluster or a machine, in words.

    >>> _of({"CPU": 8.0, "memory": 1e9})
    '8 cores'
    """
    return _in_words(resources.get("CPU", 0), resources.get("GPU", 0))


def _in_words(cores: float, number_of_gpus: float) -> str:
    """Cores and GPUs, in words.

    >>> _in_words(1, 0), _in_words(2, 1)
    ('1 core', '2 cores and 1 GPU')
    """
    counts = [(cores, "core"), (number_of_gpus, "GPU")]
    words = [f"{n:g} {word}{'' if n == 1 else 's'}" for n, word in counts if n or word == "core"]
    return " and ".join(words)
