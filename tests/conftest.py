"""Set up the tests, and share batches with a known spectrum, and commands."""

import functools
import gc
import logging
import math
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Without bytecode each process that a test starts would compile torch anew (20 seconds).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import torch  # noqa: E402
from support import cluster, second_device, world  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
ROOMS = sorted(path.parent.name for path in ROOT.glob("rdm_solo/*/__init__.py"))


def pytest_configure(config: pytest.Config) -> None:
    """Ignore warnings of Lightning about runs as small as those of the tests, and balance cores."""
    messages = "many workers|num_workers|litlogger|LeafSpec|srun|trying to `self.log"
    config.addinivalue_line("filterwarnings", f"ignore:.*({messages})")
    # With -n. As an option in pyproject.toml, pytest without pytest-xdist would refuse it.
    if getattr(config.option, "dist", "no") == "load":
        config.option.dist = "worksteal"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest tests first, so that no core waits for one of them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("process") is None)


@pytest.fixture(autouse=True, scope="session")
def _frozen_objects():
    """Exclude the objects of thousands of tests from garbage collection, which would be slow."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def _surroundings():
    """Give every test Ctrl-C (which a shell's background job ignores), no W&B, and one thread.

    ``OMP_NUM_THREADS`` chooses another number of threads.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("WANDB_"):
                patch.delenv(name)
        yield


@pytest.fixture(autouse=True)
def _restored_settings():
    """Undo what Lightning and the option ``threads`` set for the whole process."""
    threads = torch.get_num_threads()
    backend = torch.backends.cudnn
    before = backend.benchmark, backend.deterministic
    deterministic = torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    if torch.are_deterministic_algorithms_enabled() != deterministic:  # the call loads the compiler
        torch.use_deterministic_algorithms(deterministic)
    backend.benchmark, backend.deterministic = before


LEVELS = {"root": logging.WARNING, "rdm_solo": logging.NOTSET}


@pytest.fixture(autouse=True)
def _reset_logging():
    """Remove the handlers and levels that earlier commands in this process left."""
    for name, level in LEVELS.items():
        logger = logging.getLogger(name)
        logger.setLevel(level)
        for handler in list(logger.handlers):
            module = type(handler).__module__
            if not module.startswith("_pytest"):
                logger.removeHandler(handler)


@pytest.fixture(scope="session")
def worlds(tmp_path_factory):
    """Return ``worlds(2)``, two processes of one group, which all tests share."""
    groups = {}

    def get(size):
        if size not in groups:
            groups[size] = world.World(size, world.join, tmp_path_factory.mktemp)
        return groups[size]

    yield get
    for group in groups.values():
        group.close()


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """Start a real SLURM of two nodes, shared by all tests."""
    reason = cluster.reason_to_skip()
    if reason:
        pytest.skip(reason)
    with cluster.cluster(tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.fixture(scope="session")
def tree(tmp_path_factory) -> Path:
    """Write a folder of small images, which no test changes."""
    from support.image_files import write_tree

    return write_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """Train the run of three epochs that tests read, and that a resumed run must equal."""
    from support.small_runs import FINISHED, run

    folder = tmp_path_factory.mktemp("finished") / "run"
    run(folder, *FINISHED)
    return folder


@pytest.fixture(scope="session")
def on_second_device(tmp_path_factory):
    """Call ``on_second_device(function, *arguments)`` in a process with that device."""
    if not second_device.can_install():
        pytest.skip("this torch takes no device that is written in Python")
    process = world.World(1, second_device.install, tmp_path_factory.mktemp)

    def call(function, *arguments):
        (result,) = process.run(second_device.call, function, *arguments)
        return result

    yield call
    process.close()


def features(kind: str, n: int, k: int, seed: int = 0) -> torch.Tensor:
    """Return float32 features: gaussian, 1/i or 1/i^2 spectrum, or 1/i after batch norm."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, k, generator=rng, dtype=torch.float64)
    if kind == "gaussian":
        return x.float()
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    i = torch.arange(1, min(n, k) + 1, dtype=torch.float64)
    power = -2.0 if kind == "1/i^2" else -1.0
    sigma = math.sqrt(n) * i**power
    x = (u * sigma) @ vh
    if kind == "batchnorm":
        x = torch.nn.functional.batch_norm(x.float(), None, None, training=True)
    return x.float()


def start(
    *arguments: str, cwd: Path, stderr: int = subprocess.STDOUT, **environment: str
) -> subprocess.Popen[str]:
    """Start ``python -m <arguments>`` as a user does, in that folder; its output is piped."""
    variables = {"OMP_NUM_THREADS": "1", **os.environ, **environment}
    path = variables.get("PYTHONPATH", "")
    variables["PYTHONPATH"] = f"{ROOT}{os.pathsep}{path}"
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def command(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m <arguments>`` and return its output, errors and exit status."""
    with start(*arguments, cwd=cwd, stderr=subprocess.PIPE, **environment) as process:
        try:
            output, errors = process.communicate(timeout=600)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@pytest.fixture
def typed(monkeypatch, capsys):
    """Do what :func:`command` does in this process, which saves the seconds of a start."""

    def run(module, *arguments, cwd):
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        capsys.readouterr()
        status = 0
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            status = stop.code or 0
        return subprocess.CompletedProcess(sys.argv, status, *capsys.readouterr())

    return run


@pytest.fixture
def train(typed, tmp_path):
    """Return ``train(*options)``, which trains in this process and in ``tmp_path``."""
    return functools.partial(typed, "rdm_solo.train", cwd=tmp_path)
