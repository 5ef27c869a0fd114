"""Time epochs of 50,000 images, in ``rdm-solo train`` and in a plain loop."""

import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.loops import plain_epochs
from benchmarks.gpu.steps import SMALL
from rdm_solo.data import loader
from rdm_solo.ground.lightning import pl
from rdm_solo.train import compose
from rdm_solo.train.run import run
from rdm_solo.train.training_data import make_data

ALL_OFF = [
    "diagnostics.every_n_epochs=0",
    "knn.every_n_epochs=0",
    "checkpoint.every_n_epochs=100",
]
RUNS = {
    # Spectra in each epoch, a checkpoint after the first one, and kNN in the last one, which a
    # median of three leaves out.
    "as users start it": ["max_epochs=4"],
    "no spectra, kNN or checkpoint": ALL_OFF,
    "kNN alone": [*ALL_OFF, "knn.every_n_epochs=1"],
    "checkpoint alone": [*ALL_OFF, "checkpoint.every_n_epochs=1"],
}
EPOCHS = 3  # unless an option says otherwise; the first one is not timed


class Clock(pl.Callback):  # type: ignore[misc]
    """Read the time at the end of each epoch."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.ends.append(time.perf_counter())


def epoch_seconds(options: Sequence[str]) -> list[float]:
    """Train as the command does, and return the seconds of each epoch but the first."""
    overrides = ["method=simsiam", "filter=target_pow", "dataset=synthetic", f"max_epochs={EPOCHS}"]
    overrides += [*options, "trainer.enable_progress_bar=false"]
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        run(compose(overrides), Path(folder) / "run", [clock], overrides)
    return [after - before for before, after in itertools.pairwise(clock.ends)]


def views_alone(bench: Bench, size: Sequence[str]) -> list[float]:
    """Compute the views alone and return the seconds of each epoch but the first."""
    cfg = compose([*size, "method=simsiam", "dataset=synthetic"])
    dataset, views = make_data(cfg)
    batches = loader(dataset, "train", cfg.batch_size, views=views, device=bench.device)
    seconds = []
    for epoch in range(EPOCHS):
        batches.set_epoch(epoch)
        start = time.perf_counter()
        for _, views_of_batch, _ in batches:
            last = views_of_batch
        last[0].sum().item()  # waits for the device
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def epochs(bench: Bench) -> None:
    """Time epochs of 50,000 images of 32 px."""
    size = ["dataset.num_train=50000", "dataset.num_val=10000", "batch_size=256"]
    size += ["backbone.name=resnet18", "trainer=gpu", "trainer.precision=bf16-mixed"]
    if bench.small:
        size = [*SMALL, "dataset.num_train=64", "dataset.num_val=32", "trainer=cpu"]
    bench.write("## An epoch of 50,000 images of 32 px: ResNet-18, σ^-0.5, batch 256, bf16 (s)\n")
    columns = ["run", "epochs after the first", "median", "÷ plain", "200 epochs"]
    bench.head(columns)
    seconds = plain_epochs(bench, EPOCHS)
    plain = statistics.median(seconds)
    _row(bench, "plain PyTorch loop, learned predictor", seconds, plain)
    _row(bench, "the views of rdm-solo train alone", views_alone(bench, size), plain)
    for name, options in RUNS.items():
        _row(bench, name, epoch_seconds([*size, *options]), plain)
    bench.write()


def _row(bench: Bench, name: str, seconds: Sequence[float], plain: float) -> None:
    middle = statistics.median(seconds)
    each = ", ".join(f"{value:.2f}" for value in seconds)
    cells = [name, each, f"{middle:.2f}", f"{middle / plain:.2f}", f"{middle * 200 / 60:.0f} min"]
    bench.row(cells)
