"""What the results depend on: versions, devices, threads. No name of a user, folder or host."""

import importlib
import platform
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import torch

from rdm_solo import __version__
from rdm_solo.bench.timing import processor
from rdm_solo.messages import first_line
from rdm_solo.selftest.results import Settings


def facts(settings: Settings) -> dict[str, str]:
    """Each with a name; what cannot be known says so."""
    asked: dict[str, Callable[[], object]] = {
        "system": lambda: f"{platform.system()} {platform.machine()}",
        "processor": processor,
        "threads": torch.get_num_threads,
        **(WITHOUT_GPU if settings.on_cpu else OF_GPUS),
    }
    return versions() | {name: _answer(ask) for name, ask in asked.items()}


def versions() -> dict[str, str]:
    """Those of a run's ``summary.json``; without solo-learn, why they cannot be listed."""
    try:  # which imports Lightning and solo-learn
        closing = importlib.import_module("rdm_solo.train.closing")
        found: dict[str, str] = closing.versions()
    except ImportError as error:
        own = {"python": platform.python_version(), "rdm_solo": __version__}
        return own | {"torch": torch.__version__, "solo-learn": first_line(error)}
    return found | {"torch": torch.__version__}  # with what it was built for


def _answer(ask: Callable[[], object]) -> str:
    try:
        return str(ask())
    except Exception as error:  # a library that is missing or of another version
        return f"unknown ({first_line(error)})"


def driver(seconds: float = 20) -> str:
    """The version of NVIDIA's driver, by the program that comes with it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown (no nvidia-smi)"
    asked = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown ({type(error).__name__})"
    lines = said.stdout.split()
    return lines[0] if said.returncode == 0 and lines else "unknown (nvidia-smi failed)"


def _devices() -> str:
    return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


_cuda: Any = torch.cuda  # most of what follows has no types
_cudnn: Any = torch.backends.cudnn
WITHOUT_GPU: dict[str, Callable[[], object]] = {
    "device": lambda: "CPU",
    "CUDA": lambda: f"not used (torch was built for {torch.version.cuda})",
}
OF_GPUS: dict[str, Callable[[], object]] = {
    "device": _devices,
    "compute capability": lambda: ".".join(map(str, _cuda.get_device_capability())),
    "CUDA": lambda: torch.version.cuda or f"none; HIP {torch.version.hip}",
    "driver": driver,
    "cuDNN": lambda: _cudnn.version(),
    "NCCL": lambda: ".".join(map(str, _cuda.nccl.version())),
}
