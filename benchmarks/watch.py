"""Measure the share of a watch in an epoch of CIFAR-10's size, and the memory that it keeps.

The time of ``Watch.step`` is measured directly in recorded and in other steps, because the
difference of two training steps is noisier than that time is long.
"""

import math
import statistics
import tempfile
from collections.abc import Sequence

from benchmarks.cost import Step
from benchmarks.timing import now, run_command
from rdm_solo.watch import Watch

IMAGES = 50_000
VIEWS = 2
MODELS = {
    "SimSiam, k = 2048": (["method=simsiam", "filter=learnable"], {}),
    "DINO, 65,536 outputs": (
        ["method=dino", "method.kwargs.num_prototypes=65536"],
        {"online": "head", "target": "momentum_head"},
    ),
}


def measure(runs: int, device: str, overrides: Sequence[str]) -> None:
    """Print the share for ResNet-18 at batch 256."""
    for name, (options, parts) in MODELS.items():
        step = Step(device, *options, "batch_size=256", *overrides)
        with tempfile.TemporaryDirectory() as folder:
            watch = Watch(folder, step.model, views=VIEWS, quiet=True, **parts)
            print(f"{name}: {share_of_epoch(watch, step, runs, device)}")
            watch.close()


def share_of_epoch(watch: Watch, step: Step, runs: int, device: str) -> str:
    """Return the watch's share of an epoch, as a sentence with its parts."""
    batch = step.cfg.batch_size
    steps = IMAGES // batch
    rows = VIEWS * batch
    recorded_steps = math.ceil(
        steps / max(1, math.ceil(steps * rows / watch.recorder.limits.max_rows))
    )
    for _ in range(12):  # the steps in which the loop is checked
        step()
        watch.step()
    plain, other, recorded, ends = [], [], [], []
    for _ in range(runs):
        watch.end_epoch()  # the next step is recorded
        plain.append(seconds(step, device))
        recorded.append(seconds(watch.step, device))
        plain.append(seconds(step, device))
        watch.recorder.observer.recording = False
        other.append(seconds(watch.step, device))
        ends.append(seconds(watch.end_epoch, device))
    total = (
        recorded_steps * statistics.median(recorded)
        + (steps - recorded_steps) * statistics.median(other)
        + statistics.median(ends)
    )
    epoch = steps * statistics.median(plain)
    return (
        f"{100 * total / epoch:.2f} % of an epoch of {epoch:.0f} s "
        f"({recorded_steps} recorded steps of {1e3 * statistics.median(recorded):.1f} ms, others "
        f"{1e3 * statistics.median(other):.3f} ms, end {statistics.median(ends):.2f} s; a step "
        f"takes {1e3 * statistics.median(plain):.0f} ms)"
    )


def seconds(call, device: str) -> float:
    start = now(device)
    call()
    return now(device) - start


if __name__ == "__main__":
    run_command("watch", "the share of a watch in an epoch", measure)
