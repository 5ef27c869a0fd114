"""Processes that stay for the whole session, since starting one costs seconds: those of one gloo
group, or one that is prepared in another way."""

from __future__ import annotations

import datetime
import functools
import io
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

# A collective that one process never reaches fails on the others after this time.
PATIENCE = datetime.timedelta(seconds=120)
# What a process would take seconds to import. A server imports it once, and all are forked from it.
processes = torch.multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["rdm_solo.train.run", "rdm_solo.methods.building"])


class World:
    """``size`` processes; each runs the functions that it is given, one after another.

    Each begins with ``prepare(rank, size)``.
    """

    def __init__(self, size: int, prepare: Callable[[int, int], None]) -> None:
        pairs = [processes.Pipe() for _ in range(size)]
        self.connections = [ours for ours, _ in pairs]
        self.processes = [
            processes.Process(target=_serve, args=(rank, size, prepare, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pairs)
        ]
        for process, (_, theirs) in zip(self.processes, pairs):
            process.start()
            theirs.close()

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """``function(rank, size, *arguments)`` of each process; the first failure is an error."""
        for connection in self.connections:
            connection.send((function, arguments))
        results: dict[Connection, Any] = {}
        while len(results) < len(self.connections):
            for connection in wait(set(self.connections) - set(results)):
                try:
                    failure, data = connection.recv()
                except EOFError:
                    failure = "the process ended"
                if failure:
                    self.close()
                    raise AssertionError(f"process {self.connections.index(connection)}: {failure}")
                results[connection] = torch.load(io.BytesIO(data), weights_only=False)
        return [results[connection] for connection in self.connections]

    @property
    def alive(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


class Worlds:
    """A world of each size, started when it is first asked for, and again after a failure."""

    def __init__(self, make_folder: Callable[[str], Path]) -> None:
        self.make_folder = make_folder
        self.started: dict[int, World] = {}

    def __call__(self, size: int) -> World:
        if size not in self.started or not self.started[size].alive:
            meeting = self.make_folder("world") / "meet"
            self.started[size] = World(size, functools.partial(join_group, meeting=str(meeting)))
        return self.started[size]

    def close(self) -> None:
        for world in self.started.values():
            world.close()


def join_group(rank: int, size: int, meeting: str) -> None:
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
