"""The study's command, and what its pages say about the table."""

import argparse
from typing import Any

import numpy as np
import pandas as pd

from rdm_solo.runs.files import write_atomically
from rdm_solo.train import compose
from studies.intervals import mean_of_groups
from studies.mechanism.page import STUDY as FIRST_TRIAL
from studies.mechanism.page import Numbers
from studies.study import Study, numbers
from studies.switch import effects, figures
from studies.switch.data import pixel_accuracies
from studies.switch.runs import ARMS, PLAN, UNSWITCHED, Unit, planned, train
from studies.training import OK, ROOT

PIXELS = ROOT / "studies" / "switch" / "pixels.csv"
UNDECIDED = "undecided"
WORDS = {
    "down": "lower",
    "up": "higher",
    "down, less than the margin": "lower",
    "up, less than the margin": "higher",
    "no difference": "no change",
    UNDECIDED: UNDECIDED,
}
MARKS = {UNDECIDED: "{}", "no difference": "{} ="}  # the others are bold


class Effects:
    """The effects that the page names, on every data set, with their 95 % intervals.

    An arm is named by its question, its label there, the column and the kind of outcome.
    """

    def __init__(self, values: pd.DataFrame, questions: dict[str, pd.DataFrame]) -> None:
        self.values = values
        self.questions = questions
        self.gaps = effects.gaps(values).groupby(["setting", "arm", "data"]).mean()

    def tests(
        self, question: str, arm: str, column: str = "projection", kind: str = "switched"
    ) -> pd.DataFrame:
        """Return the tests of an arm."""
        tests = self.questions[question].set_index(["arm", "outcome", "column"])
        return tests.loc[[(arm, kind, column)]]

    def answer(self, *arm: str) -> str:
        """Return what the tests of a rank show, and on how many data sets if not on all."""
        says = self.tests(*arm)["says"].map(WORDS)
        shown = says[says != UNDECIDED].value_counts()
        if shown.empty:
            return UNDECIDED
        if shown.iloc[0] == len(says):
            return shown.index[0]
        counts = [f"{verdict} on {count}" for verdict, count in shown.items()]
        return f"{', '.join(counts)} of {len(says)}"

    def where(self, verdict: str, *arm: str) -> str:
        """Return the data sets on which an arm has this verdict."""
        tests = self.tests(*arm)
        names = tests.loc[tests["says"].str.startswith(verdict), "data"].tolist()
        if not names:
            return "no set"
        if len(names) == len(tests):
            return "all sets"
        *first, last = names
        return f"{', '.join(first)} and {last}" if first else last

    def factors(self, *arm: str) -> list[str]:
        """Return the effect on a rank as a factor on each data set, marked by its verdict."""
        factors = []
        for test in self.tests(*arm).to_dict("records"):
            mark = MARKS.get(test["says"], "**{}**")
            factors.append(mark.format(f"{np.exp(test['mean']):.2f}"))
        return factors

    def mean_factor(self, *arm: str) -> str:
        """Return the geometric mean of the factors over the data sets, with its interval."""
        test = mean_of_groups(self.tests(*arm)["sample"])
        mean, low, high = (np.exp(test[name]) for name in ("mean", "low", "high"))
        return f"{mean:.2f} ({low:.2f} to {high:.2f})"

    def factor(self, *arm: str) -> str:
        """Return the smallest and largest mean effect on a rank, as factors."""
        return span("{:.2f}", np.exp(self.tests(*arm)["mean"]))

    def lost(self, *arm: str) -> str:
        """Return the smallest and largest mean loss of accuracy, in points."""
        return span("{:.1f}", -self.tests(*arm)["mean"])

    def lower(self, *arm: str) -> str:
        """Count the runs whose value is lower than that of the run they are compared with."""
        samples = self.tests(*arm)["sample"].explode()
        return f"{(samples < 0).sum()} of {len(samples)}"

    def verdicts(self, question: str, arm: str) -> dict[str, int]:
        """Count the verdicts of all tests of an arm: its outcomes, columns and data sets."""
        tests = self.questions[question]
        return tests.loc[tests["arm"] == arm, "says"].map(WORDS).value_counts().to_dict()

    def change_of_gap(self, setting: str, arm: str, against: str = UNSWITCHED) -> str:
        """Return the ratio of target rank to online rank in the other run and in this one."""
        before, after = (np.exp(self.gaps[setting, name]).mean() for name in (against, arm))
        return f"{before:.1f} → {after:.1f}"

    def ranks(self, setting: str, arm: str, column: str, epoch: int) -> pd.Series:
        """Return the geometric mean of a rank on each data set."""
        ranks = self.values.xs((setting, arm), level=("setting", "arm"))[column, epoch]
        return np.exp(np.log(ranks).groupby("data").mean())

    def since_switch(self, setting: str, arm: str) -> str:
        """Return the projection's rank in epoch 15, divided by that in epoch 10."""
        late, early = (self.ranks(setting, arm, "projection", epoch) for epoch in (15, 10))
        return span("{:.2f}", late / early)

    def remaining(self, setting: str, arm: str) -> str:
        """Return the projection's rank after training, divided by that of the unswitched run."""
        changes = effects.differences(self.values, setting, arm, "projection")[30]
        return span("{:.2f}", np.exp(changes.groupby("data").mean()))


def span(form: str, means: pd.Series) -> str:
    """Return the smallest and the largest of the means on the data sets."""
    low, high = form.format(means.min()), form.format(means.max())
    return low if low == high else f"{low} to {high}"


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
    shown = Effects(values, questions)
    thresholds = dose[dose["quantity"] == "threshold"].drop_duplicates("data")
    return {
        "plan": PLAN,
        "seeds": {data: len(set(complete.loc[complete["data"] == data, "seed"])) for data in names},
        "settings": list(PLAN["settings"]),
        "questions": questions,
        "effects": shown,
        "dose": dose,
        "span": span,
        "thresholds": np.exp(thresholds["mean"]),
        "shares": effects.growth_on_share(values),
        "points": points(values),
        "gaps": shown.gaps.unstack()[names],
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
