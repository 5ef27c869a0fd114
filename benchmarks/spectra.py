"""Measure the share of the spectra in an epoch of CIFAR-10's size.

It consists of the recorded steps and of computing the measures once. The extra work of a recorded
step is timed directly, because the difference of two steps is noisier than that work is long.
"""

import math
import statistics
from collections.abc import Sequence

from benchmarks.cost import Step
from benchmarks.timing import interleaved, now, run_command
from rdm_solo.observe.parts import observer
from rdm_solo.spectra.branch_spectra import BranchSpectra
from rdm_solo.spectra.epoch_summary import Spectra
from rdm_solo.spectra.features import FeatureSpectra

IMAGES = 50_000
VIEWS = 2
GPU_EPOCH = 25.0  # seconds for SimSiam on CIFAR-10 at batch 512, from lightly's documentation


class Recorded:
    """A step whose outputs are added to the spectra of the outputs and of the features.

    ``seconds`` has that part's time per call.
    """

    def __init__(self, step: Step, device: str) -> None:
        self.step, self.device = step, device
        self.observer = observer(step.model)
        options = step.cfg.diagnostics
        k = step.model.projector[-1].num_features
        sizes = {"max_dim": options.max_dim, "sample": options.sample}
        self.metric = BranchSpectra(k, **sizes, steps=True).to(device)  # as a run measures
        self.features = FeatureSpectra(step.model.features_dim).to(device)
        self.seconds: list[float] = []

    def __call__(self) -> None:
        self.observer.record_next_step()
        self.step()
        start = now(self.device)
        outputs = self.observer.pop_outputs(VIEWS)
        self.metric.update(outputs.online, outputs.target, outputs.positive, outputs.projection)
        self.features.update(outputs.features)
        self.seconds.append(now(self.device) - start)

    def measures(self) -> tuple[Spectra, dict[str, float]]:
        """Compute all measures of the recorded steps, as at the end of an epoch."""
        return self.metric.compute(), self.features.compute()


def measure(runs: int, device: str, overrides: Sequence[str]) -> None:
    """Print the share for SimSiam with ``target_pow``.

    The defaults are ResNet-18, k = 2048 and batch 256.
    """
    step = Step(device, "method=simsiam", "filter=target_pow", "batch_size=256", *overrides)
    recorded = Recorded(step, device)
    contestants = [step, recorded, recorded.measures]
    plain, _, reading = interleaved(contestants, runs, device)
    recording = recorded.seconds[1:]  # without the round that warms up
    batch, max_rows = step.cfg.batch_size, step.cfg.diagnostics.max_rows
    steps = IMAGES // batch
    # Every so many steps one is recorded, so that an epoch has at most `max_rows` view rows.
    interval = max(1, math.ceil(steps * VIEWS * batch / max_rows))
    measured = math.ceil(steps / interval)
    seconds = measured * statistics.median(recording) + statistics.median(reading)
    epoch = steps * statistics.median(plain)
    shares = []
    for step_seconds, record, read in zip(plain, recording, reading):
        shares.append((measured * record + read) / (steps * step_seconds))
    size = step.cfg.dataset.image_size
    print(f"k = {recorded.metric.dim}, batch {batch}, {size} px; medians of {runs} rounds")
    print(f"step                    {statistics.median(plain):>10.3f} s")
    print(f"recording it takes      {statistics.median(recording):>10.3f} s")
    print(f"reading all measures    {statistics.median(reading):>10.3f} s, once an epoch")
    print(
        f"an epoch of {IMAGES} images: {steps} steps, {measured} recorded (max_rows={max_rows}): "
        f"{seconds:.1f} s of {epoch:.0f} s, {seconds / epoch:.2%}"
    )
    print(f"of an epoch of {GPU_EPOCH:.0f} s, as on a GPU: {seconds / GPU_EPOCH:.1%}")
    print(f"round by round {min(shares):.2%}..{max(shares):.2%}")


if __name__ == "__main__":
    run_command("spectra", "the share of the spectra in an epoch of CIFAR-10's size", measure)
