"""Options of the benchmarks, and interleaved timing.

All contestants run in one process, one after the other in each round. A slow moment of a shared
machine then slows all of them alike.
"""

import argparse
import operator
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

Call = Callable[[], object]  # what is timed
Calls = dict[str, Call]


def parser(name: str, description: str, shapes: bool = False) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have, and perhaps ``--shape``."""
    options = argparse.ArgumentParser(
        f"python -m benchmarks.{name}", description=f"Measure {description}."
    )
    options.add_argument("--runs", type=int, default=11, help="timed rounds (default: 11)")
    options.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    options.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    if shapes:
        options.add_argument(
            "--shape",
            type=int,
            nargs=2,
            action="append",
            dest="shapes",
            metavar=("N", "K"),
            help="rows and columns of the batch of all processes; may be repeated",
        )
    return options


def parse(options: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, set the threads, and print versions and hardware."""
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    name = processor() if arguments.device == "cpu" else torch.cuda.get_device_name()
    threads = f"{arguments.threads} thread(s)"
    print(f"torch {torch.__version__}, {name}, {threads}, {arguments.runs} runs")
    return arguments


def run_command(
    name: str, description: str, measure: Callable[[int, str, Sequence[str]], None]
) -> None:
    """Run the command of a benchmark that takes options of train."""
    options = parser(name, description)
    options.add_argument("overrides", nargs="*", help="options of train, such as batch_size=8")
    arguments = parse(options)
    measure(arguments.runs, arguments.device, arguments.overrides)


def processor() -> str:
    """Return the CPU's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor() or platform.machine()


def now(device: str) -> float:
    """Return the time in seconds once the device has finished its queue."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def interleaved(contestants: Sequence[Call], runs: int, device: str) -> list[list[float]]:
    """Return each contestant's seconds in ``runs`` rounds, after one round of warm-up."""
    for contestant in contestants:
        contestant()
    seconds: list[list[float]] = [[] for _ in contestants]
    for _ in range(runs):
        for times, contestant in zip(seconds, contestants):
            start = now(device)
            contestant()
            times.append(now(device) - start)
    return seconds


def ratio(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float, float]:
    """Return median, minimum and maximum of the ratios of all rounds."""
    ratios = list(map(operator.truediv, slow, fast))
    return statistics.median(ratios), min(ratios), max(ratios)
