"""What the page and the appendix of the study say about its table."""

from typing import Any

import pandas as pd

from rdm_solo.runs.groups import mean_std
from studies.evidence.claims import Judge
from studies.evidence.plan import PIXELS, PLAN, ROWS, UNTRAINED
from studies.evidence.runs import PROBED, measure, planned
from studies.study import Study, numbers


def analyse(table: pd.DataFrame) -> dict[str, Any]:
    """Return the values that the pages name."""
    judge = Judge(table)
    claims = [claim | {"verdict": judge.verdict(claim)} for claim in PLAN["claims"]]
    trained = table[table["row"].isin(ROWS)]

    def mean(row: str, column: str, digits: int = 1) -> str:
        return mean_std(judge.runs[row][column].dropna().tolist(), digits)

    return {
        "plan": PLAN,
        "third": PROBED[0],
        "epochs": PROBED[1],
        "judge": judge,
        "claims": claims,
        "trained": trained,
        "seconds": numbers(trained["seconds"]).median(),
        "failed": table[table["status"] != "ok"],
        "rows": [PIXELS, UNTRAINED, *ROWS],
        "mean": mean,
    }


STUDY = Study(
    name="evidence",
    description="Train every row of study.yaml with all seeds on the embedded digits, judge the "
    "paper's claims by the runs, and write a page.",
    page="docs/evidence.md",
    key=("row", "seed"),
    planned=planned,
    measure=measure,
    analyse=analyse,
)
