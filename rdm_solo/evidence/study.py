"""The paper's claims on data that everybody has: ``python -m rdm_solo.evidence``.

Every row of ``study.yaml`` is trained over its seeds on the embedded digits and probed at a third
of training and at its end. Each run adds a line to a table, and the page is made of the table.
"""

import argparse
import json
import math
import shutil
import statistics
import subprocess
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from torch import Tensor, nn

from rdm_solo import cli, data, methods, runs
from rdm_solo.bench.timing import processor
from rdm_solo.callbacks.knn import Neighbours, unit
from rdm_solo.evaluate.features import extract
from rdm_solo.evaluate.probe import fit_linear
from rdm_solo.evidence import command, processes, table
from rdm_solo.evidence.page import page
from rdm_solo.lightning import pl
from rdm_solo.messages import UserError, first_line
from rdm_solo.runs.files import write_whole
from rdm_solo.train import closing, derived_values, training

STUDY: Any = OmegaConf.to_container(
    OmegaConf.create((files("rdm_solo.evidence") / "study.yaml").read_text(encoding="utf-8")),
    resolve=True,
)
SHARED: list[str] = STUDY["shared"]
ROWS: dict[str, list[str]] = STUDY["rows"]
PIXELS, UNTRAINED = "raw pixels", "untrained network"
WARMUP = 3
PROBED = (5, 15)  # epochs after which kNN and linear accuracy are measured
PROBE = "probe.json"
GAP = 1e-3  # directions; equal branches differ by rounding

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
FIRST = {"variance first": "feature/variance", "erank projection first": "erank/projection"}


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


def settings(row: str) -> str:
    """A hash of the row's options and the shared ones, to notice that they have changed."""
    return table.hashed([SHARED, ROWS.get(row, [])])


