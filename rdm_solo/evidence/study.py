"""The paper's claims on data that everybody has: ``python -m rdm_solo.evidence``.

Every row of ``study.yaml`` is trained over several seeds on the embedded digits, probed at a third
of training and at its end, and written with its spread into one page.
"""

import argparse
import json
import logging
import math
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.resources import files
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from tqdm import tqdm

from rdm_solo import cli, data, methods, runs, train
from rdm_solo.bench.timing import processor
from rdm_solo.callbacks.knn import Neighbours, unit
from rdm_solo.evaluate.features import extract
from rdm_solo.evaluate.probe import fit_linear
from rdm_solo.evidence.page import page
from rdm_solo.lightning import pl
from rdm_solo.report.verdicts import NO_GAP
from rdm_solo.runs.files import SUMMARY, write_whole
from rdm_solo.runs.settings import SETTING, differences
from rdm_solo.train import derived_values

STUDY: Any = OmegaConf.to_container(
    OmegaConf.create((files("rdm_solo.evidence") / "study.yaml").read_text(encoding="utf-8")),
    resolve=True,
)
SHARED: list[str] = STUDY["shared"]
ROWS: dict[str, list[str]] = STUDY["rows"]
WARMUP = 3
PROBED = (5, 15)  # epochs after which kNN and linear accuracy are measured
PROBE = "probe.json"

# Columns of the table that are the last value of a column of metrics.csv.
LAST = {
    "variance": "feature/variance",
    "erank projection last": "erank/projection",
    "alignment": "alignment/online_target",
    "alignment weighted": "alignment/online_target_weighted",
    "alignment positive": "alignment/target_positive",
    "monotonicity": "filter/monotonicity",
    "monotonicity directional": "filter/monotonicity_directional",
}


class Probe(pl.Callback):  # type: ignore[misc,name-defined]
    """kNN and linear accuracy of the backbone after the epochs of ``PROBED``."""

    def __init__(self) -> None:
        self.found: dict[int, dict[str, float]] = {}

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        epoch = trainer.current_epoch + 1
        if epoch in PROBED:
            module = trainer.datamodule
            pl_module.eval()
            loaders = module.memory_dataloader(), module.val_dataloader()
            self.found[epoch] = accuracies(pl_module.backbone, *loaders)
            pl_module.train()


def accuracies(backbone: Callable[[Tensor], Tensor], train: Any, val: Any) -> dict[str, float]:
    """The weighted kNN of the runs and the paper's linear probe on frozen, plain features."""
    (x, y), (x_val, y_val) = (extract(backbone, loader) for loader in (train, val))
    found = Neighbours(unit(x_val), k=20)
    found.add(unit(x), y)
    guesses = found.scores(10, temperature=0.07).argmax(1)
    linear = fit_linear(x, y, x_val, y_val, num_classes=10)
    return {"knn": float(100 * (guesses == y_val).float().mean()), "linear": linear.curve[-1].top1}


def untrained(seed: int | None) -> dict[str, float]:
    """The same probes on raw pixels (no seed), or on a network as it is initialised."""
    dataset = data.digits()
    backbone: nn.Module = nn.Flatten()
    if seed is not None:
        pl.seed_everything(seed, verbose=False)
        cfg, _ = derived_values.derive(cli.compose("config", SHARED), dataset, 2, 0)
        backbone = methods.build(cfg).backbone.eval()
    return accuracies(backbone, *(data.loader(dataset, part, 512) for part in ("train", "val")))


def folder_of(row: str, seed: int, root: Path) -> Path:
    """A run's folder, named by the values of its row's options."""
    return root / "_".join(option.split("=")[-1] for option in ROWS[row]) / str(seed)


def measure(row: str, seed: int, root: Path) -> None:
    """Train and probe one row with one seed, unless its folder holds the result already."""
    folder = folder_of(row, seed, root)
    cfg = cli.compose("config", [*SHARED, *ROWS[row], f"seed={seed}"])
    if (folder / PROBE).exists():
        before = json.loads((folder / SUMMARY).read_text())["config"]
        if differences(before, cfg, (*SETTING, "seed", "diagnostics", "knn")):
            raise ValueError(f"{folder} was run with other settings; remove it, or give --runs.")
        return
    folder.mkdir(parents=True, exist_ok=True)
    probe = Probe()
    train.run(cfg, folder, [probe])
    write_whole(folder / PROBE, json.dumps(probe.found, indent=2) + "\n")


