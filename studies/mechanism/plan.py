"""The plan of the trial, written before its runs."""

from typing import NamedTuple

from studies.training import read_plan

PLAN = read_plan("mechanism/plan.yaml")
SEEDS = PLAN["seeds"]
TUNING = PLAN["tuning_seeds"]
DATA = PLAN["data"]
SECOND = PLAN["second"]
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


def cells(question: str) -> list[Cell]:
    """Return the cells of a question."""
    lengths = PLAN["epochs"].get(question, {})
    cells = []
    for data in DATA:
        for epochs in lengths.get(data, [EPOCHS]):
            for setting in PLAN["settings"][question]:
                cells.append(Cell(setting, data, epochs))
    return cells


def stages() -> dict[str, tuple[list[Cell], list[int]]]:
    """Return cells and seeds of the stages in the order in which they are trained.

    A stage is a question or "second".
    """
    stages = {question: (cells(question), SEEDS) for question in PLAN["settings"]}
    repeated = [Cell(name, data) for data in SECOND["data"] for name in SECOND["settings"]]
    stages["second"] = (repeated, SECOND["seeds"])
    return stages
