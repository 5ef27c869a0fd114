"""Write the numbers of the trial."""

from pathlib import Path

from rdm_solo.runs.files import write_atomically
from rdm_solo.runs.groups import mean_std
from studies.markdown import table
from studies.mechanism.plan import MEASURED, OK, PLAN, SEEDS, cells
from studies.mechanism.runs import TUNING, rate_of
from studies.mechanism.verdicts import values
from studies.table import Row

APPENDIX = """\
# The trial of the mechanism: all numbers

`python -m studies.mechanism` trains the settings of `plan.yaml` and writes this page from the
{runs} runs in `runs.csv`. {counted} of {planned} planned runs are there, and {tuning} that chose
learning rates; {diverged} diverged. Mean ± standard deviation over n seeds. The rate is the base
learning rate that was chosen, or the recipe's (–).

{numbers}
"""


def write(rows: list[Row], out: Path) -> None:
    """Write the tables of all settings."""
    write_atomically(out, appendix(rows))


def appendix(rows: list[Row]) -> str:
    """Return a table for each question; a cell of two questions is in both."""
    tables, everything = [], set()
    for question in PLAN["settings"]:
        lines = []
        for cell in cells(question):
            columns = [list(values(rows, cell, name).values()) for name in MEASURED]
            numbers = [mean_std(column, 1) if column else "–" for column in columns]
            tuned = question in PLAN["tuned"] and columns[0]
            rate = rate_of(rows, cell) if tuned else "–"
            lines.append([*map(str, cell), rate, str(len(columns[0])), *numbers])
        head = ["setting", "data", "epochs", "rate", "n", *MEASURED]
        tables.append(f"## {PLAN['questions'][question]['asks']}\n\n{table(head, lines)}")
        everything |= set(cells(question))
    tuning = sum(int(row["seed"]) in TUNING for row in rows)
    return APPENDIX.format(
        runs=len(rows),
        counted=len(rows) - tuning,
        planned=len(SEEDS) * len(everything),
        tuning=tuning,
        diverged=sum(row["status"] != OK for row in rows),
        numbers="\n\n".join(tables),
    )