def run_all(seeds: Sequence[int], root: Path, jobs: int) -> None:
    """Every row with every seed, seed after seed, ``jobs`` at a time."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), _silence) as pool:
        futures = [pool.submit(measure, row, seed, root) for seed in seeds for row in ROWS]
        for future in tqdm(as_completed(futures), total=len(futures), unit="run"):
            future.result()


def _silence() -> None:
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")


def read(folder: Path) -> dict[str, float]:
    """The columns of one run, from its metrics and its probe."""
    metrics = runs.read_metrics(folder)
    found = {name: metrics[column][-1] for name, column in LAST.items()}
    probes = json.loads((folder / PROBE).read_text())
    for when, probe in zip(("third", "end"), probes.values()):
        found |= {f"{kind} {when}": accuracy for kind, accuracy in probe.items()}
    for branch in ("online", "target"):
        erank = metrics[f"erank/{branch}"]
        found[f"erank {branch} first"], found[f"erank {branch} last"] = erank[0], erank[-1]
        found[f"erank {branch} rise"] = math.log(erank[-1] / erank[WARMUP])
    found["gap share"] = float((metrics["erank/gap"] > NO_GAP).mean())
    for name, value in found.items():
        if not math.isfinite(value):
            raise ValueError(f"{folder}: {name} is {value}, but a mean needs finite numbers.")
    return found


def _by_column(found: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    return {name: [columns[name] for columns in found] for name in found[0]}


def collect(seeds: Sequence[int], root: Path) -> dict[str, dict[str, list[float]]]:
    """Row -> column -> one number for each seed."""
    return {row: _by_column([read(folder_of(row, seed, root)) for seed in seeds]) for row in ROWS}


def baselines(seeds: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Raw pixels, and as many untrained networks as there are seeds."""
    found = {
        "raw pixels": _by_column([untrained(None)]),
        "untrained network": _by_column([untrained(seed) for seed in seeds]),
    }
    return {
        row: {f"{kind} end": values for kind, values in columns.items()}
        for row, columns in found.items()
    }


def facts(seeds: Sequence[int], root: Path, arguments: Sequence[str]) -> dict[str, str]:
    """How the numbers came about."""
    folders = [folder_of(row, seed, root) for row in ROWS for seed in seeds]
    summaries = [json.loads((folder / SUMMARY).read_text()) for folder in folders]
    seconds = statistics.median(summary["seconds"] for summary in summaries)
    versions = {
        ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
        for summary in summaries
    }
    return {
        "command": f"`{' '.join(['python -m rdm_solo.evidence', *arguments])}`",
        "every run": f"`{' '.join(SHARED)}` and the row's own; the rest is the digits' recipe",
        "seeds": ", ".join(map(str, seeds)),
        "runs": f"{len(summaries)}, {seconds:.0f} s each at the median",
        "hardware": f"{processor()}, one thread a run",
        "versions": "; ".join(sorted(versions)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rdm_solo.evidence",
        description="Train every row of the table over several seeds on the embedded digits, judge "
        "the paper's claims by them, and write one page. Finished runs are not repeated, so that "
        "an interrupted command continues where it stopped.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    seeds, root, out = [30, 31, 32, 33, 34], Path("runs/evidence"), Path("docs/evidence.md")
    parser.add_argument("--seeds", type=int, nargs="+", default=seeds, help="seeds of every row")
    parser.add_argument("--runs", type=Path, default=root, help="folder for the runs")
    parser.add_argument("--out", type=Path, default=out, help="file for the page")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    cli.say_anything()
    options = parser.parse_args()
    if len(options.seeds) < 2:
        parser.error("--seeds needs at least two seeds, to compute a spread")
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    run_all(options.seeds, options.runs, options.jobs)
    torch.set_num_threads(1)
    text = page(
        collect(options.seeds, options.runs),
        baselines(options.seeds),
        STUDY["claims"],
        facts(options.seeds, options.runs, sys.argv[1:]),
    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(options.out, text)
    print(f"{options.out} is written from {len(ROWS) * len(options.seeds)} runs in {options.runs}")
