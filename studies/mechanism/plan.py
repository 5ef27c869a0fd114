"""The plan of the trial, written before its runs."""

from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

PLAN: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("plan.yaml")))
SEEDS: list[int] = PLAN["seeds"]
TUNING: list[int] = PLAN["tuning_seeds"]
DATA: dict[str, list[str]] = PLAN["data"]
SECOND: dict[str, Any] = PLAN["second"]
SETTINGS: dict[str, list[str]] = {}
for question in PLAN["settings"].values():
    SETTINGS.update(question)
CELL = ("setting", "data", "epochs")  # columns of the table that name a cell
EPOCHS = 30  # of a question without an entry in the plan's `epochs`


class Cell(NamedTuple):
    """A setting, a data set and the length of training."""

    setting: str
    data: str
    epochs: int = EPOCHS


class Run(NamedTuple):
    """A run with a row of its own; ``rate`` is a learning rate, or empty for the recipe's."""

    setting: str
    data: str
    epochs: int
    seed: int
    rate: str = ""


class Stage(NamedTuple):
    """Cells that are trained with the same seeds.

    If ``rates`` is not empty, a learning rate is tuned for each cell, from ``rates`` and ``wider``.
    """

    cells: list[Cell]
    seeds: list[int]
    rates: list[str]
    wider: list[str]


def cells(question: str) -> list[Cell]:
    """Return the cells of a question."""
    lengths = PLAN["epochs"].get(question, {})
    cells = []
    for data in DATA:
        for epochs in lengths.get(data, [EPOCHS]):
            for setting in PLAN["settings"][question]:
                cells.append(Cell(setting, data, epochs))
    return cells


def stages() -> dict[str, Stage]:
    """Return the stages in the order in which they are trained: the questions, and "second"."""
    stages = {}
    for question in PLAN["settings"]:
        stages[question] = stage(question, cells(question), SEEDS)
    repeated = [Cell(name, data) for data in SECOND["data"] for name in SECOND["settings"]]
    stages["second"] = stage("second", repeated, SECOND["seeds"])
    return stages


def stage(name: str, cells: list[Cell], seeds: list[int]) -> Stage:
    rates = map(str, PLAN["rates"].get(name, []))
    wider = map(str, PLAN["wider"].get(name, []))
    return Stage(cells, seeds, list(rates), list(wider))
