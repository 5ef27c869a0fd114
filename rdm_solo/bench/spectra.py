"""What watching costs: steps whose outputs are recorded beside steps that are not, and the
eigenvalues once an epoch, as a share of an epoch of CIFAR-10's size.

One process runs them in turn. The work of a recorded step is clocked by itself as well, since it is
far below the noise of two steps' difference.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rdm_solo.bench.cost import Step
from rdm_solo.bench.timing import interleaved, now
from rdm_solo.callbacks.branches import observer
from rdm_solo.spectra.branch_spectra import BranchSpectra

IMAGES = 50_000
VIEWS = 2
GPU_EPOCH = 25.0  # seconds of SimSiam's on CIFAR-10 at batch 512, as lightly's documentation has it


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
        self.add()
        self.seconds.append(now(self.device) - start)

    def add(self) -> None:
        """What was recorded of a step enters the spectra."""
        outputs = self.observer.take(VIEWS)
        self.metric.update(outputs.online, outputs.target, outputs.positive, outputs.projection)


@dataclass(frozen=True)
class Share:
    """What the spectra take of an epoch of CIFAR-10's size, from seconds of each round."""

    k: int
    batch: int
    size: int  # of an image, in pixels
    max_rows: int
    plain: list[float]  # a step
    watched: list[float]  # a step that is recorded
    recording: list[float]  # what recording it takes
    reading: list[float]  # eigenvalues and curves, once an epoch

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return IMAGES // self.batch

    @property
    def recorded(self) -> int:
        """Those of them that are recorded."""
        return math.ceil(
            self.steps / max(1, math.ceil(self.steps * VIEWS * self.batch / self.max_rows))
        )

    @property
    def seconds(self) -> float:
        """An epoch's seconds for the spectra."""
        return self.recorded * statistics.median(self.recording) + statistics.median(self.reading)

    @property
    def epoch(self) -> float:
        """An epoch's seconds for all steps."""
        return self.steps * statistics.median(self.plain)

    @property
    def rounds(self) -> list[float]:
        """The share in each round."""
        return [
            (self.recorded * w + r) / (self.steps * s)
            for s, w, r in zip(self.plain, self.recording, self.reading)
        ]


def measure(runs: int, device: str, overrides: Sequence[str]) -> Share:
    """SimSiam with ``target_pow``; ResNet-18, k = 2048 and batch 256 unless overridden."""
    step = Step(device, "method=simsiam", "filter=target_pow", "batch_size=256", *overrides)
    recorded = Recorded(step, device)
    plain, watched, reading = interleaved([step, recorded, recorded.metric.compute], runs, device)
    return Share(
        k=recorded.metric.dim,
        batch=step.cfg.batch_size,
        size=step.cfg.dataset.image_size,
        max_rows=step.cfg.diagnostics.max_rows,
        plain=plain,
        watched=watched,
        recording=recorded.seconds[1:],  # without the round that warms up
        reading=reading,
    )


def bench_spectra(runs: int, device: str, overrides: Sequence[str]) -> None:
    """Print the share and its terms."""
    share = measure(runs, device, overrides)
    work = statistics.median(share.recording)
    difference = statistics.median(b - a for a, b in zip(share.plain, share.watched))
    print(f"k = {share.k}, batch {share.batch}, {share.size} px; medians of {runs} rounds")
    print(f"step                    {statistics.median(share.plain):>10.3f} s")
    print(f"recording it takes      {work:>10.3f} s (the steps' difference: {difference:.3f} s)")
    print(f"reading all measures    {statistics.median(share.reading):>10.3f} s, once an epoch")
    print(
        f"an epoch of {IMAGES} images: {share.steps} steps, {share.recorded} recorded "
        f"(max_rows={share.max_rows}): {share.seconds:.1f} s of {share.epoch:.0f} s, "
        f"{share.seconds / share.epoch:.2%}"
    )
    print(f"of an epoch of {GPU_EPOCH:.0f} s, as on a GPU: {share.seconds / GPU_EPOCH:.1%}")
    print(f"round by round {min(share.rounds):.2%}..{max(share.rounds):.2%}")
