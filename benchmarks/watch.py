"""Measure the share of a watch in an epoch of CIFAR-10's size.

The calls of the watch are timed directly, because the difference of two training steps is noisier
than these calls are long. Steps are ResNet-18's at batch 64, where a call counts more than at 256.
"""

import math
import statistics
import tempfile
from collections.abc import Sequence

from benchmarks.cost import Step
from benchmarks.timing import Call, now, run_command
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
    """Print the share for both models, and the time of each call."""
    for name, (options, parts) in MODELS.items():
        step = Step(device, *options, *overrides)
        with tempfile.TemporaryDirectory() as folder:
            watch = Watch(folder, step.model, views=VIEWS, quiet=True, checks=False, **parts)
            print(f"{name}: {share_of_epoch(watch, step, runs, device)}")
            watch.close()


def share_of_epoch(watch: Watch, step: Step, runs: int, device: str) -> str:
    """Return the watch's share of an epoch, with the medians of its parts."""
    plain, recorded, other, ends = [], [], [], []
    for _ in range(runs):
        # The first step of an epoch is recorded.
        plain.append(seconds(step, device))
        recorded.append(seconds(watch.step, device))
        watch.recorder.observer.recording = False
        other.append(seconds(watch.step, device))
        ends.append(seconds(watch.end_epoch, device))
    step_time, record, rest, end = map(statistics.median, (plain, recorded, other, ends))
    batch = step.cfg.batch_size
    steps = IMAGES // batch
    interval = math.ceil(steps * VIEWS * batch / watch.recorder.limits.max_rows)
    recorded_steps = math.ceil(steps / interval)
    total = recorded_steps * record + (steps - recorded_steps) * rest + end
    other_steps = steps - recorded_steps
    return (
        f"{100 * total / (steps * step_time):.2f} % of an epoch, which has {steps} steps of "
        f"{1e3 * step_time:.0f} ms: {recorded_steps} recorded steps of {1e3 * record:.1f} ms, "
        f"{other_steps} others of {1e6 * rest:.0f} us, and the end of {end:.2f} s"
    )


def seconds(call: Call, device: str) -> float:
    start = now(device)
    call()
    return now(device) - start


if __name__ == "__main__":
    run_command("watch", "the share of a watch in an epoch", measure)
