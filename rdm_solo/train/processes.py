"""Find a process's rank and launcher, and count and connect the processes of a run."""

import os
import signal
import threading
import time
from typing import Any

from omegaconf import DictConfig, OmegaConf

# The id of the process that started this one as a run of a sweep or as a process of its run.
PARENT = "RDM_SOLO_PARENT"
SWEEP_FOLDER = "RDM_SOLO_SWEEP"  # the name of the sweep's folder, for a run's loggers
# The rank as torchrun, Lightning and srun set it, in Lightning's order of precedence.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


def is_rank_zero() -> bool:
    """Return whether this process has rank 0 in its run."""
    for name in RANK_VARIABLES:
        if name in os.environ:
            return os.environ[name] == "0"
    return True


def started_by_torchrun() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def on_cpu(trainer: DictConfig) -> bool:
    """Return whether the run trains on the CPU."""
    import torch

    if trainer.accelerator == "auto":
        return not torch.cuda.is_available()
    return bool(trainer.accelerator == "cpu")


def world_size(trainer: DictConfig) -> int:
    """Return the number of processes of the run, as Lightning will count them."""
    import torch

    devices = trainer.devices
    if OmegaConf.is_list(devices):
        devices = len(devices)
    elif devices in ("auto", -1):
        devices = 1 if on_cpu(trainer) else max(1, torch.cuda.device_count())
    return int(devices) * int(trainer.num_nodes)


def limit_threads(threads: int | None) -> None:
    """Limit CPU threads here and in the processes that Lightning starts; None sets no limit."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)


def exit_with_parent() -> None:
    """Kill this process when its parent exits, if a launcher or a sweep started it."""
    parent = os.environ.get(PARENT)
    if started_by_torchrun():  # whatever started torchrun
        parent = str(os.getppid())
    os.environ[PARENT] = str(os.getpid())  # for processes that Lightning starts
    if parent in (None, os.environ[PARENT]):
        return

    def wait() -> None:
        while str(os.getppid()) == parent:  # the parent may be dead already
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def start_process_group(trainer: Any) -> None:
    """Initialise the process group of a run that torchrun or srun started.

    Lightning does so for processes that it starts itself.
    """
    from rdm_solo.ground.lightning import pl  # takes seconds to load

    if trainer.world_size == 1:
        return
    strategy = trainer.strategy
    slurm = pl.plugins.environments.SLURMEnvironment
    if started_by_torchrun():
        _join_restarted(strategy.root_device)
    if started_by_torchrun() or isinstance(strategy.cluster_environment, slurm):
        strategy.setup_environment()


def _join_restarted(device: Any) -> None:
    """Join torchrun's process group through store keys that are unique to this restart.

    With torch 2.15, torchrun's store keeps the addresses of dead processes, so a restarted
    process fails: "Gloo connectFullMesh failed ... Connection refused".
    """
    import torch
    import torch.distributed as dist

    backend = "gloo"
    if device.type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(device)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False)  # type: ignore[attr-defined]
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(f"start {start}", store),  # type: ignore[attr-defined]
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
