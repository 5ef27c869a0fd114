"""Time contestants on a device, and write tables."""

import itertools
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.timing import Call


class Time(NamedTuple):
    """Medians of one contestant, in milliseconds."""

    gpu: float
    wall: float

    def __str__(self) -> str:
        return f"{digits(self.gpu)} / {digits(self.wall)}"


class Bench:
    """The device, the number of rounds, and the file that receives the tables."""

    def __init__(self, device: str, runs: int, small: bool, out: Path | None) -> None:
        self.device = device
        self.runs = runs
        self.small = small
        self.out = out
        self.on_gpu = device.startswith("cuda")

    def write(self, text: str = "") -> None:
        """Print a line, and append it to the file."""
        print(text, flush=True)
        if self.out is not None:
            with self.out.open("a") as file:
                file.write(text + "\n")

    def row(self, cells: Sequence[object]) -> None:
        """Write a row of a Markdown table."""
        self.write(f"| {' | '.join(map(str, cells))} |")

    def head(self, cells: Sequence[str]) -> None:
        """Write the head of a Markdown table."""
        self.row(cells)
        self.row(["---"] * len(cells))

    def times(self, contestants: Mapping[str, Call], slow: bool = False) -> dict[str, Time]:
        """Return each contestant's median times; all of them take turns in every round.

        Slow contestants have at most 5 rounds.
        """
        warm_up = 1 if self.small else 3
        runs = min(self.runs, 5) if slow else self.runs
        rounds = []
        for _ in range(warm_up + runs):
            rounds.append([self._time_once(call) for call in contestants.values()])
        medians = np.median(rounds[warm_up:], axis=0)
        return dict(zip(contestants, itertools.starmap(Time, medians)))

    def _time_once(self, call: Call) -> Time:
        if not self.on_gpu:
            start = time.perf_counter()
            call()
            wall = 1000 * (time.perf_counter() - start)
            return Time(wall, wall)
        first = torch.cuda.Event(enable_timing=True)
        last = torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start = time.perf_counter()
        first.record()
        call()
        last.record()
        torch.cuda.synchronize()
        wall = 1000 * (time.perf_counter() - start)
        return Time(first.elapsed_time(last), wall)

    def waits(self, call: Call) -> str:
        """Return how often the host waited for the device in one call, as torch counts it."""
        if not self.on_gpu:
            return "–"
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return str(sum("synchroniz" in str(warning.message) for warning in caught))


def digits(milliseconds: float) -> str:
    """Return a time with two decimals, or none from 100 ms on."""
    return f"{milliseconds:.2f}" if milliseconds < 100 else f"{milliseconds:.0f}"
