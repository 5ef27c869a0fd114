"""Train the runs of the switch trial: a setting without a switch, and its arms from epoch 10 on."""

import json
import logging
import multiprocessing
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from omegaconf import DictConfig

from rdm_solo import runs
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.lightning import pl
from rdm_solo.runs.files import write_atomically
from rdm_solo.train import compose
from rdm_solo.train.run import run as train_run
from studies import training
from studies.evidence.probe import FILE, Probe
from studies.study import cells, joined
from studies.switch import arms
from studies.switch.arms import Arm, Replaced
from studies.training import read_plan

PLAN = read_plan("switch/plan.yaml")
FIRST, LAST = 11, 20  # epochs of an intervention
UNSWITCHED = "unswitched"

MakeArm = Callable[[int], Arm]  # from a run's seed


def replaced(**outputs: arms.Output) -> MakeArm:
    """Return an arm that replaces outputs of modules in the same way for all seeds."""
    return lambda seed: Replaced(FIRST, LAST, outputs)


def rotated(share: float) -> MakeArm:
    return lambda seed: Replaced(FIRST, LAST, {"target_head": arms.Rotated(share, seed)})


def scrambled(seed: int) -> Arm:
    return Replaced(FIRST, LAST, {"target_head": arms.Scrambled(seed)})


def dino(**kept: bool) -> MakeArm:
    return lambda seed: arms.DinoTarget(FIRST, LAST, **kept)


POWERS = (-1, -0.7, -0.3, -0.15, 0.25, 0.5)
SHARES = (0.25, 0.5, 0.75, 1.0)
removed = replaced(predictor=arms.unchanged)

ARMS: dict[str, dict[str, MakeArm]] = {
    "power": {
        "off": replaced(target_head=arms.unchanged),
        **{f"p {p:g}": replaced(target_head=arms.power(p)) for p in POWERS},
        **{f"rotated {share:g}": rotated(share) for share in SHARES},
        "scrambled": scrambled,
        "tail": replaced(target_head=arms.lifted_tail),
        "both": replaced(predictor=arms.power(-1, "online"), target_head=arms.power(-1)),
        "covariance": lambda seed: arms.Regularised(FIRST, LAST),
    },
    "identity": {"on": replaced(target_head=arms.power(-0.5))},
    "SimSiam": {"no predictor": removed},
    "BYOL": {
        "no predictor": removed,
        "online target": lambda seed: arms.OnlineAsTarget(FIRST, LAST),
    },
    "SwAV": {"softmax": replaced(sk=arms.softmax_instead_of(0.05))},
    "DINO": {
        "no centring": dino(centring=False, sharpening=True),
        "no sharpening": dino(centring=True, sharpening=False),
        "neither": dino(centring=False, sharpening=False),
    },
}


class Unit(NamedTuple):
    """A run without a switch, with all arms that start from its checkpoint."""

    data: str
    seed: int
    setting: str


class Snapshot(pl.Callback):
    """Copy the run's folder when the first epoch of the interventions starts."""

    def __init__(self, folder: Path, copy: Path) -> None:
        self.folder = folder
        self.copy = copy

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if trainer.current_epoch + 1 == FIRST:
            shutil.copytree(self.folder, self.copy)


def planned() -> list[Unit]:
    """Return all units in the plan's order."""
    seeds = PLAN["seeds"]
    first = PLAN["first_seeds"]
    units = []
    for part in (seeds[:first], seeds[first:]):
        for data in PLAN["data"]:
            for seed in part:
                units += [Unit(data, seed, setting) for setting in PLAN["settings"]]
    return units


def missing(table: pd.DataFrame) -> list[Unit]:
    """Return the planned units that the table lacks."""
    rows = table[list(Unit._fields)].itertuples(index=False, name=None)
    present = set(rows)
    return [unit for unit in planned() if tuple(map(str, unit)) not in present]


def train(path: Path, read: Callable[[], pd.DataFrame], jobs: int, most: int | None) -> None:
    """Train missing units until the plan's processor time is used, and add their rows."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        pending: dict[Any, Unit] = {}
        waiting = missing(read())[:most]
        while waiting or pending:
            table = read()
            used = table.get("cpu seconds", pd.Series()).astype(float).sum()
            if used > 3600 * PLAN["cpu_hours"]:
                waiting = []
            while waiting and len(pending) < jobs:
                unit = waiting.pop(0)
                pending[pool.submit(train_unit, unit)] = unit
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                print(*pending.pop(future), flush=True)
                table = pd.concat([table, pd.DataFrame(future.result())])
                write_atomically(path, table.to_csv(index=False))


def train_unit(unit: Unit) -> list[dict[str, str]]:
    """Train a run and its arms, and return their rows of the table."""
    logging.getLogger("rdm_solo").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    options = [
        *PLAN["shared"],
        *PLAN["data"][unit.data],
        *PLAN["settings"][unit.setting],
        f"seed={unit.seed}",
    ]
    config = compose(options)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary) / "unswitched"
        start = Path(temporary) / "start"
        rows.append(measured(unit, UNSWITCHED, config, base, Snapshot(base, start)))
        for name, make_arm in ARMS[unit.setting].items():
            folder = Path(temporary) / name
            shutil.copytree(start, folder)
            rows.append(measured(unit, name, config, folder, make_arm(unit.seed)))
            shutil.rmtree(folder)
    return rows


def measured(
    unit: Unit, arm: str, config: DictConfig, folder: Path, callback: pl.Callback
) -> dict[str, str]:
    """Train a run in its folder, and return its row."""
    began = time.process_time()
    probe = Probe(folder, PLAN["probes"])
    try:
        train_run(config, folder, callbacks=[callback, probe])
    except UserError:
        if not runs.load(folder).diverged:
            raise
    run = runs.load(folder)
    row = {**dict(zip(Unit._fields, map(str, unit))), "arm": arm}
    row["status"] = training.divergence(run) or training.OK
    for name, column in PLAN["columns"].items():
        row[name] = joined(run.metrics[column][FIRST - 2 :])
    probes = json.loads((folder / FILE).read_text())
    for epoch, accuracies in probes.items():
        row |= cells({f"{name} {epoch}": value for name, value in accuracies.items()})
    row["cpu seconds"] = f"{time.process_time() - began:.1f}"
    if arm == UNSWITCHED:  # of the whole unit
        row |= training.about(run.summary)
    return row
