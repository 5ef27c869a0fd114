"""The study's command, and what its pages say about the table."""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from rdm_solo.runs.files import write_atomically
from rdm_solo.train import compose
from studies.mechanism.page import STUDY as FIRST_TRIAL
from studies.mechanism.page import Numbers
from studies.study import Study, numbers
from studies.switch import effects, figures
from studies.switch.data import pixel_accuracies
from studies.switch.runs import ARMS, PLAN, UNSWITCHED, Unit, planned, train
from studies.training import OK, ROOT

PIXELS = ROOT / "studies" / "switch" / "pixels.csv"
WORDS = {
    "down": "falls",
    "up": "rises",
    "down, less than the margin": "falls slightly",
    "up, less than the margin": "rises slightly",
    "no difference": "no change",
    "undecided": "undecided",
}


class Effects:
    """The effects that the page names, on every data set, with their 95 % intervals.

    An arm is named by its question, its label there, the column and the kind of outcome.
    """

    def __init__(self, values: pd.DataFrame, questions: dict[str, pd.DataFrame]) -> None:
        self.values = values
        self.questions = questions

    def tests(
        self, question: str, arm: str, column: str = "projection", kind: str = "switched"
    ) -> pd.DataFrame:
        """Return the tests of an arm."""
        tests = self.questions[question].set_index(["arm", "outcome", "column"])
        return tests.loc[[(arm, kind, column)]]

    def answer(self, *arm: str) -> str:
        """Return the verdict that all data sets share; otherwise what was shown, and where."""
        tests = self.tests(*arm)
        says = tests["says"].unique()
        if len(says) == 1:
            return WORDS[says[0]]
        shown = tests[tests["says"] != "undecided"].groupby("says", sort=False)["data"]
        parts = [f"{WORDS[verdict]} on {', '.join(names)}" for verdict, names in shown]
        return f"differs: {'; '.join(parts)}"

    def where(self, verdict: str, *arm: str) -> str:
        """Return the data sets on which an arm has this verdict."""
        tests = self.tests(*arm)
        names = tests.loc[tests["says"].str.startswith(verdict), "data"].tolist()
        if len(names) == len(tests):
            return "all sets"
        return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "no set"

    def factors(self, *arm: str) -> list[str]:
        """Return the effect on a rank as a factor on each data set."""
        return in_intervals("{:.2f} ({:.2f} to {:.2f})", np.exp, self.tests(*arm))

    def factor(self, *arm: str) -> str:
        """Return the smallest and largest mean effect on a rank, as factors."""
        return span("{:.2f}", np.exp(self.tests(*arm)["mean"]))

    def points(self, *arm: str) -> str:
        """Return the smallest and largest mean effect on an accuracy."""
        return span("{:+.1f}", self.tests(*arm)["mean"])

    def seeds(self, *arm: str) -> str:
        """Return how many seeds moved as predicted."""
        tests = self.tests(*arm)
        return f"{tests['as expected'].sum()} of {tests['n'].sum()}"

    def gap(self, setting: str, arm: str) -> str:
        """Return how many times the online rank the target's is."""
        return span("{:.1f}", self.gaps(setting, arm))

    def change_of_gap(self, setting: str, arm: str) -> str:
        """Return that number without and with the switch, as means of the data sets."""
        before, after = (self.gaps(setting, name).mean() for name in (UNSWITCHED, arm))
        return f"{before:.1f} → {after:.1f}"

    def gaps(self, setting: str, arm: str) -> pd.Series:
        gaps = effects.gaps(self.values).groupby(["setting", "arm", "data"]).mean()
        return np.exp(gaps[setting, arm])

    def since_switch(self, setting: str, arm: str, end: int) -> str:
        """Return the projection's rank after an epoch, divided by that after epoch 10."""
        ranks = np.log(self.values.xs((setting, arm), level=("setting", "arm"))["projection"])
        return span("{:.2f}", np.exp((ranks[end] - ranks[10]).groupby("data").mean()))

    def remaining(self, setting: str, arm: str) -> str:
        """Return the projection's rank after training, divided by that of the unswitched run."""
        changes = effects.differences(self.values, setting, arm, "projection")[30]
        return span("{:.2f}", np.exp(changes.groupby("data").mean()))


