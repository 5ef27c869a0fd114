"""The command python -m rdm_solo.bench."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence

import torch

__all__ = ["main"]

WHAT = {
    "filters": "each filter beside the paper's Algorithm 2 as printed",
    "step": "the share of a predictor or a filter in a SimSiam step",
    "cost": "time and peak memory of a whole step of every method and filter",
    "spectra": "the share of the spectra in an epoch of CIFAR-10's size",
    "views": "views per second, beside solo-learn's own pipeline",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure one thing and print it."""
    options = _parse(argv)
    torch.set_num_threads(options.threads)
    cpu = platform.processor() or platform.machine()
    name = cpu if options.device == "cpu" else torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {name}, {options.threads} thread(s), {options.runs} runs")
    if options.what == "filters":
        from rdm_solo.bench.filters import SHAPES, bench_filters

        bench_filters(options.runs, options.device, options.shape or SHAPES)
    elif options.what == "step":
        from rdm_solo.bench.step import bench_step

        bench_step(options.runs, options.device, options.batch, options.size)
    elif options.what == "views":
        from rdm_solo.bench.views import bench_views

        bench_views(options.runs)
    elif options.what == "cost":
        from rdm_solo.bench.cost import bench_cost

        where = options.device, options.batch, options.size
        bench_cost(options.runs, *where, options.overrides, options.only)
    else:
        from rdm_solo.bench.spectra import bench_spectra

        where = options.device, options.batch, options.size
        bench_spectra(options.runs, *where, options.overrides)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m rdm_solo.bench",
        description="Measure what something costs. Contestants run in turn in one process; medians "
        "are printed with the number of runs and the spread of the ratio.",
    )
    kinds = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    for what, help_ in WHAT.items():
        kind = kinds.add_parser(what, help=help_, description=f"Measure {help_}.")
        kind.add_argument("--runs", type=int, default=11, help="rounds that count; 11")
        kind.add_argument("--threads", type=int, default=1, help="CPU threads; 1")
        kind.set_defaults(device="cpu")
        if what != "views":
            kind.add_argument("--device", help="cpu or cuda; cpu")
        if what == "filters":
            kind.add_argument(
                "--shape",
                type=int,
                nargs=2,
                action="append",
                metavar=("N", "K"),
                help="rows and columns of the batch; may be repeated; nine shapes by default",
            )
        elif what != "views":
            batch = 256 if what == "spectra" else 64
            kind.add_argument("--batch", type=int, default=batch, help=f"images a step; {batch}")
            kind.add_argument("--size", type=int, default=32, help="side of an image, pixels; 32")
        if what in ("cost", "spectra"):
            words = "options of train, such as backbone.compile=true"
            kind.add_argument("overrides", nargs="*", help=words)
        if what == "cost":
            kind.add_argument("--only", metavar="METHOD", help="this method alone, and SimSiam")
    options = parser.parse_args(argv)
    if options.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"--device {options.device}: this machine has no CUDA device; use cpu")
    if options.runs < 1:
        parser.error(f"--runs must be at least 1, got {options.runs}")
    return options
