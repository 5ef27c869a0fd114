"""Time epochs of 50,000 images, as users start them and in a plain loop."""

import itertools
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.loops import plain_epochs
from benchmarks.gpu.steps import GRAPHS, SMALL
from rdm_solo.data import loader
from rdm_solo.train import compose
from rdm_solo.train.training_data import make_data

NONE = [
    "diagnostics.every_n_epochs=0",
    "knn.every_n_epochs=0",
    "checkpoint.every_n_epochs=100",
]


class Run(NamedTuple):
    """A run of a few epochs, of which the first is not timed."""

    options: list[str]
    count: int = 3


RUNS = {
    # Spectra in each epoch, kNN in the last one, and at least one checkpoint.
    "as users start it": Run([], 4),
    "the same, CUDA graphs": Run([GRAPHS], 4),
    "no spectra, kNN or checkpoint": Run(NONE),
    "no spectra, kNN or checkpoint, learned predictor": Run([*NONE, "filter=learnable", "p=null"]),
    "kNN alone": Run([*NONE, "knn.every_n_epochs=1"], 2),
    "checkpoint alone": Run([*NONE, "checkpoint.every_n_epochs=1"], 2),
}


def epoch_seconds(options: Sequence[str], count: int) -> list[float]:
    """Run the command and return the seconds of each epoch but the first."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-u", "-m", "rdm_solo.train", "method=simsiam"]
        command += ["filter=target_pow", "dataset=synthetic", f"max_epochs={count}"]
        command += [*options, f"hydra.run.dir={folder}/run"]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert run.stdout is not None
        ends, lines = [], []
        for line in run.stdout:
            lines.append(line)
            if re.match(r"epoch +[1-9]\d*/", line):
                ends.append(time.perf_counter())
        if run.wait():
            raise RuntimeError("".join(lines[-15:]))
        return [after - before for before, after in itertools.pairwise(ends)]


def views_alone(bench: Bench, size: Sequence[str], count: int) -> list[float]:
    """Compute the views alone and return the seconds of each epoch but the first."""
    cfg = compose([*size, "method=simsiam", "dataset=synthetic"])
    dataset, views = make_data(cfg)
    batches = loader(dataset, "train", cfg.batch_size, views=views, device=bench.device)
    seconds = []
    for epoch in range(count):
        batches.set_epoch(epoch)
        start = time.perf_counter()
        for _, (view, *_), _ in batches:
            last = view
        last.sum().item()  # waits for the device
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
    seconds = plain_epochs(bench, 3)
    plain = statistics.median(seconds)
    _row(bench, "plain PyTorch loop, learned predictor", seconds, plain)
    _row(bench, "the views of rdm-solo train alone", views_alone(bench, size, 3), plain)
    for name, run in RUNS.items():
        if GRAPHS in run.options and not bench.on_gpu:  # a run on a CPU refuses it
            continue
        _row(bench, name, epoch_seconds([*size, *run.options], run.count), plain)
    bench.write()


def _row(bench: Bench, name: str, seconds: Sequence[float], plain: float) -> None:
    middle = statistics.median(seconds)
    each = ", ".join(f"{value:.2f}" for value in seconds)
    cells = [name, each, f"{middle:.2f}", f"{middle / plain:.2f}", f"{middle * 200 / 60:.0f} min"]
    bench.row(cells)
