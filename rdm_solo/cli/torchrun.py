"""What torchrun says of the run that this process belongs to, and where its processes agree.

torchrun keeps a store that all of a run's processes reach, and that outlives a restart: when a
process fails, ``--max-restarts`` lets it start all of them again.
"""

import datetime
import importlib
import os
from typing import Any

WAIT = datetime.timedelta(minutes=10)  # for the first process, which may load from a slow disk
FOLDER = "folder"


def started() -> bool:
    """Whether torchrun has started this process, and keeps a store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and "RANK" in os.environ


def restarted() -> bool:
    """Whether torchrun has started this run before."""
    return started() and _start() != "0"


def folder_before() -> str | None:
    """The folder of the run when torchrun started it last; None where there is none."""
    if not restarted():
        return None
    store = _store()
    return store.get(FOLDER).decode() if store.check([FOLDER]) else None


def tell(folder: str) -> None:
    """Let the run's other processes know its folder."""
    store = _store()
    store.set(FOLDER, folder)
    store.set(_told(), folder)


def learn() -> str:
    """The folder that the first process has told, in this start of the run."""
    return str(_store().get(_told()).decode())


def join(backend: str) -> None:
    """Join the run's processes, by names that belong to this start of the run.

    torch 2.15 keeps its names in the same store, and after a restart finds addresses there of
    processes that are gone: "Gloo connectFullMesh failed ... Connection refused".
    """
    dist: Any = importlib.import_module("torch.distributed")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.PrefixStore(f"start {_start()}", _store())
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def _start() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def _told() -> str:
    return f"{FOLDER} of start {_start()}"


def _store() -> Any:
    dist: Any = importlib.import_module("torch.distributed")  # seconds to load
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.PrefixStore("rdm_solo", dist.TCPStore(host, port, is_master=False, timeout=WAIT))
