"""Train the same few runs in two checkouts and compare them bit by bit.

    python tests/golden.py OTHER_CHECKOUT [--out FOLDER]

Runs of OTHER_CHECKOUT that are already in FOLDER are not trained again. Columns that only this
checkout has are ignored.
"""

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent.parent
README = ["method=simsiam", "filter=target_pow", "p=-0.5"]
SHORT = ["max_epochs=3", "scheduler.warmup_epochs=1", "knn.every_n_epochs=1"]
# Each run is one or more commands in one folder.
RUNS = {
    "readme": [README],
    "byol": [["method=byol", "filter=online_log1p", *SHORT]],
    "swav": [["method=swav", *SHORT]],
    "dino": [["method=dino", *SHORT]],
    "resumed": [[*README, *SHORT], ["resume={folder}", "max_epochs=5"]],
    "two_processes": [
        [
            *README,
            *SHORT,
            "batch_size=128",
            "trainer=ddp",
            "trainer.accelerator=cpu",
            "trainer.devices=2",
            "trainer.sync_batchnorm=false",
        ]
    ],
}


def train(checkout: Path, folder: Path, commands: list[list[str]]) -> None:
    """Run the commands of one run with the package of ``checkout``."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    for command in commands:
        options = [option.format(folder=folder) for option in command]
        if not any(option.startswith("resume=") for option in options):
            options.append(f"hydra.run.dir={folder}")
        subprocess.run(
            [sys.executable, "-m", "rdm_solo.train", *options],
            env=environment,
            cwd=folder.parent,
            check=True,
            stdout=subprocess.DEVNULL,
        )


def differences(old: Path, new: Path) -> list[str]:
    """Name what differs between two folders of the same run."""
    names = []
    with (old / "metrics.csv").open() as a, (new / "metrics.csv").open() as b:
        old_rows, new_rows = list(csv.DictReader(a)), list(csv.DictReader(b))
    if len(old_rows) != len(new_rows):
        names.append(f"metrics.csv: {len(old_rows)} and {len(new_rows)} rows")
    for old_row, new_row in zip(old_rows, new_rows):
        names += [
            f"metrics.csv: {column} {text} -> {new_row.get(column)}"
            for column, text in old_row.items()
            if new_row.get(column) != text
        ]
    for path in sorted((old / "spectra").iterdir()):
        with np.load(path) as a, np.load(new / "spectra" / path.name) as b:
            names += [
                f"{path.name}: {key}"
                for key in a.files
                if key not in b.files or not np.array_equal(a[key], b[key], equal_nan=True)
            ]
    last = Path("checkpoints", "last.ckpt")
    weights = [torch.load(folder / last, weights_only=True)["state_dict"] for folder in (old, new)]
    if weights[0].keys() != weights[1].keys():
        return [*names, "last.ckpt: other names of weights"]
    return names + [
        f"last.ckpt: {key}" for key in weights[0] if not weights[0][key].equal(weights[1][key])
    ]


def main() -> None:
    """Train and compare; the exit status is 1 where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--out", type=Path, default=None, help="keep the runs here")
    parser.add_argument("--only", nargs="*", default=list(RUNS), choices=list(RUNS))
    options = parser.parse_args()
    out = (options.out or Path(tempfile.mkdtemp())).resolve()
    failed = False
    for name in options.only:
        folders = {side: out / side / name for side in ("old", "new")}
        for side, checkout in (("old", options.other.resolve()), ("new", HERE)):
            folders[side].parent.mkdir(parents=True, exist_ok=True)
            if side == "new" or not (folders[side] / "summary.json").exists():
                if folders[side].exists():
                    folders[side].rename(Path(tempfile.mkdtemp(dir=out)) / name)
                train(checkout, folders[side], RUNS[name])
        found = differences(folders["old"], folders["new"])
        failed = failed or bool(found)
        print(f"{name}: {'; '.join(found[:5]) if found else 'the same'}", flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
