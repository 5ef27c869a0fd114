"""The processes of a run, and who has started this one."""

import os
import signal
import threading
import time
from typing import Any

from rdm_solo.lightning import slurm_environment

# Set for a run of a sweep, which ends with the process that started it.
END_WITH_PARENT = "RDM_SOLO_END_WITH_PARENT"
SWEEP_FOLDER = "RDM_SOLO_SWEEP"  # the name of the sweep's folder, for a run's loggers
# The rank as torchrun, Lightning and srun give it, in the order in which Lightning asks.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


def is_first() -> bool:
    """Return whether this is the first process of its run."""
    ranks = (os.environ[name] for name in RANK_VARIABLES if name in os.environ)
    return next(ranks, "0") == "0"


def started_by_torchrun() -> bool:
    """Return whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def end_with_parent() -> None:
    """End this process when its parent is gone, if it is one of several of a run or a sweep."""
    if "LOCAL_RANK" not in os.environ and not os.environ.pop(END_WITH_PARENT, ""):
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))

    threading.Thread(target=watch, daemon=True).start()


def connect(trainer: Any) -> None:
    """Connect the processes of a run that torchrun or srun has started.

    Lightning connects those that it starts itself.
    """
    if trainer.world_size > 1:
        by_srun = isinstance(trainer.strategy.cluster_environment, slurm_environment())
        if started_by_torchrun():
            _join_restarted(trainer.strategy.root_device)
        if started_by_torchrun() or by_srun:
            trainer.strategy.setup_environment()


def _join_restarted(device: Any) -> None:
    """Join the processes of torchrun under names that belong to this start of the run.

    With torch 2.15, a restarted process finds addresses of processes that are gone in torchrun's
    store: "Gloo connectFullMesh failed ... Connection refused".
    """
    import torch
    import torch.distributed as dist

    if device.type == "cuda":
        torch.cuda.set_device(device)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False)
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.PrefixStore(f"start {start}", store),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
