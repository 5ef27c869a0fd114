"""Divides a machine's GPUs, or its CPU's cores, among the runs of a sweep."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch
from omegaconf import DictConfig

from rdm_solo.train import derived_values
from rdm_solo.train.environment import THREADS

GPUS = "CUDA_VISIBLE_DEVICES"

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """The part of a machine that one run has."""

    gpus: tuple[str, ...] = ()  # their names, as CUDA_VISIBLE_DEVICES has them
    cores: tuple[int, ...] = ()  # of the CPU; of a GPU's run, none in particular
    threads: int | None = None  # of each of the run's processes; None: as the run decides

    def variables(self) -> dict[str, str]:
        """What the environment says of this share; a number of threads that was typed stays."""
        stays = self.threads is None or THREADS in os.environ
        variables = {} if stays else {THREADS: str(self.threads)}
        return variables | ({GPUS: ",".join(self.gpus)} if self.gpus else {})


def shares(configs: Sequence[DictConfig], at_once: int | None = None) -> list[Share]:
    """A share for each of the runs that go on at once, of runs with these configs.

    ``at_once`` of them, or one for each GPU (or group of ``trainer.devices`` GPUs), or for each
    core that a run's threads need.
    """
    trainers = [config.trainer for config in configs]
    cores = available_cores()
    processes = max(processes_of(trainer) for trainer in trainers)
    if all(derived_values.on_cpu(trainer) for trainer in trainers):
        typed = max(_threads(config) for config in configs)
        fitting = max(1, len(cores) // (processes * typed))
        number = min(at_once or fitting, len(configs))
        return [
            Share(cores=own, threads=max(1, len(own) // processes))
            for own in divided(cores, number)
        ]
    gpus = visible_gpus()
    groups = max(1, len(gpus) // processes)
    number = min(at_once or groups, len(configs))
    parts = [tuple(gpus[i * processes : (i + 1) * processes]) for i in range(groups)]
    threads = max(1, len(cores) // (number * processes))
    return [Share(gpus=parts[i % groups], threads=threads) for i in range(number)]


def divided(things: Sequence[T], number: int) -> list[tuple[T, ...]]:
    """The things in that many neighbouring parts; where they are fewer, some have one in common.

    >>> divided([0, 1, 2, 3, 4], 2), divided([0, 1], 3)
    ([(0, 1), (2, 3, 4)], [(0,), (1,), (0,)])
    """
    if number > len(things):
        return [(things[i % len(things)],) for i in range(number)]
    ends = [len(things) * i // number for i in range(number + 1)]
    return [tuple(things[a:b]) for a, b in pairwise(ends)]


def available_cores() -> tuple[int, ...]:
    """The CPU's cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def visible_gpus() -> list[str]:
    """The names of the GPUs that this process may use."""
    count = torch.cuda.device_count()
    if GPUS not in os.environ:
        return [str(number) for number in range(count)]
    return [name.strip() for name in os.environ[GPUS].split(",")][:count]


def processes_of(trainer: DictConfig) -> int:
    """Processes of the run on this machine; 1 where the run will be refused."""
    try:
        return max(1, derived_values.world_size(trainer) // int(trainer.num_nodes))
    except (TypeError, ValueError, ArithmeticError):
        return 1


def _threads(config: DictConfig) -> int:
    """CPU threads that were typed for the run; 1 where none were, or it will be refused."""
    typed = config.get("threads")
    return typed if isinstance(typed, int) and typed > 0 else 1
