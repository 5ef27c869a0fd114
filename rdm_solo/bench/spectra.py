"""What watching costs: steps whose outputs are recorded beside steps that are not, and the
eigenvalues once an epoch, as a share of an epoch of CIFAR-10's size.

One process runs them in turn. The work of a recorded step is clocked by itself as well, since it is
far below the noise of two steps' difference.
"""

import math
import statistics
from collections.abc import Sequence

from rdm_solo.bench.cost import Step
from rdm_solo.bench.timing import interleaved, now
from rdm_solo.callbacks.branches import observer
from rdm_solo.spectra.branch_spectra import BranchSpectra

IMAGES = 50_000
VIEWS = 2


class Recorded:
    """A step whose outputs enter the spectra; ``seconds`` has what that alone took, by call."""

    def __init__(self, step: Step, device: str) -> None:
        self.step, self.device = step, device
        self.observer = observer(step.model)
        options = step.cfg.diagnostics
        k = step.model.projector[-1].num_features
        sizes = {"max_dim": options.max_dim, "sample": options.sample}
        self.metric = BranchSpectra(k, **sizes, steps=True).to(device)  # as a run measures
        self.seconds: list[float] = []

    def __call__(self) -> None:
        self.observer.record_next_step()
        self.step()
        start = now(self.device)
        outputs = self.observer.take(VIEWS)
        self.metric.update(outputs.online, outputs.target, outputs.positive, outputs.projection)
        self.seconds.append(now(self.device) - start)


def bench_spectra(runs: int, device: str, overrides: Sequence[str]) -> None:
    """SimSiam with ``target_pow``, ResNet-18, k = 2048: the share of an epoch."""
    step = Step(device, "method=simsiam", "filter=target_pow", "batch_size=256", *overrides)
    recorded = Recorded(step, device)
    plain, watched, reading = interleaved([step, recorded, recorded.metric.compute], runs, device)

    batch, size = step.cfg.batch_size, step.cfg.dataset.image_size
    max_rows = step.cfg.diagnostics.max_rows
    steps = IMAGES // batch
    count = math.ceil(steps / max(1, math.ceil(steps * VIEWS * batch / max_rows)))
    recording = recorded.seconds[1:]  # without the round that warms up
    work, read = statistics.median(recording), statistics.median(reading)
    epoch = steps * statistics.median(plain)
    difference = statistics.median(b - a for a, b in zip(plain, watched))
    shares = [(count * w + r) / (steps * s) for s, w, r in zip(plain, recording, reading)]
    print(f"k = {recorded.metric.dim}, batch {batch}, {size} px; medians of {runs} rounds")
    print(f"step                    {statistics.median(plain):>10.3f} s")
    print(f"recording it takes      {work:>10.3f} s (the steps' difference: {difference:.3f} s)")
    print(f"eigenvalues and curves  {read:>10.3f} s, once an epoch")
    print(
        f"an epoch of {IMAGES} images: {steps} steps, {count} recorded (max_rows={max_rows}): "
        f"{count * work + read:.1f} s of {epoch:.0f} s, {(count * work + read) / epoch:.2%}"
    )
    print(f"round by round {min(shares):.2%}..{max(shares):.2%}")