def span(form: str, means: pd.Series) -> str:
    """Return the smallest and the largest of the means on the data sets."""
    low, high = form.format(means.min()), form.format(means.max())
    return low if low == high else f"{low} to {high}"


def in_intervals(form: str, scale: Callable[[float], float], tests: pd.DataFrame) -> list[str]:
    """Return the mean and the interval of each test."""
    parts = []
    for test in tests.to_dict("records"):
        values = [scale(test[name]) for name in ("mean", "low", "high")]
        parts.append(form.format(*values))
    return parts


def analyse(table: pd.DataFrame) -> dict[str, Any]:
    """Return the values that the pages name."""
    complete = effects.complete(table)
    values = effects.values_of(complete)
    names = effects.data_sets(values)
    questions = {}
    for name, question in PLAN["questions"].items():
        questions[name] = effects.judged(values, question)
    dose = effects.dose(values)
    unswitched = values.xs(UNSWITCHED, level="arm")
    accuracies = unswitched[[("knn", 30), ("linear", 30)]].groupby(["data", "setting"]).mean()
    pixels = pd.read_csv(PIXELS, index_col="data")
    gaps = effects.gaps(values).groupby(["setting", "arm", "data"]).mean()
    thresholds = dose[dose["quantity"] == "threshold"].drop_duplicates("data")
    return {
        "plan": PLAN,
        "seeds": {data: len(set(complete.loc[complete["data"] == data, "seed"])) for data in names},
        "settings": list(PLAN["settings"]),
        "questions": questions,
        "effects": Effects(values, questions),
        "dose": dose,
        "span": span,
        "thresholds": np.exp(thresholds["mean"]),
        "shares": effects.growth_on_share(values),
        "points": points(values),
        "gaps": gaps.unstack()[names],
        "pixels": in_words(pixels),
        "unswitched": in_words(accuracies),
        "first": Numbers(FIRST_TRIAL.read(), "sufficient"),
        "diverged": (table["status"] != OK).sum(),
        "hours": numbers(table["cpu seconds"]).sum() / 3600,
    }


def points(values: pd.DataFrame) -> pd.DataFrame:
    """Return mean gap and growth of each arm of the dose, in the order of the gap."""
    groups = effects.growth_on_gap(values).groupby(["data", "arm"])
    means = groups.mean()
    means["grows"] = groups["growth"].agg(lambda growth: (growth > 0).sum())
    means["n"] = groups.size()
    return means.reset_index().sort_values(["data", "gap"])


def in_words(accuracies: pd.DataFrame) -> dict[Any, list[str]]:
    """Return the rows of a table of accuracies by their index."""
    rows = {}
    for key, row in accuracies.iterrows():
        rows[key] = [f"{value:.1f}" for value in row]
    return rows


def write_pixels() -> None:
    """Measure raw pixels on every data set."""
    rows = {}
    for data, options in PLAN["data"].items():
        rows[data] = pixel_accuracies(compose([*PLAN["shared"], *options]))
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("data")
    write_atomically(PIXELS, table.round(2).to_csv())


def planned_runs(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the keys of all rows that the plan names."""
    keys = []
    for unit in planned():
        for arm in (UNSWITCHED, *ARMS[unit.setting]):
            keys.append((*map(str, unit), arm))
    return keys


STUDY = Study(
    name="switch",
    description="Remove an asymmetry in the middle of training and put it back.",
    page="docs/mechanism.md",
    key=(*Unit._fields, "arm"),
    planned=planned_runs,
    measure=lambda *key: {},
    analyse=analyse,
)


def main() -> None:
    """Train missing runs, then write the pages from the data sets that have enough seeds."""
    parser = argparse.ArgumentParser(prog="python -m studies.switch", description=STUDY.description)
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--most", type=int, help="most units to train; 0 only writes the pages")
    options = parser.parse_args()
    if options.most != 0:
        if not PIXELS.exists():
            write_pixels()
        train(STUDY.folder / "runs.csv", STUDY.read, options.jobs, options.most)
    table = STUDY.read()
    complete = effects.complete(table)
    if complete.empty:
        parser.exit(message="No data set has enough complete seeds; the pages are not written.\n")
    for path, text in STUDY.pages(table).items():
        write_atomically(path, text)
    figures.draw(effects.values_of(complete), ROOT / "docs" / "pictures")
