"""The paper's claims on data that everybody has: ``python -m rdm_solo.evidence``.

Every row of the table is trained over several seeds on the embedded digits, probed at a third of
training and at its end, and written with its spread into one page. Runs that are there already are
not repeated, so an interrupted command goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from torch import Tensor

from rdm_solo import data, methods, train
from rdm_solo.callbacks.neighbours import Neighbours, unit
from rdm_solo.cli.answers import say_anything
from rdm_solo.cli.config_files import config_folder
from rdm_solo.evaluate.probe import fit_linear
from rdm_solo.evidence import page
from rdm_solo.lightning import pl
from rdm_solo.runs.files import SUMMARY, write_whole
from rdm_solo.runs.settings import SETTING, differences
from rdm_solo.train import derived_values

__all__ = ["ROWS", "Probe", "Row", "measure"]

# What every run shares; a narrower network than the digits' recipe, half as many epochs.
SHARED = [
    "dataset=digits",
    "trainer=cpu",
    "backbone.kwargs.width=16",
    "max_epochs=15",
    "scheduler.warmup_epochs=3",
    "knn.every_n_epochs=0",  # the probe has its own
    "++trainer.check_val_every_n_epoch=15",
    "trainer.enable_progress_bar=false",
]
WARMUP = 3
PROBED = (5, 15)  # epochs after which kNN and linear accuracy are measured
FIXED = [
    ("online σ", ["filter=online_pow", "p=1"]),
    ("online log σ", ["filter=online_log"]),
    ("online log(1+σ)", ["filter=online_log1p"]),
    ("online log(1+σ²)", ["filter=online_log1p_sq"]),
    *((f"target σ^{p}", ["filter=target_pow", f"p={p}"]) for p in (-0.3, -0.5, -0.7, -1)),
    ("wrong way, target σ^0.5", ["filter=target_pow", "p=0.5"]),
    ("wrong way, online σ^-0.5", ["filter=online_pow", "p=-0.5"]),
]
PREDICTORS = [(name, [f"filter={name}"]) for name in ("learnable", "linear", "identity")]


@dataclass(frozen=True)
class Row:
    """One line of the table: a family, a name in it, and the overrides that make the run."""

    family: str
    name: str
    overrides: tuple[str, ...]

    @property
    def folder(self) -> str:
        """A file name of plain letters."""
        return "_".join(part.split("=")[-1] for part in self.overrides)


ROWS = [
    Row("symmetric", "vanilla", ("method=vanilla",)),
    Row("symmetric", "vanilla, no last BN", ("method=vanilla", "method.last_bn=false")),
    Row("symmetric", "SymSimSiam", ("method=symsimsiam",)),
    Row("symmetric", "SymSimSiam, no last BN", ("method=symsimsiam", "method.last_bn=false")),
    *(Row("SimSiam", name, ("method=simsiam", *how)) for name, how in PREDICTORS + FIXED),
    *(Row("BYOL", name, ("method=byol", *how)) for name, how in PREDICTORS + FIXED),
    Row("clustering", "SwAV", ("method=swav",)),
    Row("clustering", "DINO", ("method=dino",)),
]


class Probe(pl.Callback):  # type: ignore[misc,name-defined]
    """kNN and linear accuracy of the backbone after the given epochs."""

    def __init__(self, epochs: Sequence[int]) -> None:
        self.epochs = epochs
        self.found: dict[str, dict[str, float]] = {}

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        epoch = trainer.current_epoch + 1
        if epoch in self.epochs:
            module = trainer.datamodule
            pl_module.eval()
            loaders = module.memory_dataloader(), module.val_dataloader()
            self.found[str(epoch)] = accuracies(pl_module.backbone, *loaders)
            pl_module.train()


@torch.no_grad()
def accuracies(backbone: Callable[[Tensor], Tensor], train: Any, val: Any) -> dict[str, float]:
    """The weighted kNN of the runs and the paper's linear probe on frozen, plain features."""
    (x, y), (x_val, y_val) = (_features(backbone, loader) for loader in (train, val))
    found = Neighbours(unit(x_val), k=20)
    found.add(unit(x), y)
    guesses = found.scores(10, temperature=0.07).argmax(1)
    with torch.enable_grad():
        linear = fit_linear(x, y, x_val, y_val, num_classes=10)
    return {"knn": float(100 * (guesses == y_val).float().mean()), "linear": linear.curve[-1].top1}


