"""The plan of the trial, written before its runs."""

from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

PLAN: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("plan.yaml")))
SEEDS: list[int] = PLAN["seeds"]
TUNING: list[int] = PLAN["tuning_seeds"]
DATA: dict[str, list[str]] = PLAN["data"]
SETTINGS: dict[str, list[str]] = {
    name: options for question in PLAN["settings"].values() for name, options in question.items()
}
EPOCHS = 30  # of a question without an entry in the plan's `epochs`


class Cell(NamedTuple):
    """A setting, a data set and the length of training."""

    setting: str
    data: str
    epochs: int = EPOCHS


class Run(NamedTuple):
    """A run with a row of its own; ``rate`` is a learning rate, or empty for the recipe's."""

    cell: Cell
    seed: int
    rate: str = ""


def cells(question: str) -> list[Cell]:
    """Return the cells of a question."""
    epochs = PLAN["epochs"].get(question, {})
    return [
        Cell(setting, data, length)
        for data in DATA
        for length in epochs.get(data, [EPOCHS])
        for setting in PLAN["settings"][question]
    ]


class Stage(NamedTuple):
    """Cells that are trained with the same seeds.

    If ``rates`` is not empty, a learning rate is tuned for each cell, from ``rates`` and ``wider``.
    """

    cells: list[Cell]
    seeds: list[int]
    rates: list[str]
    wider: list[str]


def stages() -> dict[str, Stage]:
    """Return the stages in the order in which they are trained: the questions, and "second"."""

    def stage(name: str, cells: list[Cell], seeds: list[int]) -> Stage:
        rates, wider = (list(map(str, PLAN[key].get(name, []))) for key in ("rates", "wider"))
        return Stage(cells, seeds, rates, wider)

    planned = {question: stage(question, cells(question), SEEDS) for question in PLAN["settings"]}
    second = PLAN["second"]
    repeated = [Cell(name, data) for data in second["data"] for name in second["settings"]]
    return planned | {"second": stage("second", repeated, second["seeds"])}


# What is measured at the end of a run, before it, and over its epochs.
END = ("linear", "knn", "erank", "erank online", "erank target", "erank features")
MEASURED = (*END, "linear untrained", "gap", "slope")
# `status` is "ok", or says in which epoch the run diverged.
ABOUT = ("setting", "data", "epochs", "seed", "rate", "status")
HEAD = (*ABOUT, *MEASURED, "seconds", "code", "versions", "processor")
OK = "ok"
