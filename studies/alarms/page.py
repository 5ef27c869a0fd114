"""What the page about the warnings of collapse and its appendix say about the table."""

import statistics
from typing import Any

import pandas as pd

from studies.alarms.choosing import BASELINES, WAYS, Regrets, tau_of_all_runs, tau_of_choosing
from studies.alarms.judging import PREVALENCES, counts, intervals, judge, shares
from studies.alarms.plan import DATA_TO_CHOOSE, PLAN, TEST, TUNE, VIT
from studies.alarms.runs import measure, planned
from studies.intervals import rate
from studies.study import Study, last_measured, numbers, series

# The cause of failure of each kind of setting. All others are classical causes of collapse.
CAUSES = {
    "rate too high": "strong",
    "weight decay": "strong",
    "tiny crops": "crops",
    "healthy": "none",
}
CAUSES_IN_WORDS = {
    "strong": "learning rate 20 to 200 times too high, or strong weight decay",
    "crops": "crops of 2 to 10 % of the image",
    "classical": "classical causes of collapse: no filter, a linear predictor, a low-pass target "
    "filter, a symmetric method, no batch norm, no centring, no sharpening, no augmentation, a "
    "warm softmax",
    "none": "nothing",
}


def analyse(table: pd.DataFrame) -> dict[str, Any]:
    """Return the values that the pages name."""
    test = table[table["part"] == TEST]
    judged = judge(test)
    by_setting = {name: counts(runs, runs["setting"]) for name, runs in judged.items()}
    sums = pd.DataFrame({name: counted.sum() for name, counted in by_setting.items()}).T
    runs = judged["**destroyed encoder**"]
    below = judged["kNN below the untrained network's"]
    labelled = runs["alarm"].notna() | below["alarm"].notna()
    silent = judged["the package's rules that need no labels"]
    kind = runs["setting"].str.split(",").str[0]
    below = below[~below["failed"]]
    dips = below.dropna(subset="alarm").index
    outputs = judged["outputs: complete or dimensional collapse"]
    flagged = runs.dropna(subset="alarm")
    vit = judge(table[table["part"] == VIT])
    wide = judge(test[numbers(test["dimensions"]) >= 256])
    groups = {
        "data set": runs["data"],
        "method": runs["method"],
        "kind of setting": kind,
    }
    return {
        "plan": PLAN,
        "test": test,
        "tuned": (table["part"] == TUNE).sum(),
        "runs": runs,
        "counts": sums,
        "shares": shares(sums),
        "intervals": {name: intervals(counted) for name, counted in by_setting.items()},
        "flagged": flagged,
        "quartiles": statistics.quantiles(flagged["gain"], n=4),
        "large": runs[runs["failed"] & (runs["gain"] <= -5)],
        "small": runs[runs["failed"] & (runs["gain"] > -5)],
        "below": below,
        "stayed": test.loc[dips, "val/knn_acc1"].map(ends_below),
        "outputs": outputs[~outputs["failed"]],
        "survivors": outputs.dropna(subset="alarm")["gain"] >= 5,
        "prevalences": PREVALENCES,
        "causes_in_words": CAUSES_IN_WORDS,
        "causes": counts(runs, kind.map(CAUSES).fillna("classical")),
        "labelled": totals(runs.assign(alarm=labelled.where(labelled))),
        "only_silent": totals(silent[~labelled]),
        "by_group": {title: counts(runs, group).sort_index() for title, group in groups.items()},
        "rate": rate,
        "vit": vit,
        "vit_counts": {name: totals(judged) for name, judged in vit.items()},
        "wide_counts": {name: totals(judged) for name, judged in wide.items()},
        "mistakes": runs[runs["failed"] == runs["alarm"].isna()],
        "taus": tau_of_all_runs(test),
        "choosing_data": DATA_TO_CHOOSE,
        "ways": WAYS,
        "baselines": BASELINES,
        "regrets": Regrets(table),
        "choosing_taus": tau_of_choosing(table),
    }


def totals(runs: pd.DataFrame) -> pd.Series:
    """Return the counts over all runs."""
    return counts(runs, runs["failed"]).sum()


def ends_below(knn: str) -> bool:
    """Return whether the last measured value is below the untrained network's."""
    untrained, *_ = series(knn)
    return last_measured(knn) < untrained


STUDY = Study(
    name="alarms",
    description="Train the runs of plan.yaml and write the page about the warnings of collapse.",
    page="docs/collapse.md",
    key=("name",),
    planned=planned,
    measure=measure,
    analyse=analyse,
)