def _features(backbone: Callable[[Tensor], Tensor], loader: Any) -> tuple[Tensor, Tensor]:
    parts = [(backbone(x), y) for x, y in loader]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def _configure(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        return compose("config", overrides=[*SHARED, *overrides])


def measure(row: Row, seed: int, runs: Path) -> Path:
    """Train and probe one row with one seed, unless its folder holds the result already."""
    folder = runs / row.folder / str(seed)
    done = folder / "probe.json"
    cfg = _configure(*row.overrides, f"seed={seed}")
    if done.exists():
        before = json.loads((folder / SUMMARY).read_text())["config"]
        if differences(before, cfg, (*SETTING, "seed", "diagnostics", "knn")):
            raise ValueError(f"{folder} was run with other settings; remove it, or give --runs.")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        probe = Probe(PROBED)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train.run(cfg, folder, [probe])
        write_whole(done, json.dumps(probe.found, indent=2) + "\n")
    return folder


def untrained(seed: int | None) -> dict[str, float]:
    """The same probes on raw pixels (no seed), or on a network as it is initialised."""
    dataset = data.digits()
    backbone: Callable[[Tensor], Tensor] = lambda x: x.flatten(1)  # noqa: E731
    if seed is not None:
        pl.seed_everything(seed, verbose=False)
        backbone = methods.build(
            derived_values.derive(_configure(), dataset, 2, 0)[0]
        ).backbone.eval()
    loaders = (
        data.EpochLoader(part, 512, mean=dataset.mean, std=dataset.std)
        for part in (dataset.train, dataset.val)
    )
    return accuracies(backbone, *loaders)


def run_all(seeds: Sequence[int], runs: Path, jobs: int) -> None:
    """Every row with every seed, seed after seed, ``jobs`` at a time on one thread each."""
    todo = [(row, seed) for seed in seeds for row in ROWS]
    started = time.perf_counter()
    with ProcessPoolExecutor(jobs, get_context("spawn"), _worker) as pool:
        futures = [pool.submit(measure, row, seed, runs) for row, seed in todo]
        for count, future in enumerate(as_completed(futures), 1):
            minutes = (time.perf_counter() - started) / 60
            print(f"{count}/{len(todo)} {future.result()} ({minutes:.1f} min)", file=sys.stderr)


def _worker() -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)


def collect(seeds: Sequence[int], runs: Path) -> dict[str, dict[str, list[float]]]:
    """Row -> column -> one number for each seed."""
    table: dict[str, dict[str, list[float]]] = {}
    for row in ROWS:
        found = [page.read(runs / row.folder / str(seed), WARMUP) for seed in seeds]
        table[f"{row.family}: {row.name}"] = {
            name: [columns[name] for columns in found] for name in found[0]
        }
    return table


def baselines(seeds: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Raw pixels, and as many untrained networks as there are seeds."""
    pixels, networks = untrained(None), [untrained(seed) for seed in seeds]
    return {
        "raw pixels": {f"{name} end": [value] for name, value in pixels.items()},
        "untrained network": {
            f"{name} end": [found[name] for found in networks] for name in pixels
        },
    }


def facts(seeds: Sequence[int], runs: Path, arguments: Sequence[str]) -> dict[str, str]:
    """How the numbers came about."""
    summaries = [
        json.loads((runs / row.folder / str(seed) / SUMMARY).read_text())
        for row in ROWS
        for seed in seeds
    ]
    versions = {json.dumps(summary["versions"]) for summary in summaries}
    seconds = statistics.median(summary["seconds"] for summary in summaries)
    command = " ".join(["python -m rdm_solo.evidence", *arguments])
    return {
        "command": f"`{command}`",
        "every run": f"`{' '.join(SHARED)}` and the row's own; the rest is the digits' recipe",
        "seeds": ", ".join(map(str, seeds)),
        "runs": f"{len(summaries)}, {seconds:.0f} s each at the median",
        "hardware": f"{_processor()}, one thread a run",
        "versions": "; ".join(
            ", ".join(f"{name} {value}" for name, value in json.loads(found).items())
            for found in sorted(versions)
        ),
    }


def _processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rdm_solo.evidence",
        description="Train every row of the table over several seeds on the embedded digits, judge "
        "the paper's claims by them, and write one page. Finished runs are not repeated, so that "
        "an interrupted command continues where it stopped.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    seeds, runs, out = [30, 31, 32, 33, 34], Path("runs/evidence"), Path("docs/evidence.md")
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds, help="seeds of every row")
    parser.add_argument("--runs", type=Path, default=runs, help="folder for the runs")
    parser.add_argument("--out", type=Path, default=out, help="file for the page")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    arguments = sys.argv[1:] if argv is None else list(argv)
    say_anything()
    options = parser.parse_args(arguments)
    if len(options.seeds) < 2:
        parser.error("--seeds needs at least two seeds, to compute a spread")
    run_all(options.seeds, options.runs, options.jobs)
    torch.set_num_threads(1)
    text = page.page(
        collect(options.seeds, options.runs),
        baselines(options.seeds),
        facts(options.seeds, options.runs, arguments),
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(options.out, text)
    print(f"{options.out} is written from {len(ROWS) * len(options.seeds)} runs in {options.runs}")