def measure(row: str, seed: int, root: Path) -> table.Line:
    """The line of one row and one seed: trained, probed and read."""
    about = {"settings": settings(row), "code": commit(), "processor": processor()}
    if row not in ROWS:
        found = untrained(None if row == PIXELS else seed)
        about["versions"] = _listed(closing.versions())
        values = {f"{kind} end": value for kind, value in found.items()}
        return table.line(row, seed, table.OK, values, about)
    folder = folder_of(row, seed, root)
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was broken off
    folder.mkdir(parents=True)
    probe = Probe()
    cfg = cli.compose("config", [*SHARED, *ROWS[row], f"seed={seed}"])
    parts = training.build(cfg, folder, [probe])
    try:
        summary = training.fit(parts)
        write_whole(folder / PROBE, json.dumps(probe.found, indent=2) + "\n")
        about |= {
            "seconds": f"{summary['seconds']:.0f}",
            "versions": _listed(summary["versions"]),
        }
        return table.line(row, seed, table.OK, read(folder), about)
    except (FloatingPointError, ValueError) as error:  # training, or the linear probe, diverged
        about["versions"] = _listed(closing.versions())
        return table.line(row, seed, f"failed: {first_line(error)}", {}, about)


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def commit() -> str:
    """The commit that this package is of, where it lies in a checkout with git; else nothing."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists() or not shutil.which("git"):
        return ""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(describe, cwd=root, capture_output=True, text=True).stdout.strip()


def run_all(seeds: Sequence[int], root: Path, csv: Path, jobs: int) -> None:
    """Every row with every seed that the table does not have, seed after seed."""
    there = {(line["row"], int(line["seed"])) for line in lines_of(csv)}
    wanted = [(PIXELS, seeds[0]), *((row, s) for s in seeds for row in (UNTRAINED, *ROWS))]
    missing = [each for each in wanted if each not in there]
    tasks = [(row, seed, root) for row, seed in missing]
    processes.run_all(measure, tasks, jobs, lambda line: table.add(csv, line))


def lines_of(csv: Path) -> list[table.Line]:
    """The table's lines; ValueError where one is of other settings than the study's of today."""
    lines = table.read(csv)
    for line in lines:
        row = line["row"]
        if row not in (PIXELS, UNTRAINED, *ROWS) or line["settings"] != settings(row):
            raise UserError(
                f"{csv}: {row!r}, seed {line['seed']}, is not of the study's settings of today: "
                "remove such lines, or give another --csv"
            )
        gaps = [name for name in table.MEASURED if not line[name]]
        if row in ROWS and line["status"] == table.OK and gaps:
            raise UserError(f"{csv}: {row!r}, seed {line['seed']}, lacks {gaps[0]}; remove it")
    return lines


def read(folder: Path) -> dict[str, float]:
    """The columns of one run, from its metrics and its probe."""
    metrics = runs.read_metrics(folder)
    found = {name: metrics[column][-1] for name, column in LAST.items()}
    found |= {name: metrics[column][0] for name, column in FIRST.items()}
    probes = json.loads((folder / PROBE).read_text())
    for when, probe in zip(("third", "end"), probes.values()):
        found |= {f"{kind} {when}": accuracy for kind, accuracy in probe.items()}
    for branch in ("online", "target"):
        erank = metrics[f"erank/{branch}"]
        found[f"erank {branch} first"], found[f"erank {branch} last"] = erank[0], erank[-1]
        found[f"erank {branch} rise"] = math.log(erank[-1] / erank[WARMUP])
    gap = metrics["erank/gap"] > GAP
    found |= {"gap epochs": gap.sum(), "gap share": gap.mean(), "epochs": len(gap)}
    return {name: float(value) for name, value in found.items()}


def facts(lines: Sequence[table.Line], seeds: Sequence[int]) -> dict[str, str]:
    """How the numbers came about."""
    trained = [line for line in lines if line["row"] in ROWS and int(line["seed"]) in seeds]
    seconds = [float(line["seconds"]) for line in trained if line["seconds"]]
    pace = f", {statistics.median(seconds):.0f} s each at the median" if seconds else ""
    of = {name: sorted({line[name] for line in trained} - {""}) for name in table.ABOUT}
    planned = "" if list(seeds) == STUDY["seeds"] else ", which are not those of the plan"
    return {
        "command": "`python -m rdm_solo.evidence` trains what is missing and writes this page; "
        "`python -m rdm_solo.evidence --from docs/evidence.csv` only writes it",
        "every run": f"`{' '.join(SHARED)}` and the row's own; the rest is the digits' recipe",
        "seeds": f"{', '.join(map(str, seeds))}{planned}",
        "runs": f"{len(trained)} of {len(seeds) * len(ROWS)}{pace}",
        "hardware": f"{'; '.join(of['processor'])}, one thread a run",
        "versions": "; ".join(of["versions"]),
        "code": ", ".join(of["code"]) or "commit unknown",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rdm_solo.evidence",
        description="Train every row of the table over several seeds on the embedded digits, judge "
        "the paper's claims by them, and write one page. Each finished run adds a line to a table, "
        "and runs that have a line are not repeated: an interrupted command continues where it "
        "stopped. To repeat a run, remove its line.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    root, csv, out = Path("runs/evidence"), Path("docs/evidence.csv"), Path("docs/evidence.md")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=STUDY["seeds"], help="seeds of every row"
    )
    parser.add_argument("--runs", type=Path, default=root, help="folder for the runs")
    parser.add_argument("--csv", type=Path, default=csv, help="table of runs; new ones are added")
    parser.add_argument("--out", type=Path, default=out, help="file for the page")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument(
        "--from", type=Path, dest="table", help="train nothing, write the page from this table"
    )
    cli.say_anything()
    options = parser.parse_args()
    if len(set(options.seeds)) < 2:
        parser.error("--seeds needs at least two seeds, to compute a spread")
    if options.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {options.jobs}")
    if options.table and not options.table.is_file():
        parser.error(f"--from: there is no file {options.table}")
    with command.sentences(parser, options.runs):
        if not options.table:
            run_all(options.seeds, options.runs, options.csv, options.jobs)
        write_page(options.table or options.csv, options.out, options.seeds)


def write_page(csv: Path, out: Path, seeds: Sequence[int]) -> None:
    """The page of the table's runs with these seeds."""
    lines = lines_of(csv)
    runs, failed = table.runs_of(lines, seeds), table.failures(lines, seeds)
    text = page(STUDY, runs, failed, facts(lines, seeds), seeds)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, text)
    print(f"{out} is written from {len(lines)} lines of {csv}")
