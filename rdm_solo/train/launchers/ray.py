"""``launcher=ray``: each run of a sweep is a task of Ray.

A task starts the command that trains one run, in a process of its own. Hydra's own plugin for Ray
calls the job inside Ray's worker instead, where signals and the processes of DDP belong to Ray.
"""

import importlib.util
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rdm_solo.messages import check_number, check_whole
from rdm_solo.train.environment import PARENT, STARTED_AGAIN
from rdm_solo.train.launchers.following import Followed, follow
from rdm_solo.train.launchers.plan import Job

log = logging.getLogger("rdm_solo")

LOGS = ".ray"  # in the sweep's folder: what the runs print
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
        raise ValueError(
            f"launcher=ray keeps a run on one machine, got trainer.num_nodes={trainer.num_nodes}; "
            "launcher=slurm has jobs of several nodes."
        )
    if importlib.util.find_spec("ray") is None:
        raise ValueError(
            "launcher=ray needs the package ray, which is not installed: pip install ray, or leave "
            "launcher=ray out."
        )


def run(jobs: Sequence[Job], folder: Path, launcher: DictConfig) -> dict[Path, str]:
    """Run the jobs on the cluster.

    Returns, by folder, the reason of each failed run that left none in its folder.
    """
    import ray

    (folder / LOGS).mkdir(parents=True, exist_ok=True)
    ray.init(address=launcher.address or "local", log_to_driver=False, logging_level=logging.ERROR)
    try:
        log.info(f"{len(jobs)} runs on Ray, {_of_cluster(ray.cluster_resources())}, in {folder}")
        return _Tasks(jobs, folder, launcher).until_all_have_ended()
    finally:
        ray.shutdown()


class _Tasks:
    """The runs as Ray's tasks; at most ``launcher.jobs`` are handed over at once."""

    def __init__(self, jobs: Sequence[Job], folder: Path, launcher: DictConfig) -> None:
        import ray

        self.ray, self.launcher = ray, launcher
        self.train = ray.remote(_train)
        now = time.strftime("%Y-%m-%d_%H-%M-%S")  # another command writes other files
        self.waiting = [
            Followed(job, f"Ray task {number}", (folder / LOGS / f"{now}_{number}.log").absolute())
            for number, job in enumerate(jobs)
        ]
        self.all, self.folder = list(self.waiting), folder
        self.going_on: dict[str, Any] = {}
        self.ended: dict[str, str] = {}  # why, by id; empty where the run ended by itself

    def until_all_have_ended(self) -> dict[Path, str]:
        try:
            return follow(self.all, self.states, self.why_it_failed)
        except KeyboardInterrupt:
            for followed in self.all:
                followed.output.with_suffix(STOP).touch()
                if followed.id in self.going_on and not followed.output.exists():
                    self.ray.cancel(self.going_on.pop(followed.id))  # it has not begun
            tasks = [*self.going_on.values()]
            self.ray.wait(tasks, num_returns=len(tasks), timeout=TO_END)
            raise

    def states(self) -> dict[str, str]:
        """Those that wait or go on; hands over as many as there may be."""
        most = self.launcher.jobs or len(self.all)
        while self.waiting and len(self.going_on) < most:
            self._hand_over(self.waiting.pop(0))
        done, _ = self.ray.wait(
            [*self.going_on.values()], num_returns=len(self.going_on), timeout=0
        )
        for name, task in [*self.going_on.items()]:
            if task in done:
                del self.going_on[name]
                try:
                    self.ray.get(task)
                    self.ended[name] = ""
                except Exception as error:  # the machine is lost, or out of memory
                    self.ended[name] = type(error).__name__
        there = {job.id: "handed to Ray" for job in self.all if job.id not in self.ended}
        return there | {job.id: "waiting for a free place" for job in self.waiting}

    def why_it_failed(self, followed: Followed) -> str | None:
        if followed.has_finished() or followed.has_left_a_reason():
            return None
        if error := followed.last_error():
            return error
        why = self.ended[followed.id]
        return f"{followed.id} has failed{f' with {why}' if why else ''}; see {followed.output}"

    def _hand_over(self, followed: Followed) -> None:
        job, launcher = followed.job, self.launcher
        wanted = self.train.options(
            num_cpus=launcher.cpus,
            num_gpus=_gpus(job.config.trainer),
            max_retries=launcher.retries,
            name=job.name,
        )
        line = [sys.executable, "-u", "-m", "rdm_solo.train", *job.options]
        variables = {"PYTHONPATH": os.pathsep.join(sys.path), **job.variables(self.folder)}
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


def _gpus(trainer: DictConfig) -> int:
    """GPUs that the run asks for; ValueError where the config does not say how many."""
    if trainer.accelerator not in ("gpu", "cuda"):
        return 0
    return check_whole("with launcher=ray, trainer.devices", trainer.devices, 1)


def _of_cluster(resources: Mapping[str, float]) -> str:
    """What a cluster has, in words.

    >>> _of_cluster({"CPU": 8.0, "memory": 1e9})
    'which has 8 cores'
    """
    gpus = f" and {resources['GPU']:g} GPUs" if resources.get("GPU") else ""
    return f"which has {resources.get('CPU', 0):g} cores{gpus}"
