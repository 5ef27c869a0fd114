"""The command python -m rdm_solo.selftest."""

import argparse
import contextlib
import importlib
import logging
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from rdm_solo import cli
from rdm_solo.runs.files import write_whole
from rdm_solo.selftest import page
from rdm_solo.selftest.machine import facts
from rdm_solo.selftest.results import FAILED, Check, Result, Settings, attempt

# Each has a module of that name, with a function ``checks``.
GROUPS = {
    "filters": "Filters: values and gradients on the device, against an SVD in float64 on the CPU",
    "spectra": "Spectra: eigenvalues, effective ranks and uniformity, against float64 on the CPU",
    "waits": "Waits: how often the host waits for the device",
    "processes": "Several processes: a batch of which each holds a share, against one process",
    "steps": "Training steps of SimSiam: median time and peak memory (measured only, no bound)",
    "decompositions": "eigh in float64, at the sizes of the paper's Gram matrices",
    "epochs": "Spectra: their share of an epoch of CIFAR-10's size (measured only, no bound)",
}
# SimSiam's head as it is; on a CPU behind a network that takes a tenth of a second.
BATCH = {"cuda": "batch_size=256", "cpu": "batch_size=32"}  # 256 is the paper's on CIFAR
SMALL_NETWORK = (
    *("backbone.name=small_resnet", "backbone.kwargs.zero_init_residual=null"),
    "+backbone.kwargs.width=16",
)
DESCRIPTION = """Check this machine: whether filters and spectra are exact on its device, how often
the CPU must wait for the GPU, whether several devices equal one, and what things cost. Prints a
line for each check (ok, FAILED, or not tested and why) and writes all figures to a file that you
can send with a bug report. The exit status is 0 if nothing failed, 1 otherwise. Takes one to two
minutes on a CPU."""


def main() -> None:
    """Run all checks, print the page, write the file."""
    settings, out = _parse()
    cli.say_anything()
    start = time.monotonic()
    with _quiet():
        known = facts(settings)
        print(page.head(known))
        results: dict[str, list[Result]] = {}
        for group, title in GROUPS.items():
            print(f"\n{title}")
            results[group] = []
            for result in _found(group, settings):
                results[group].append(result)
                print(page.line(result), flush=True)
    seconds = time.monotonic() - start
    command = {"device": settings.device, "devices": settings.devices, "runs": settings.runs}
    command |= {"overrides": list(settings.overrides)}
    everything = [result for found in results.values() for result in found]
    with cli.errors_as_sentences():
        write_whole(out, page.content(known, command, results, seconds))
    print(f"\n{page.foot(everything, seconds, str(out), settings.on_cpu)}")
    raise SystemExit(int(any(result.verdict == FAILED for result in everything)))


def _found(group: str, settings: Settings) -> Iterator[Result]:
    """The group's results, one check after another; an error is a result, too."""
    checks: list[Check] = []

    def collect() -> list[Result]:
        # Some import Lightning and solo-learn: without them the others still run.
        checks.extend(importlib.import_module(f"rdm_solo.selftest.{group}").checks(settings))
        return []

    yield from attempt(Check(group, collect))
    for check in checks:
        yield from attempt(check)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Broken batches are part of the checks: what the filters say of them is not for the page."""
    log = logging.getLogger("rdm_solo")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def _parse() -> tuple[Settings, Path]:
    parser = argparse.ArgumentParser("python -m rdm_solo.selftest", description=DESCRIPTION)
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="what to check (default: cuda where there is one); another GPU than the first one: "
        "set CUDA_VISIBLE_DEVICES",
    )
    parser.add_argument(
        "--devices",
        type=int,
        help="how many processes to compare with one (default: one for each GPU; 2 on a CPU)",
    )
    parser.add_argument("--runs", type=int, default=3, help="timed rounds (default: 3)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("rdm_solo_selftest.json"),
        help="the file to write (default: rdm_solo_selftest.json in this folder)",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        help="options of train for the timed steps, such as batch_size=128",
    )
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device on this machine; use cpu")
    available = torch.cuda.device_count() if given.device == "cuda" else 2
    devices = available if given.devices is None else given.devices
    if given.runs < 1:
        parser.error(f"--runs must be at least 1, got {given.runs}")
    if devices < 1:
        parser.error(f"--devices must be at least 1, got {devices}")
    if given.device == "cuda" and devices > available:
        parser.error(f"--devices must be at most {available}, the GPUs of this machine")
    if given.out.is_dir() or not given.out.parent.is_dir():
        parser.error(f"--out {given.out}: give the name of a file in a folder that exists")
    overrides = [BATCH[given.device]]
    if given.device == "cpu" and not any(
        o.lstrip("+").startswith("backbone") for o in given.overrides
    ):
        overrides += SMALL_NETWORK
    overrides += given.overrides
    return Settings(given.device, devices, given.runs, tuple(overrides)), given.out
