"""What watching costs: steps whose outputs are recorded beside steps that are not, and the
eigenvalues once an epoch, as a share of an epoch of CIFAR-10's size.

One process runs them in turn. The work of a recorded step is clocked by itself as well, since it is
far below the noise of two steps' difference.
"""

from __future__ import annotations

import math
import statistics
import time

import torch

from rdm_solo.bench.cost import Step
from rdm_solo.bench.timing import interleaved
from rdm_solo.callbacks.branches import observer
from rdm_solo.spectra.branch_spectra import BranchSpectra

__all__ = ["Recorded", "bench_spectra", "recorded_steps"]

IMAGES = 50_000
VIEWS = 2
WIDTH = ["method.kwargs.proj_hidden_dim=2048", "method.kwargs.proj_output_dim=2048"]


def recorded_steps(steps: int, batch: int, max_rows: int) -> int:
    """How many of an epoch's steps are recorded.

    >>> recorded_steps(195, 256, 10_000)
    20
    """
    return math.ceil(steps / max(1, math.ceil(steps * VIEWS * batch / max_rows)))


class Recorded:
    """A step whose outputs enter the spectra; ``seconds`` has what that alone took, by call."""

    def __init__(self, step: Step, max_dim: int, sample: int, device: str) -> None:
        self.step, self.device = step, device
        self.observer = observer(step.model)
        self.observer.attach()
        k = step.model.projector[-1].num_features
        self.metric = BranchSpectra(k, max_dim=max_dim, sample=sample).to(device)
        self.seconds: list[float] = []

    def __call__(self) -> None:
        self.observer.listen()
        self.step()
        start = self._now()
        outputs = self.observer.take(VIEWS)
        self.metric.update(outputs.online, outputs.target, outputs.positive, outputs.projection)
        self.seconds.append(self._now() - start)

    def _now(self) -> float:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()


def bench_spectra(runs: int, device: str, batch: int, size: int, extra: list[str]) -> float:
    """SimSiam with ``target_pow``, ResNet-18, k = 2048; the share of an epoch is returned."""
    step = Step("simsiam", "target_pow", batch, size, device, [*WIDTH, *extra])
    options = step.cfg.diagnostics
    recorded = Recorded(step, options.max_dim, options.sample, device)
    plain, watched, reading = interleaved([step, recorded, recorded.metric.compute], runs, device)

    steps = IMAGES // batch
    recorded_count = recorded_steps(steps, batch, options.max_rows)
    work, read = statistics.median(recorded.seconds[1:]), statistics.median(reading)
    epoch = steps * statistics.median(plain)
    print(f"k = {recorded.metric.dim}, batch {batch}, {size} px; medians of {runs} rounds")
    print(f"step                    {statistics.median(plain):>10.3f} s")
    difference = statistics.median(b - a for a, b in zip(plain, watched))
    print(f"recording it takes      {work:>10.3f} s (the steps' difference: {difference:.3f} s)")
    print(f"eigenvalues and curves  {read:>10.3f} s, once an epoch")
    share = (recorded_count * work + read) / epoch
    print(
        f"an epoch of {IMAGES} images: {steps} steps, {recorded_count} recorded (max_rows="
        f"{options.max_rows}): {recorded_count * work + read:.1f} s of {epoch:.0f} s, {share:.2%}"
    )
    shares = [
        (recorded_count * w + r) / (steps * s)
        for s, w, r in zip(plain, recorded.seconds[1:], reading)
    ]
    print(f"round by round {min(shares):.2%}..{max(shares):.2%}")
    return share
