"""Measure on a GPU what filters, spectra and whole epochs cost, and write Markdown tables.

    python -m benchmarks.gpu --out tables.md               # all sections, several minutes
    python -m benchmarks.gpu decompositions filters steps  # a minute and a half
    python -m benchmarks.gpu --small                       # on a CPU, to test this script

Contestants of one table run in turns in one process. "GPU" is the time between two CUDA events
around a call, and "wall" ends when the device has finished. Epochs are timed loop by loop, in the
same process, each from the end of the epoch before it.
"""

import argparse
import logging
import platform
import subprocess
import sys
import time
import traceback
from pathlib import Path

import torch
import torchvision  # type: ignore[import-untyped, unused-ignore]

import rdm_solo
from benchmarks.gpu import epochs, heads, steps
from benchmarks.gpu.bench import Bench
from benchmarks.timing import processor

SECTIONS = {
    "decompositions": heads.decompositions,
    "filters": heads.filters,
    "steps": steps.steps,
    "spectra": steps.spectra,
    "watch": steps.watch,
    "epochs": epochs.epochs,
}


def device_name() -> str:
    """Return the GPU's name and its driver's version."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    driver = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    return f"{torch.cuda.get_device_name()}, driver {driver}"


def main() -> None:
    options = argparse.ArgumentParser(
        "python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(SECTIONS)
    options.add_argument("sections", nargs="*", metavar="SECTION", help=f"{names}; default: all")
    options.add_argument("--device", default="cuda", help="default: cuda")
    options.add_argument("--runs", type=int, default=21, help="timed rounds (default: 21)")
    options.add_argument("--small", action="store_true", help="tiny shapes on the CPU")
    options.add_argument("--out", type=Path, help="file to which the tables are appended")
    parsed = options.parse_args()
    unknown = set(parsed.sections) - set(SECTIONS)
    if unknown:
        options.error(f"unknown sections: {', '.join(unknown)}; there are {names}")
    device = "cpu" if parsed.small else parsed.device
    logging.getLogger("rdm_solo").setLevel(logging.ERROR)  # filters log what they drop
    torch.backends.cudnn.benchmark = True  # as with trainer=gpu
    bench = Bench(device, 2 if parsed.small else parsed.runs, parsed.small, parsed.out)
    versions = [
        device_name() if bench.on_gpu else processor(),
        f"torch {torch.__version__}",
        f"torchvision {torchvision.__version__}",
        f"rdm_solo {rdm_solo.__version__}",
        f"Python {platform.python_version()}",
        f"{bench.runs} rounds",
    ]
    bench.write(f"{'; '.join(versions)}.\n")
    failed = False
    for section in parsed.sections or SECTIONS:
        start = time.perf_counter()
        try:
            SECTIONS[section](bench)
        except Exception:  # the other tables are still wanted
            failed = True
            traceback.print_exc()
        print(f"[{section}: {time.perf_counter() - start:.0f} s]\n", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
