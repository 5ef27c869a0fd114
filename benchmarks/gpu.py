"""Measure on a GPU what filters, spectra and whole epochs cost, and write Markdown tables.

    python -m benchmarks.gpu --out tables.md               # all sections
    python -m benchmarks.gpu decompositions filters steps  # a minute on an H200
    python -m benchmarks.gpu --small                       # on a CPU, to test this script

Contestants of one table run in turns in one process. "GPU" is the time between two CUDA events
around a call, and "wall" ends when the device has finished. An epoch is timed from outside: the
command runs as a user starts it, and the time between two of its lines is one epoch.
"""

import argparse
import itertools
import logging
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torchvision  # type: ignore[import-untyped, unused-ignore]
from torch import Tensor, nn

import rdm_solo
from benchmarks.cost import Step
from benchmarks.filters import algorithm_2, batch_normed, spectrum_floor
from benchmarks.spectra import Recorded
from benchmarks.timing import Call, Calls, processor
from rdm_solo.filters import SpectralFilter, get, relative_cut

HALF = torch.bfloat16


class Time(NamedTuple):
    """Medians of one contestant, in milliseconds."""

    gpu: float
    wall: float


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


def _ms(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def eigh_float32(gram: Tensor) -> object:
    return torch.linalg.eigh(gram.float())


def eigh_on_cpu(gram: Tensor) -> object:
    return torch.linalg.eigh(gram.cpu())


def with_backward(module: nn.Module, leaf: Tensor) -> None:
    loss: Tensor = nn.functional.normalize(module(leaf), dim=1).sum()
    loss.backward()


def decompositions(bench: Bench) -> None:
    """Time ``eigh`` of one Gram matrix, of a stack of two, and its alternatives."""
    sizes = (32, 64) if bench.small else (128, 256, 512, 2048)
    bench.write("## Decompositions of a float64 Gram matrix (ms)\n")
    for n in sizes:
        x = batch_normed(n, sizes[-1]).to(bench.device).double()
        gram = x @ x.mT
        stack = torch.stack([gram, gram + torch.eye(n, device=bench.device)])
        on_cpu = gram.cpu()
        calls: Calls = {
            "eigh": partial(torch.linalg.eigh, gram),
            "eigh of a stack of two": partial(torch.linalg.eigh, stack),
            "eigvalsh": partial(torch.linalg.eigvalsh, gram),
            "eigh float32": partial(eigh_float32, gram),
            "copy to the CPU, eigh there": partial(eigh_on_cpu, gram),
            "eigh on the CPU alone": partial(torch.linalg.eigh, on_cpu),
            "the Gram matrix itself": partial(torch.matmul, x, x.mT),
        }
        if n == sizes[0]:
            bench.head(["matrix", *calls])
        times = bench.times(calls, slow=n > 1000).values()
        bench.row([f"{n} × {n}", *(_ms(max(time)) for time in times)])
    bench.write()


class PaperTarget(nn.Module):
    """The paper's target filter as printed, with a float32 SVD."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.function = get("pow", p)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return algorithm_2(x.float(), "target", self.function)


def direction_error(x: Tensor, filtered: Tensor, p: float) -> float:
    """Return the largest error of a unit row against a float64 SVD on the CPU, with our cut."""
    u, sigma, vh = torch.linalg.svd(x.cpu().double(), full_matrices=False)
    kept = sigma > relative_cut(x.dtype, *x.shape) * sigma[0]
    powers = torch.where(kept, sigma.pow(1 + p), 0.0)
    expected = nn.functional.normalize((u * powers) @ vh)
    error = nn.functional.normalize(filtered.cpu().double()) - expected
    return float(error.norm(dim=1).max())


def filters(bench: Bench) -> None:
    """Time the filters alone, and check what was timed against float64."""
    shapes = [(256, 2048), (128, 512), (4096, 2048)]
    if bench.small:
        shapes = [(16, 32), (32, 16)]
    bench.write("## Filters alone (ms for one view: GPU / wall)\n")
    for n, k in shapes:
        x = batch_normed(n, k).to(bench.device)
        leaf = x.clone().requires_grad_()
        target = SpectralFilter("target", "pow", p=-0.5)
        online = SpectralFilter("online", "log1p")
        learned = predictor(k).to(bench.device)
        calls: Calls = {
            "σ^-0.5 (target)": partial(target, x),
            "log(1+σ) (online, with backward)": partial(with_backward, online, leaf),
            "learned predictor (with backward)": partial(with_backward, learned, leaf),
            "Algorithm 2 as printed, σ^-0.5": partial(PaperTarget(-0.5), x),
            "floor: Gram matrix and eigh": partial(spectrum_floor, x),
        }
        if (n, k) == shapes[0]:
            bench.head(["batch", *calls, "error of σ^-0.5, unit rows", "waits of σ^-0.5"])
        times = bench.times(calls, slow=n > 1000).values()
        error = direction_error(x, target(x), -0.5)
        waits = bench.waits(calls["σ^-0.5 (target)"])
        cells = [f"{_ms(time.gpu)} / {_ms(time.wall)}" for time in times]
        bench.row([f"({n}, {k})", *cells, f"{error:.1e}", waits])
    bench.write()


def layer(before: int, after: int) -> list[nn.Module]:
    return [nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.ReLU()]


def predictor(k: int) -> nn.Module:
    """Return SimSiam's predictor."""
    return nn.Sequential(*layer(k, k // 4), nn.Linear(k // 4, k))


class PlainLoop:
    """SimSiam on a ResNet-18 in plain PyTorch: no Lightning, no logging, no augmentation.

    Batches are sliced from images on the device. This is the floor for a step of this size.
    """

    def __init__(self, bench: Bench, dtype: torch.dtype | None) -> None:
        batch, size, k = (8, 8, 32) if bench.small else (256, 32, 2048)
        torch.manual_seed(0)
        backbone = torchvision.models.resnet18(num_classes=k)
        backbone.conv1 = nn.Conv2d(3, 64, 3, padding=2, bias=False)  # as in solo-learn
        backbone.maxpool = backbone.fc = nn.Identity()

        *projector, _ = layer(512, k) + layer(k, k) + layer(k, k)  # no ReLU at the end
        self.projector = nn.Sequential(*projector).to(bench.device)
        self.predictor = predictor(k).to(bench.device)
        self.backbone = backbone.to(bench.device, memory_format=torch.channels_last)
        modules = (self.backbone, self.projector, self.predictor)
        parameters = [p for module in modules for p in module.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, fused=bench.on_gpu)
        self.views = torch.randn(2, batch, 3, size, size, device=bench.device)
        self.autocast = torch.autocast(bench.device, dtype=dtype or HALF, enabled=bool(dtype))

    def __call__(self) -> None:
        with self.autocast:
            first, second = (self.projector(self.backbone(view)) for view in self.views)
            similarity = nn.functional.cosine_similarity
            one = similarity(self.predictor(first), second.detach())
            other = similarity(self.predictor(second), first.detach())
            loss = -one.mean() - other.mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()


FILTERS = {
    "learned predictor": ["filter=learnable"],
    "identity": ["filter=identity"],
    "σ^-0.5": ["filter=target_pow", "p=-0.5"],
    "σ^-1": ["filter=target_pow", "p=-1"],
    "online log(1+σ)": ["filter=online_log1p"],
    "Algorithm 2 as printed, σ^-0.5": ["filter=identity"],
}
SMALL = [
    "batch_size=8",
    "dataset.image_size=8",
    "backbone.name=small_resnet",
    "+backbone.kwargs.width=8",
    "method.kwargs.proj_hidden_dim=16",
    "method.kwargs.proj_output_dim=16",
]


def _autocast(step: Call, bench: Bench, dtype: torch.dtype | None) -> Call:
    enabled = dtype is not None
    autocast = torch.autocast(bench.device, dtype=dtype or HALF, enabled=enabled)
    return autocast(step)


def steps(bench: Bench) -> None:
    """Time whole training steps of SimSiam with each filter."""
    resnet18 = "ResNet-18, 32 px, batch 256"
    networks = {
        (resnet18, HALF): ["batch_size=256"],
        (resnet18, None): ["batch_size=256"],
        ("ResNet-50, 224 px, batch 128", HALF): [
            "batch_size=128",
            "dataset.image_size=224",
            "backbone.name=resnet50",
        ],
        ("ViT-S/16, 224 px, batch 128", HALF): [
            "batch_size=128",
            "dataset.image_size=224",
            "backbone.name=timm/vit_small_patch16_224",
            "backbone.kwargs={}",
        ],
    }
    if bench.small:
        networks = {("small, 8 px, batch 8", None): SMALL}
    bench.write("## A training step of SimSiam, k = 2048, one GPU (ms)\n")
    bench.write("Forward, loss, backward and optimiser; images are noise that is on the device.\n")
    bench.head(["network", "precision", "head", "GPU", "wall", "wall ÷ learned", "waits"])
    for (network, dtype), options in networks.items():
        calls = _steps(bench, options, dtype, all_filters=network == resnet18 or bench.small)
        times = bench.times(calls)
        own = times["learned predictor"].wall
        precision = "float32" if dtype is None else "bf16-mixed"
        for name, (gpu, wall) in times.items():
            cells = [network, precision, name, _ms(gpu), _ms(wall), f"{wall / own:.3f}"]
            bench.row([*cells, bench.waits(calls[name])])
        del calls
        if bench.on_gpu:
            torch.cuda.empty_cache()
    bench.write()


def _steps(
    bench: Bench, options: Sequence[str], dtype: torch.dtype | None, all_filters: bool
) -> Calls:
    """Return the contestants of one network."""
    names = FILTERS if all_filters else ["learned predictor", "identity", "σ^-0.5", "σ^-1"]
    calls: Calls = {}
    for name in names:
        step = Step(bench.device, "method=simsiam", *FILTERS[name], *options)
        if name.startswith("Algorithm 2"):
            step.model.target_head = PaperTarget(-0.5)
        calls[name] = _autocast(step, bench, dtype)
    if all_filters:
        calls["plain PyTorch, learned predictor"] = PlainLoop(bench, dtype)
    return calls


def spectra(bench: Bench) -> None:
    """Time what the spectra add to a recorded step, and computing them once."""
    options = SMALL if bench.small else ["batch_size=256"]
    step = Step(bench.device, "method=simsiam", "filter=target_pow", *options)
    recorded = Recorded(step, bench.device)
    call = _autocast(recorded, bench, HALF if bench.on_gpu else None)
    times = bench.times({"step": call, "measures": recorded.metric.compute}, slow=True)
    recording = 1000 * statistics.median(recorded.seconds[1:])
    bench.write(f"## Spectra, k = {recorded.metric.dim} (ms, wall)\n")
    bench.head(["part", "time"])
    bench.row(["adding one recorded step's outputs", _ms(recording)])
    bench.row(["computing all measures, once an epoch", _ms(times["measures"].wall)])
    bench.write()


COUNT = 4  # epochs of a run, of which the first is not timed
NONE = [
    "diagnostics.every_n_epochs=0",
    "knn.every_n_epochs=0",
    "checkpoint.every_n_epochs=100",
]
EPOCHS = {  # what is measured and saved in an epoch
    "spectra, kNN and checkpoint in each epoch": [],
    "none of the three": NONE,
    "spectra alone": [*NONE, "diagnostics.every_n_epochs=1"],
    "kNN alone": [*NONE, "knn.every_n_epochs=1"],
    "checkpoint alone": [*NONE, "checkpoint.every_n_epochs=1"],
    "learned predictor, all three": ["filter=learnable", "p=null"],
}


def epoch_seconds(options: Sequence[str], epochs: int) -> list[float]:
    """Run the command and return the seconds of each epoch but the first."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-u", "-m", "rdm_solo.train", "method=simsiam"]
        command += ["filter=target_pow", "dataset=synthetic", f"max_epochs={epochs}"]
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


def epochs(bench: Bench) -> None:
    """Time epochs of 50,000 images of 32 px."""
    size = ["dataset.num_train=50000", "dataset.num_val=10000", "batch_size=256"]
    size += ["backbone.name=resnet18", "knn.every_n_epochs=1"]
    size += ["trainer=gpu", "trainer.precision=bf16-mixed"]
    count = COUNT
    if bench.small:
        size = [*SMALL, "dataset.num_train=64", "dataset.num_val=32"]
        size += ["knn.every_n_epochs=1", "trainer=cpu"]
        count = 3
    bench.write("## An epoch of 50,000 images of 32 px: ResNet-18, σ^-0.5, batch 256, bf16 (s)\n")
    bench.head(["what is on", "epochs after the first", "median", "200 epochs"])
    for name, options in EPOCHS.items():
        seconds = epoch_seconds([*size, *options], count)
        middle = statistics.median(seconds)
        each = ", ".join(f"{value:.2f}" for value in seconds)
        bench.row([name, each, f"{middle:.2f}", f"{middle * 200 / 60:.0f} min"])
    bench.write()


SECTIONS = {
    "decompositions": decompositions,
    "filters": filters,
    "steps": steps,
    "spectra": spectra,
    "epochs": epochs,
}


def main() -> None:
    options = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__)
    options.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="default: all")
    options.add_argument("--device", default="cuda", help="default: cuda")
    options.add_argument("--runs", type=int, default=21, help="timed rounds (default: 21)")
    options.add_argument("--small", action="store_true", help="tiny shapes on the CPU")
    options.add_argument("--out", type=Path, help="file to which the tables are appended")
    parsed = options.parse_args()
    device = "cpu" if parsed.small else parsed.device
    logging.getLogger("rdm_solo").setLevel(logging.ERROR)  # filters log what they drop
    bench = Bench(device, 2 if parsed.small else parsed.runs, parsed.small, parsed.out)
    name = torch.cuda.get_device_name() if bench.on_gpu else processor()
    versions = (
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, rdm_solo {rdm_solo.__version__}"
    )
    bench.write(f"{name}; {versions}; Python {platform.python_version()}; {bench.runs} rounds.\n")
    failed = False
    for section in parsed.sections or SECTIONS:
        start = time.perf_counter()
        try:
            SECTIONS[section](bench)
        except Exception:  # the other tables are still wanted
            failed = True
            traceback.print_exc()
        print(f"[{section}: {time.perf_counter() - start:.0f} s]\n", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
