"""Shared pieces: batches with a known spectrum, an independent oracle, small runs."""

from __future__ import annotations

import gc
import logging
import math
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Without bytecode each process that a test starts would compile torch anew (20 seconds).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import torch  # noqa: E402
from support import cluster, second_device  # noqa: E402
from support.world import World, Worlds  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first: at the end, one would run alone while the other cores wait."""
    items.sort(key=lambda item: item.get_closest_marker("process") is None)


@pytest.fixture(autouse=True, scope="session")
def _objects_of_all_tests_set_aside() -> Iterator[None]:
    """Each run looks for garbage, which takes long among the objects of thousands of tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def _without_wandb_variables():
    """Tests say themselves whether W&B is online, offline or disabled."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        yield


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """A shell's background job ignores Ctrl-C, and so would every process that tests start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


LEVELS = {name: logging.getLogger(name).level for name in (None, "rdm_solo")}


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Commands run in this process leave handlers, whose captured stream is closed, and levels."""
    _reset_logging()  # a fixture of a wider scope may have run one
    yield
    _reset_logging()


def _reset_logging() -> None:
    for name, level in LEVELS.items():
        logger = logging.getLogger(name)
        logger.setLevel(level)
        for handler in list(logger.handlers):
            if not type(handler).__module__.startswith("_pytest"):
                logger.removeHandler(handler)


@pytest.fixture(scope="session")
def worlds(tmp_path_factory) -> Iterator[Worlds]:
    """``worlds(2).run(function)``: two processes of one group, shared by all tests."""
    made = Worlds(tmp_path_factory.mktemp)
    yield made
    made.close()


@pytest.fixture(scope="session")
def slurm(tmp_path_factory) -> Iterator[cluster.Cluster]:
    """A real SLURM of two nodes, shared by all tests."""
    if reason := cluster.reason_to_skip():
        pytest.skip(reason)
    with cluster.cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture(scope="session")
def on_second_device() -> Iterator[Callable[..., Any]]:
    """``on_second_device(function, *arguments)``: what the function returns in a process that has
    the device of :mod:`support.second_device`; called again after a failure, in a new one."""
    if not second_device.can_install():
        pytest.skip("this torch takes no device that is written in Python")
    started: list[World] = []

    def run(function: Callable[..., Any], *arguments: Any) -> Any:
        if not (started and started[-1].alive):
            started.append(World(1, second_device.install))
        return started[-1].run(second_device.call, function, *arguments)[0]

    yield run
    for world in started:
        world.close()


def features(kind: str, n: int, k: int, seed: int = 0) -> torch.Tensor:
    """float32 features: gaussian, 1/i or 1/i^2 spectrum, or a 1/i spectrum after batch norm."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, k, generator=rng, dtype=torch.float64)
    if kind == "gaussian":
        return x.float()
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    decay = torch.arange(1, min(n, k) + 1, dtype=torch.float64)
    sigma = math.sqrt(n) * decay ** (-2.0 if kind == "1/i^2" else -1.0)
    x = (u * sigma) @ vh
    if kind == "batchnorm":
        x = torch.nn.functional.batch_norm(x.float(), None, None, training=True)
    return x.float()


def oracle(x: torch.Tensor, gain, cut: float) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 SVD: the filtered batch and W = V g V^T, directions below the cut at zero."""
    u, sigma, vh = torch.linalg.svd(x.double(), full_matrices=False)
    kept = sigma > cut * sigma[0]
    g = torch.where(kept, gain(torch.where(kept, sigma, 1.0)), 0.0)
    return (u * (sigma * g)) @ vh, (vh.mT * g) @ vh


def command(
    *arguments: str, cwd: Path, timeout: float = 600, **environment: str
) -> subprocess.CompletedProcess[str]:
    """``python -m rdm_solo.<arguments>`` as a user types it, in that folder."""
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def started(*arguments: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """The same while it runs; what it prints, errors too, is read line by line."""
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def typed(monkeypatch, capsys) -> Callable[..., subprocess.CompletedProcess[str]]:
    """:func:`command` without the seconds that a process takes to start: in this one."""

    def run(module: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        capsys.readouterr()
        status: object = 0
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as left:
            status = left.code or 0
        return subprocess.CompletedProcess(sys.argv, status, *capsys.readouterr())

    return run


@pytest.fixture
def disabled(monkeypatch):
    """WANDB_MODE=disabled."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    wandb.teardown()
    yield
    wandb.teardown()
