"""What the results depend on: versions, devices, threads. No name of a user, folder or host."""

import importlib
import platform
import shutil
import subprocess
from typing import Any

import torch

from rdm_solo import __version__
from rdm_solo.bench.timing import processor
from rdm_solo.messages import first_line
from rdm_solo.selftest.results import Settings


def facts(settings: Settings) -> dict[str, str]:
    """Each with a name; what cannot be known says so."""
    return versions() | {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "threads": str(torch.get_num_threads()),
        **(_without_gpu() if settings.on_cpu else _of_gpus()),
    }


def versions() -> dict[str, str]:
    """Those of a run's ``summary.json``; without solo-learn, why they cannot be listed."""
    try:  # which imports Lightning and solo-learn
        closing = importlib.import_module("rdm_solo.train.closing")
        found: dict[str, str] = closing.versions()
    except ImportError as error:
        own = {"python": platform.python_version(), "rdm_solo": __version__}
        return own | {"torch": torch.__version__, "solo-learn": first_line(error)}
    return found | {"torch": torch.__version__}  # with what it was built for


def _without_gpu() -> dict[str, str]:
    return {"device": "CPU", "CUDA": f"not used (torch was built for {torch.version.cuda})"}


def _of_gpus() -> dict[str, str]:
    cuda: Any = torch.cuda  # whose libraries' versions have no types
    cudnn: Any = torch.backends.cudnn
    major, minor = cuda.get_device_capability()
    nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    return {
        "device": ", ".join(cuda.get_device_name(i) for i in range(cuda.device_count())),
        "compute capability": f"{major}.{minor}",
        "CUDA": str(torch.version.cuda or f"none; HIP {torch.version.hip}"),
        "driver": driver(),
        "cuDNN": str(cudnn.version()),
        "NCCL": ".".join(map(str, cuda.nccl.version())) if nccl else "not in this torch",
    }


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
