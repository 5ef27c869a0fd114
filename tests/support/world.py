"""Processes that are kept for the whole session, because starting one takes seconds."""

import datetime
import functools
import io
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

# A collective that one process never reaches fails on the others after this time.
PATIENCE = datetime.timedelta(seconds=120)
# Importing takes each process seconds. A server imports once, and processes are forked from it.
processes = torch.multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["rdm_solo.train.run", "rdm_solo.methods.building"])


class World:
    """``size`` processes that run functions. They start at the first call and after a failure.

    Each process first calls the function that ``prepare`` returns, with its rank and the size.
    """

    def __init__(self, size: int, prepare: Callable[[], Callable[[int, int], None]]) -> None:
        self.size, self.prepare = size, prepare
        self.connections: list[Connection] = []
        self.processes: list[Any] = []

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return ``function(rank, size, *arguments)`` of each process; raise the first failure."""
        if not self.processes:
            self._start()
        for connection in self.connections:
            connection.send((function, arguments))
        results: dict[Connection, Any] = {}
        while len(results) < self.size:
            for connection in wait(set(self.connections) - set(results)):
                try:
                    failure, data = connection.recv()
                except EOFError:
                    failure = "the process ended"
                if failure:
                    rank = self.connections.index(connection)
                    self.close()
                    raise AssertionError(f"process {rank}: {failure}")
                results[connection] = torch.load(io.BytesIO(data), weights_only=False)
        return [results[connection] for connection in self.connections]

    def _start(self) -> None:
        prepare = self.prepare()
        for rank in range(self.size):
            ours, theirs = processes.Pipe()
            arguments = (rank, self.size, prepare, theirs)
            process = processes.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self.connections, self.processes = [], []


def group(size: int, make_folder: Callable[[str], Path]) -> World:
    """Return a world of one gloo group. Each start uses a new folder for the rendezvous."""
    return World(size, lambda: functools.partial(_join, meeting=f"{make_folder('world')}/meet"))


def _join(rank: int, size: int, meeting: str) -> None:
    # Lightning's Trainer reads these variables, which a launcher sets.
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(size)}
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=PATIENCE
    )


def _serve(
    rank: int, size: int, prepare: Callable[[int, int], None], connection: Connection
) -> None:
    torch.set_num_threads(1)
    prepare(rank, size)
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        try:
            data = io.BytesIO()
            torch.save(function(rank, size, *arguments), data)
            connection.send((None, data.getvalue()))
        except BaseException:
            connection.send((traceback.format_exc(), b""))
