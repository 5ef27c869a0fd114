"""What the page and the appendix that compare all methods say about the table."""

from typing import Any

import pandas as pd  # type: ignore[import-untyped, unused-ignore]
from scipy import stats  # type: ignore[import-untyped, unused-ignore]

from rdm_solo.methods.descriptions import FAMILIES, METHODS
from rdm_solo.runs.groups import mean_std
from studies.intervals import rank_correlation
from studies.methods.figure import draw
from studies.methods.runs import PLAN, measure, planned
from studies.study import Study, last_measured, numbers

ACCURACY, GAP = "val/knn_acc1", "erank/gap"
FEWEST_METHODS = 4  # the interval needs more than 3


def analyse(table: pd.DataFrame) -> dict[str, Any]:
    """Return the values that the pages name. Diverged runs are listed but not counted elsewhere."""
    counted = table[table["diverged"] == ""]
    last = counted[PLAN["measured"]].map(last_measured)
    runs = last.assign(method=counted["method"]).groupby("method")
    means = runs.mean()
    gaps = runs[GAP].agg(["min", "max"])
    in_order = [name for name in METHODS if name in means.index]
    with_gap = [name for name in in_order if not METHODS[name].symmetric]
    # A softmax's rank is on another scale, and labels raise the accuracy by themselves.
    compared = [n for n in with_gap if not (METHODS[n].softmax or METHODS[n].labels)]

    def cell(name: str, column: str, digits: int) -> str:
        """Return mean ± standard deviation, and n if fewer runs than all have the value."""
        values = runs.get_group(name)[column]
        text = mean_std(values.dropna().tolist(), digits)
        if 0 < values.count() < len(values):
            text += f" (n = {values.count()})"
        return text

    def correlation(column: str) -> dict[str, Any]:
        """Return the number of methods compared and the correlation of a rank with accuracy."""
        pairs = means.loc[compared, [column, ACCURACY]].dropna()
        n = len(pairs)
        if n < FEWEST_METHODS:
            return {"n": n, "text": "–"}
        rho = float(stats.spearmanr(pairs[column], pairs[ACCURACY]).statistic)
        low, high = rank_correlation(rho, n)
        return {"n": n, "text": f"{rho:.2f} [{low:.2f}, {high:.2f}]"}

    def methods_with(column: str, table: pd.DataFrame) -> list[str]:
        """Return each method with a text in that column, with the number of such runs."""
        lines = []
        for name in METHODS:
            cells = table.loc[table["method"] == name, column]
            if cells.any():
                lines.append(f"{METHODS[name].label} ({cells.astype(bool).sum()} of {len(cells)})")
        return lines

    def labels(names: list[str]) -> list[str]:
        return [METHODS[name].label for name in names]

    return {
        "plan": PLAN,
        "methods": sorted(METHODS.values(), key=lambda method: FAMILIES.index(method.family)),
        "runs": runs,
        "dimensions": counted.groupby("method")["dimensions"].first(),
        "cell": cell,
        "correlation": correlation,
        "leads": labels([name for name in with_gap if gaps["min"][name] > 0]),
        "lags": labels([name for name in with_gap if gaps["max"][name] < 0]),
        "warnings": methods_with("warnings", counted),
        "diverged": methods_with("diverged", table),
        "absent": labels([name for name in METHODS if name not in set(table["method"])]),
        "minutes": numbers(table["seconds"]).sum() / 60,
    }


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
