"""What the page and the appendix that compare all methods say about the table."""

from collections.abc import Collection
from typing import Any

import pandas as pd
from scipy import stats

from rdm_solo.methods.descriptions import FAMILIES, METHODS
from rdm_solo.runs.groups import mean_std
from studies.intervals import rank_correlation
from studies.methods.figure import draw
from studies.methods.runs import PLAN, measure, planned
from studies.study import Study, last_measured, numbers

ACCURACY, GAP = "val/knn_acc1", "erank/gap"


def analyse(table: pd.DataFrame) -> dict[str, Any]:
    """Return the values that the pages name. Diverged runs are listed but not counted elsewhere."""
    counted = table[table["diverged"] == ""]
    last = counted[PLAN["measured"]].map(last_measured)
    runs = last.groupby(counted["method"])
    with_gap = [name for name in runs.groups if not METHODS[name].symmetric]
    gaps = runs[GAP].agg(["min", "max"]).loc[with_gap]
    # A softmax's rank is on another scale, and labels raise the accuracy by themselves.
    compared = [n for n in with_gap if not (METHODS[n].softmax or METHODS[n].labels)]
    means = runs.mean().loc[compared]

    def cell(name: str, column: str, digits: int) -> str:
        """Return mean ± standard deviation, and n if fewer runs than all have the value."""
        values = runs.get_group(name)[column]
        text = mean_std(values.dropna().tolist(), digits)
        if 0 < values.count() < len(values):
            text += f" (n = {values.count()})"
        return text

    def correlation(column: str) -> dict[str, Any]:
        """Return the number of methods compared and the correlation of a rank with accuracy."""
        pairs = means[[column, ACCURACY]].dropna()
        n = len(pairs)
        rho = stats.spearmanr(pairs).statistic
        low, high = rank_correlation(rho, n)
        return {"n": n, "text": f"{rho:.2f} [{low:.2f}, {high:.2f}]"}

    return {
        "plan": PLAN,
        "methods": sorted(METHODS.values(), key=lambda method: FAMILIES.index(method.family)),
        "runs": runs,
        "dimensions": counted.groupby("method")["dimensions"].first(),
        "cell": cell,
        "correlation": correlation,
        "leads": labels(gaps.index[gaps["min"] > 0]),
        "lags": labels(gaps.index[gaps["max"] < 0]),
        "warnings": methods_with("warnings", counted),
        "diverged": methods_with("diverged", table),
        "minutes": numbers(table["seconds"]).sum() / 60,
    }


def methods_with(column: str, table: pd.DataFrame) -> list[str]:
    """Return each method with a text in that column, with the number of such runs."""
    lines = []
    for name, method in METHODS.items():
        cells = table.loc[table["method"] == name, column]
        count = (cells != "").sum()
        if count:
            lines.append(f"{method.label} ({count} of {len(cells)})")
    return lines


def labels(names: Collection[str]) -> list[str]:
    """Return the labels of methods, in the order of ``METHODS``."""
    return [method.label for name, method in METHODS.items() if name in names]


STUDY = Study(
    name="methods",
    description="Train every method of the installed solo-learn on the embedded digits with "
    f"{len(PLAN['seeds'])} seeds each, and write a page that compares them.",
    page="docs/methods.md",
    key=("method", "seed"),
    planned=planned,
    measure=measure,
    analyse=analyse,
    draw=draw,
)
