"""Time whole training steps, what spectra add to them, and what a watch adds to a plain loop."""

import contextlib
import math
import statistics
import tempfile
import time
from collections.abc import Sequence

import torch
from omegaconf import DictConfig
from torch import nn

from benchmarks.cost import Step
from benchmarks.gpu.bench import Bench, digits
from benchmarks.gpu.heads import PaperTarget
from benchmarks.gpu.loops import HALF, LightlyLoop, PlainLoop
from benchmarks.spectra import IMAGES, VIEWS, Recorded
from benchmarks.timing import Call, Calls
from rdm_solo.methods import solo_learn
from rdm_solo.watch import Watch

FILTERS = {
    "learned predictor": ["filter=learnable"],
    "identity": ["filter=identity"],
    "σ^-0.5": ["filter=target_pow", "p=-0.5"],
    "σ^-1": ["filter=target_pow", "p=-1"],
    "online log(1+σ)": ["filter=online_log1p"],
}
# Contestants of the large networks.
BARS = ("learned predictor", "σ^-0.5", "σ^-1")
SMALL = [
    "batch_size=8",
    "dataset.image_size=8",
    "backbone.name=small_resnet",
    "+backbone.kwargs.width=8",
    "method.kwargs.proj_hidden_dim=16",
    "method.kwargs.proj_output_dim=16",
]
FUSED = "optimizer.fused=true"  # as with trainer=gpu


def bare_solo_learn(cfg: DictConfig) -> nn.Module:
    """Return solo-learn's own SimSiam."""
    model: nn.Module = solo_learn.adapt("simsiam")(cfg)
    return model


def contestants(bench: Bench, options: Sequence[str], dtype: torch.dtype | None) -> Calls:
    """Return a ResNet-18's steps: each filter, other ways to compute σ^-0.5, and other loops."""
    calls = dict(our_steps(bench, options, *FILTERS))
    by_eigh = [*options, "filter.solver=eigh"]
    calls["σ^-0.5 by eigh"] = filtered_step(bench, by_eigh, "σ^-0.5")
    step = filtered_step(bench, options, "identity")
    step.model.target_head = PaperTarget(-0.5)
    calls["Algorithm 2 as printed, σ^-0.5"] = step
    plain_layout = [*options, "backbone.channels_last=false"]
    theirs = Step(bench.device, "method=simsiam", *plain_layout, build=bare_solo_learn)
    calls[f"solo-learn {solo_learn.version()}, learned predictor"] = theirs
    with contextlib.suppress(ImportError):  # lightly need not be installed
        calls["lightly, learned predictor"] = LightlyLoop(bench, dtype)
    calls["plain PyTorch, learned predictor"] = PlainLoop(bench, dtype)
    return calls


def filtered_step(bench: Bench, options: Sequence[str], name: str) -> Step:
    """Return a step as ``trainer=gpu`` builds it."""
    overrides = ["method=simsiam", *FILTERS[name], *options]
    if bench.on_gpu:
        overrides.append(FUSED)
    return Step(bench.device, *overrides)


def our_steps(bench: Bench, options: Sequence[str], *names: str) -> Calls:
    return {name: filtered_step(bench, options, name) for name in names}


def with_autocast(step: Call, bench: Bench, dtype: torch.dtype | None) -> Call:
    """Return the call under autocast, without its cache as in Lightning, or in float32."""
    enabled = dtype is not None
    autocast = torch.autocast(
        bench.device, dtype=dtype or HALF, enabled=enabled, cache_enabled=False
    )
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
        if network == resnet18 or bench.small:
            calls = contestants(bench, options, dtype)
        else:
            calls = our_steps(bench, options, *BARS)
        calls = {name: with_autocast(call, bench, dtype) for name, call in calls.items()}
        times = bench.times(calls)
        learned = times["learned predictor"].wall
        precision = "float32" if dtype is None else "bf16-mixed"
        for name, (gpu, wall) in times.items():
            cells = [network, precision, name, digits(gpu), digits(wall), f"{wall / learned:.3f}"]
            bench.row([*cells, bench.waits(calls[name])])
        del calls
        if bench.on_gpu:
            torch.cuda.empty_cache()
    bench.write()


def spectra(bench: Bench) -> None:
    """Time what the spectra add to a recorded step, and computing them once."""
    options = SMALL if bench.small else ["batch_size=256"]
    step = filtered_step(bench, options, "σ^-0.5")
    recorded = Recorded(step, bench.device)
    call = with_autocast(recorded, bench, HALF if bench.on_gpu else None)
    times = bench.times({"step": call, "measures": recorded.measures}, slow=True)
    recording = 1000 * statistics.median(recorded.seconds[1:])
    bench.write(f"## Spectra, k = {recorded.metric.dim} (ms, wall)\n")
    bench.head(["part", "time"])
    bench.row(["adding one recorded step's outputs", digits(recording)])
    bench.row(["computing all measures, once an epoch", digits(times["measures"].wall)])
    bench.write()


def watch(bench: Bench) -> None:
    """Time a plain loop with and without a watch."""
    dtype = HALF if bench.on_gpu else None
    plain = PlainLoop(bench, dtype)
    watched = PlainLoop(bench, dtype)
    bench.write("## Watch in the plain loop, ResNet-18, batch 256, bf16 (ms, wall)\n")
    bench.head(["part", "time", "more than the plain step", "waits"])
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(folder, watched.modules, views=VIEWS, quiet=True, checks=False)
        observer = watch.recorder.observer

        def recorded() -> None:
            observer.record_next_step()
            watch.step(watched())

        def other() -> None:
            observer.recording = False
            watch.step(watched())

        calls: Calls = {
            "step of the plain loop": plain,
            "step that the watch does not record": other,
            "step that the watch records": recorded,
        }
        times = {name: time.wall for name, time in bench.times(calls).items()}
        base, rest, record = times.values()
        for name, wall in times.items():
            bench.row([name, digits(wall), f"{wall / base - 1:+.1%}", bench.waits(calls[name])])
        ends = []
        for _ in range(3):
            recorded()
            start = time.perf_counter()
            watch.end_epoch()
            ends.append(1000 * (time.perf_counter() - start))
        end = statistics.median(ends)
        bench.row(["end of an epoch", digits(end), "–", "–"])
        watch.close()

    batch = plain.noise.shape[1]
    count = IMAGES // batch
    interval = math.ceil(count * VIEWS * batch / watch.recorder.limits.max_rows)
    most = math.ceil(count / interval)
    extra = most * (record - base) + (count - most) * (rest - base) + end
    share = extra / (count * base)
    bench.write(
        f"\nAn epoch of {IMAGES} images ({most} of {count} steps recorded): {share:+.1%}.\n"
    )
