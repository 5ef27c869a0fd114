"""What the page and the appendix of the trial say about its table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd

from rdm_solo import plots
from rdm_solo.runs.groups import mean_std
from studies.intervals import difference, holm
from studies.mechanism.figures import figure
from studies.mechanism.plan import CELL, EPOCHS, PLAN, SECOND, SEEDS, TUNING, Cell, Run, stages
from studies.mechanism.runs import measure, planned, with_seeds
from studies.mechanism.verdicts import RULES, VARIANTS, pairs, pooled, runs_of
from studies.study import Study, numbers
from studies.training import OK


class Numbers:
    """The numbers that a question's text names, from the runs of its last stage."""

    def __init__(self, table: pd.DataFrame, question: str) -> None:
        self.runs = deciding_runs(table, question)

    def mean(self, column: str, setting: str, data: str) -> str:
        """Return a setting's mean on a data set."""
        return f"{self.runs.loc[(setting, data), column].mean():.1f}"

    def difference(
        self, first: str, other: str, data: str, epochs: int = EPOCHS, digits: int = 1
    ) -> str:
        """Return the difference of two settings in linear accuracy, with its interval."""
        sample = pairs(self.runs, "linear", first, other)[data, epochs]
        return interval(difference(sample), digits)

    def pooled(self, *settings: Sequence[str]) -> str:
        """Return the mean difference of pairs of settings in linear accuracy over both variants."""
        return interval(pooled(self.runs, settings, "linear"))

    def largest_p(self, *settings: Sequence[str]) -> str:
        """Return the largest of Holm's p of these pairs, each pooled over both variants."""
        tests = [pooled(self.runs, [names], "linear") for names in settings]
        return f"{holm(pd.DataFrame(tests)['p']).max():.3f}"

    def ratios(self, column: str, *settings: Sequence[str]) -> str:
        """Return the smallest and the largest ratio of the means of pairs of settings."""
        means = self.runs[column].groupby(["setting", "data"]).mean().unstack()[VARIANTS]
        ratios = [means.loc[first] / means.loc[other] for first, other in settings]
        return f"{np.min(ratios):.1f} to {np.max(ratios):.1f}"


def interval(test: dict[str, float], digits: int = 1) -> str:
    """Return a mean with its interval."""
    mean, low, high = (f"{test[name]:.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def deciding_runs(table: pd.DataFrame, question: str) -> pd.DataFrame:
    """Return the runs of the last stage of a question."""
    repeated = question in SECOND["questions"]
    return runs_of(table, SECOND["seeds"] if repeated else SEEDS)


def summary(table: pd.DataFrame, cells: list[Cell], seeds: list[int]) -> pd.DataFrame:
    """Return mean and standard deviation of every column in each cell."""
    groups = runs_of(table, seeds).groupby(list(CELL))
    texts = groups.agg(in_words)
    rates = with_seeds(table, seeds).astype({"epochs": int}).groupby(list(CELL))["rate"].first()
    texts.insert(0, "rate", rates.replace("", "–"))
    texts.insert(1, "n", groups["linear"].count())
    return texts.loc[cells]


def in_words(column: pd.Series) -> str:
    digits = 2 if column.name == "slope" else 1
    return mean_std(column.dropna().tolist(), digits)


def analyse(table: pd.DataFrame) -> dict[str, Any]:
    """Return the values that the pages name."""
    answers = {}
    for name, rule in RULES.items():
        answers[name] = {"": rule(runs_of(table, SEEDS))}
        if name in SECOND["questions"]:
            answers[name][", at a tuned rate"] = rule(deciding_runs(table, name))
    return {
        "plan": PLAN,
        "answers": answers,
        "numbers": {name: Numbers(table, name) for name in RULES},
        "stages": {name: summary(table, *stage) for name, stage in stages().items()},
        "tuning": len(with_seeds(table, TUNING)),
        "diverged": (table["status"] != OK).sum(),
        "hours": numbers(table["seconds"]).sum() / 3600,
    }


def draw(table: pd.DataFrame, folder: Path) -> None:
    """Save the figure of each question."""
    for name in RULES:
        with matplotlib.rc_context({"savefig.pad_inches": 0}):
            drawing = figure(deciding_runs(table, name), PLAN["questions"][name]["panels"])
            plots.save(drawing, folder / "pictures", f"mechanism_{name}", ("png",))


STUDY = Study(
    name="mechanism",
    description="Train every setting of plan.yaml with all seeds on three data sets.",
    page="docs/mechanism-appendix.md",
    key=Run._fields,
    planned=planned,
    measure=measure,
    analyse=analyse,
    draw=draw,
)
