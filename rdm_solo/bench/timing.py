"""Contestants timed in turn in one process, and ratios of their times round by round.

The machine may be shared and noisy: a slow moment then slows every contestant.
"""

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch


def processor() -> str:
    """The CPU's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def now(device: str) -> float:
    """The time in seconds at which the device has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def interleaved(
    contestants: Sequence[Callable[[], object]], runs: int, device: str
) -> list[list[float]]:
    """Seconds of each contestant in ``runs`` rounds, all of them once a round."""
    seconds: list[list[float]] = [[] for _ in contestants]
    for round_ in range(runs + 1):
        for times, contestant in zip(seconds, contestants):
            start = now(device)
            contestant()
            if round_:  # the first round warms up
                times.append(now(device) - start)
    return seconds


def ratio(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float, float]:
    """Median, minimum and maximum of the ratio, round by round."""
    ratios = [a / b for a, b in zip(slow, fast)]
    return statistics.median(ratios), min(ratios), max(ratios)
