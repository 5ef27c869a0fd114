"""What the page and the appendix of the trial say about its table."""

from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd  # type: ignore[import-untyped, unused-ignore]

from rdm_solo import plots
from rdm_solo.runs.groups import mean_std
from studies.intervals import difference
from studies.mechanism.figures import figure
from studies.mechanism.plan import CELL, EPOCHS, PLAN, SEEDS, TUNING, Run, Stage, stages
from studies.mechanism.runs import measure, planned
from studies.mechanism.verdicts import RULES, pairs, runs_of
from studies.study import Study, numbers
from studies.training import OK


class Numbers:
    """The numbers that the texts name, of the runs that decide a question."""

    def __init__(self, runs: pd.DataFrame) -> None:
        self.runs = runs

    def mean(self, column: str, setting: str, data: str) -> str:
        """Return a setting's mean on a data set."""
        return f"{self.runs.loc[(setting, data), column].mean():.1f}"

    def difference(self, first: str, other: str, data: str, epochs: int = EPOCHS) -> str:
        """Return the difference of two settings in linear accuracy, with its interval."""
        test = difference(pairs(self.runs, "linear", first, other)[data, epochs].to_numpy())
        return f"{test.mean:.1f} ({test.low:.1f} to {test.high:.1f})"


def summary(table: pd.DataFrame, stage: Stage) -> pd.DataFrame:
    """Return mean and standard deviation of every column in each cell of a stage."""
    runs = runs_of(table, stage.seeds)
    groups = runs.groupby(list(CELL))
    texts = groups.agg(in_words)
    texts.insert(0, "n", groups["linear"].count())
    counted = table[table["seed"].isin(list(map(str, stage.seeds)))]
    rates = counted.astype({"epochs": int}).groupby(list(CELL))["rate"].first()
    texts.insert(0, "rate", rates.replace("", "–"))
    return texts.loc[stage.cells]


def in_words(column: pd.Series) -> str:
    digits = 2 if column.name == "slope" else 1
    return mean_std(column.dropna().tolist(), digits)


def analyse(table: pd.DataFrame) -> dict[str, Any]:
    """Return the values that the pages name."""
    first, second = runs_of(table, SEEDS), runs_of(table, PLAN["second"]["seeds"])
    questions = []
    for name, rule in RULES.items():
        answer, tests = rule(first)
        sentence = answer[0].upper() + answer[1:]
        question = {"name": name, "asks": PLAN["questions"][name]["asks"], "tests": {"": tests}}
        question["runs"] = Numbers(first)
        if name in PLAN["second"]["questions"]:
            tuned, tests = rule(second)
            sentence = f"At tuned learning rates: {tuned} At the recipe's rate: {answer}"
            question["tests"][", at a tuned rate"] = tests
            question["runs"] = Numbers(second)
        questions.append({**question, "answer": sentence})
    return {
        "plan": PLAN,
        "questions": questions,
        "stages": {name: summary(table, stage) for name, stage in stages().items()},
        "tuning": table["seed"].isin(list(map(str, TUNING))).sum(),
        "diverged": (table["status"] != OK).sum(),
        "hours": numbers(table["seconds"]).sum() / 3600,
    }


def draw(table: pd.DataFrame, folder: Path) -> None:
    """Save the figure of each question."""
    for name in RULES:
        seeds = PLAN["second"]["seeds"] if name in PLAN["second"]["questions"] else SEEDS
        with matplotlib.rc_context({"savefig.pad_inches": 0}):
            drawing = figure(runs_of(table, seeds), PLAN["questions"][name]["panels"])
            plots.save(drawing, folder / "pictures", f"mechanism_{name}", ("png",))


STUDY = Study(
    name="mechanism",
    description="Train every setting of plan.yaml with all seeds on three data sets.",
    page="docs/mechanism.md",
    key=Run._fields,
    planned=planned,
    measure=measure,
    analyse=analyse,
    draw=draw,
)
