"""The command python -m rdm_solo.bench."""

import argparse
import importlib
from typing import Any

import torch

from rdm_solo import cli
from rdm_solo.bench.timing import processor

# Each has a module of that name, with a function that measures and prints.
WHAT = {
    "filters": "each filter beside the paper's Algorithm 2 as printed",
    "step": "the share of a predictor or a filter in a SimSiam step",
    "cost": "time and peak memory of a whole step of every method and filter",
    "scale": "the parts of a filter on several processes: seconds, memory, bytes that cross",
    "solvers": "filters by matrix products beside those by eigh",
    "spectra": "the share of the spectra in an epoch of CIFAR-10's size",
    "views": "views per second, beside solo-learn's own pipeline",
}


def main() -> None:
    """Measure one thing and print it."""
    given = _parse()
    what, threads = given.pop("what"), given.pop("threads")
    torch.set_num_threads(threads)
    on_cpu = given.get("device", "cpu") == "cpu"
    name = processor() if on_cpu else torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {name}, {threads} thread(s), {given['runs']} runs")
    with cli.errors_as_sentences():
        module = importlib.import_module(f"rdm_solo.bench.{what}")
        getattr(module, f"bench_{what}")(**given)


def _parse() -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        "python -m rdm_solo.bench",
        description="Measure time or memory. All variants run in turn in one process; medians "
        "are printed with the number of runs and the spread of the ratio.",
    )
    kinds = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    for what, help_ in WHAT.items():
        kind = kinds.add_parser(what, help=help_, description=f"Measure {help_}.")
        kind.add_argument("--runs", type=int, default=11, help="timed rounds (default: 11)")
        kind.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
        if what in ("filters", "scale", "solvers"):
            kind.add_argument(
                "--shape",
                type=int,
                nargs=2,
                action="append",
                dest="shapes",
                metavar=("N", "K"),
                help="rows and columns of the batch of all processes; may be repeated",
            )
        if what == "scale":
            sizes = {"type": int, "nargs": "*", "metavar": "PROCESSES"}
            words = "numbers of processes to measure with (default: 1 2 4), one CPU thread each"
            kind.add_argument("--processes", default=[1, 2, 4], help=words, **sizes)
            words = "numbers of processes for which to count alone, without computing"
            kind.add_argument("--count", default=[], help=words, **sizes)
            continue
        if what == "views":
            continue
        kind.add_argument("--device", default="cpu", help="cpu (default) or cuda")
        if what not in ("filters", "solvers"):
            words = "options of train, such as batch_size=8 or backbone.compile=true"
            kind.add_argument("overrides", nargs="*", help=words)
    options = parser.parse_args()
    if getattr(options, "device", "cpu") != "cpu" and not torch.cuda.is_available():
        parser.error(f"--device {options.device}: this machine has no CUDA device; use cpu")
    for name in ("runs", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    return vars(options)
