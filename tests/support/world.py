"""Keep processes for the session, because starting one takes seconds."""

import datetime
import io
import os
import traceback
from multiprocessing.connection import wait

import torch

# A collective that one process never reaches fails on the others after this time.
PATIENCE = datetime.timedelta(seconds=120)
# Importing takes each process seconds. A server imports once, and processes are forked from it.
processes = torch.multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["rdm_solo.train.run", "rdm_solo.methods.building"])


class World:
    """``size`` processes that run functions. They start at the first call and after a failure.

    Each process first calls ``prepare(rank, size, folder)``, with a new folder for each start.
    """

    def __init__(self, size: int, prepare, make_folder) -> None:
        self.size = size
        self.prepare = prepare
        self.make_folder = make_folder
        self.connections = []
        self.processes = []

    def run(self, function, *arguments) -> list:
        """Return ``function(rank, size, *arguments)`` of each process; raise the first failure."""
        if not self.processes:
            self._start()
        for connection in self.connections:
            connection.send((function, arguments))
        results = {}
        while len(results) < self.size:
            for connection in wait(set(self.connections) - results.keys()):
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
        folder = str(self.make_folder("world"))
        for rank in range(self.size):
            ours, theirs = processes.Pipe()
            arguments = (self.prepare, rank, self.size, folder, theirs)
            process = processes.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self.connections.clear()
        self.processes.clear()


def join(rank: int, size: int, folder: str) -> None:
    """Make this process one of a gloo group."""
    # Lightning's Trainer reads these variables, which a launcher sets.
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(size)}
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/meet", rank=rank, world_size=size, timeout=PATIENCE
    )


def _serve(prepare, rank: int, size: int, folder: str, connection) -> None:
    torch.set_num_threads(1)
    prepare(rank, size, folder)
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        try:
            data = io.BytesIO()
            result = function(rank, size, *arguments)
            torch.save(result, data)
            connection.send((None, data.getvalue()))
        except BaseException:
            connection.send((traceback.format_exc(), b""))
